"""Evaluation of learned optimizers on several tasks, beside others; its folder and its page."""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from nres.files import finite, read_plain, write_json, write_text
from nres.runs.folder import RunError
from nres.runs.machine import device, versions
from nres.runs.names import SettingsError, unknown
from nres.system import Theta
from nres.systems.learned_optimizer.evaluating import (
    BASELINES,
    CONSTANT_ADAM,
    Contender,
    Outcome,
    adam_curve,
    evaluate_contender,
    learned_contender,
    speedup,
)
from nres.systems.learned_optimizer.models import HELD_OUT
from nres.systems.learned_optimizer.optimizers import LearnableOptimizer

EVALUATION_FILE, PARTS = "evaluation.json", "parts"
# The name of the curve of Adam over more steps.
CURVE = "curve"
# Adam may take this many times as many steps, for speedups.
LONGER = 5
# The number of points of a stored curve.
POINTS = 100
Learned = Mapping[str, tuple[LearnableOptimizer, Theta]]


def evaluate_optimizers(
    learned: Learned,
    out: Path,
    *,
    tasks: tuple[str, ...] = tuple(HELD_OUT),
    steps: int = 1000,
    seeds: int = 3,
    report: Callable[[str, int, int], Any] = lambda what, done, count: None,
) -> dict[str, Any]:
    """Compare learned optimizers with others on some tasks; write the results to a folder.

    Every optimizer tries its learning rates. Results that the folder already has are kept, so that
    an interrupted evaluation can be continued.

    Args:
        learned: The learned optimizers and their parameters, by name.
        out: The folder.
        tasks: Names from `HELD_OUT`.
        steps: The number of training steps per task.
        seeds: The number of initial models per task.
        report: Called before each part with its name, and the numbers of parts done and of all.

    Returns:
        The results, as in the file `evaluation.json`.

    Raises:
        RunError: If the folder has results of another evaluation.
        SettingsError: If a task is not known, or an optimizer has the name of another.
    """
    _check_names(learned, tasks)
    contenders = {name: learned_contender(*each) for name, each in learned.items()} | dict(
        BASELINES
    )
    identity = {name: digest(*each) for name, each in learned.items()}
    plan = [(task, name) for task in tasks for name in (None, *contenders)]
    found: dict[str, dict[str, Any]] = {task: {} for task in tasks}
    for i, (task, name) in enumerate(plan):
        report(f"{name or 'Adam, more steps'} on {task}", i, len(plan))
        contender = None if name is None else contenders[name]
        settings = {
            "steps": steps if contender else LONGER * steps,
            "seeds": seeds,
            "rates": list((contender or CONSTANT_ADAM).rates),
            "digest": None if name is None else identity.get(name),
        }
        path = out / PARTS / f"{task}-{_file_name(name or CURVE)}.json"
        part = _stored(path, settings)
        if part is None:
            made, key = HELD_OUT[task][1](), jax.random.key(0)
            part = settings | _computed(made, contender, steps, seeds, key)
            write_json(path, part)
        found[task][name or CURVE] = part
    result = {
        "steps": steps,
        "seeds": seeds,
        "device": device(),
        "versions": versions(),
        "digests": identity,
        "tasks": {task: _summary(task, parts) for task, parts in found.items()},
    }
    write_json(out / EVALUATION_FILE, result)
    write_text(out / "evaluation.md", evaluation_page(result))
    return result


def _check_names(learned: Learned, tasks: tuple[str, ...]) -> None:
    """Refuse names under which results would be confused."""
    taken = {_file_name(name) for name in (CURVE, *BASELINES)}
    for name in learned:
        if not name or _file_name(name) in taken:
            raise SettingsError(f"a learned optimizer cannot be called {name!r}: rename its file.")
        taken.add(_file_name(name))
    for task in tasks:
        if task not in HELD_OUT:
            raise SettingsError(unknown("task", task, HELD_OUT))


def _computed(task, contender: Contender | None, steps: int, seeds: int, key) -> dict[str, Any]:
    if contender is None:
        curve = adam_curve(task, steps=LONGER * steps, seeds=seeds, key=key)
        return {"curve": finite(curve.tolist())}
    outcome = evaluate_contender(task, contender, steps=steps, seeds=seeds, key=key)
    return {
        "rate": outcome.rate,
        "final": finite(outcome.final.tolist()),
        "held_out": finite(outcome.held_out.tolist()),
        "curve": finite(outcome.curve.tolist()),
    }


def _summary(task: str, parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the results of one task without the whole curves."""
    adam = _numbers(parts[CURVE]["curve"])
    optimizers = {}
    for name, part in parts.items():
        if name == CURVE:
            continue
        curve, final, held_out = (_numbers(part[each]) for each in ("curve", "final", "held_out"))
        times = speedup(Outcome(part["rate"], curve, final, held_out), adam)
        shown = np.unique(np.linspace(0, len(curve) - 1, POINTS).round().astype(int))
        count = max(1, len(curve) // POINTS)
        means = [float(np.mean(curve[max(0, i - count + 1) : i + 1])) for i in shown]
        optimizers[name] = {
            "rate": part["rate"],
            "final_loss": float(final.mean()),
            "final_losses": final.tolist(),
            "held_out_loss": float(held_out.mean()),
            "speedup": times.factor,
            "speedup_is_a_bound": not times.reached,
            "curve": {"step": (shown + 1).tolist(), "loss": finite(means)},
        }
    return {"what": HELD_OUT[task][0], "optimizers": finite(optimizers)}


def _numbers(values: Any) -> np.ndarray:
    """Return numbers from JSON, which has `null` in place of infinite ones."""
    return np.array([np.inf if value is None else value for value in values], float)


def _stored(path: Path, settings: Mapping[str, Any]) -> dict[str, Any] | None:
    if not path.exists():
        return None
    try:
        part = json.loads(read_plain(path))
        theirs = {name: part[name] for name in settings}
    except (ValueError, LookupError, TypeError) as error:
        raise RunError(f"{path} is damaged: delete it to compute it again.") from error
    if theirs != dict(settings):
        raise RunError(
            f"{path.parent.parent} holds another evaluation (of other weights, or with other "
            "steps, seeds or rates): choose another --out, or delete it."
        )
    return part


def digest(optimizer: LearnableOptimizer, theta: Theta) -> str:
    """Return a digest of an optimizer and its parameters."""
    digest = hashlib.sha256(repr(optimizer).encode())
    for leaf in jax.tree.leaves(theta):
        digest.update(np.asarray(leaf).tobytes())
    return digest.hexdigest()[:16]


def _file_name(name: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in name.lower())


def times_text(row: Mapping[str, Any]) -> str:
    """Write a speedup, with a sign if it is a lower bound."""
    if row["final_loss"] is None:
        return "–"
    sign = "> " if row["speedup_is_a_bound"] else ""
    return f"{sign}{row['speedup']:.3g}×"


def evaluation_page(result: Mapping[str, Any]) -> str:
    """Return an evaluation in Markdown: a table per task."""
    lines = [
        "# Evaluation of optimizers",
        "",
        f"Every optimizer trained the model of each task for {result['steps']:,} steps from "
        f"{result['seeds']} initial models, with each of its learning rates, and the best counts. "
        "Rates fall linearly to zero, except that of schedule-free AdamW. The training loss is the "
        "mean over the last 5% of the steps. "
        "The speedup is the number of steps that Adam with the best constant rate takes to reach "
        "the same training loss, divided by the steps made.",
    ]
    for name, task in result["tasks"].items():
        lines += ["", f"## {name}: {task['what']}", ""]
        lines += ["| optimizer | rate | training loss | held-out loss | speedup |"]
        lines += ["| --- | ---: | ---: | ---: | ---: |"]
        rows = sorted(task["optimizers"].items(), key=lambda item: _rank(item[1]))
        lines += [
            f"| {each} | {row['rate']:g} | {loss_text(row['final_loss'])} | "
            f"{loss_text(row['held_out_loss'])} | {times_text(row)} |"
            for each, row in rows
        ]
    return "\n".join([*lines, ""])


def _rank(row: Mapping[str, Any]) -> float:
    return np.inf if row["final_loss"] is None else row["final_loss"]


def loss_text(value: float | None) -> str:
    """Write a loss; `None` stands for one that is not finite."""
    return "diverged" if value is None else f"{value:.4g}"
