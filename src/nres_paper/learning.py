"""Learned optimizers [exp:lopt]: the landscape of their loss, and one compared with tuned ones."""

import hashlib
import json
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nres.runs import (
    SYSTEMS,
    SettingsError,
    device,
    resolve,
    versions,
    write_json,
    write_optimizer,
)
from nres.systems.learned_optimizer import LearnedOptimizerSystem, read_optimizer
from nres_paper import learned_optimizer
from nres_paper.claims import Check
from nres_paper.comparing import FinishedRun, find_run, read_runs, write_runs
from nres_paper.comparisons import LEARNED_START
from nres_paper.lorenz import local_minima
from nres_paper.reproduction import Context, PaperFigure, Result, first_and_others

_system = SYSTEMS["learned-optimizer"].make


def _landscape(context: Context) -> Result:
    """Follow the loss from a fresh start, and from a learned optimizer if there is one."""
    system = _system(horizon=20 if context.quick else 1000)
    at, along = jax.random.split(jax.random.key(LEARNED_START))
    thetas = {"at a fresh start": system.initial_theta(at)}
    learned = context.folder.parent / "learned-optimizer" / "optimizer.npz"
    if learned.exists():
        thetas["at a learned optimizer"] = read_optimizer(learned)[1]
    elif not context.quick:
        raise SettingsError(
            f"there is no {learned} to look around: `nres reproduce learned-optimizer` makes it."
        )
    marks = {name: _mark(theta) for name, theta in thetas.items()}
    direction = jax.random.normal(along, thetas["at a fresh start"].shape)
    direction = direction / jnp.linalg.norm(direction)
    distances = np.linspace(-0.4, 0.4, 9 if context.quick else 201)
    horizons = tuple(h for h in (1, 3, 10, 30, 100, 300, 1000) if h <= system.horizon)
    shorter = [LearnedOptimizerSystem(system.task, system.optimizer, horizon=h) for h in horizons]
    file = context.folder / "measured.json"
    found: dict[str, Any] = {"distance": distances.tolist(), "horizon": list(horizons)}
    found |= {"theta": marks, "loss": {}, "gradient_norm": {}}
    found |= {"seconds": 0.0, "device": device(), "versions": versions()}
    if file.exists():
        before = json.loads(file.read_text(encoding="utf-8"))
        if all(before.get(name) == found[name] for name in ("distance", "horizon", "theta")):
            found = before
    # In full single precision: what is jagged should be the loss, not its rounding.
    with jax.default_matmul_precision("highest"):
        for name, theta in thetas.items():
            if name in found["loss"]:
                continue
            context.say(f"the loss {name}")
            began = time.perf_counter()
            along_line = learned_optimizer.landscape(system, theta, direction, distances)
            found["loss"][name] = along_line.tolist()
            found["gradient_norm"][name] = [
                learned_optimizer.gradient_norm(other, theta) for other in shorter
            ]
            found["seconds"] += time.perf_counter() - began
            write_json(file, found)
    # What is no number is kept as nothing, and is larger than any.
    losses = {
        name: np.nan_to_num(np.array(values, float), nan=np.inf, posinf=np.inf)
        for name, values in found["loss"].items()
    }
    norms = found["gradient_norm"]
    learned_optimizer.landscape_figure(distances, losses, horizons, norms, context.drawing)
    minima = {name: local_minima(values) for name, values in losses.items()}
    checks = tuple(
        Check(
            f"local minima among {len(distances)} points, {name}",
            "jagged",
            str(count),
            "holds" if count > 10 else "fails",
        )
        for name, count in minima.items()
    )
    where = {"device": found["device"], "versions": found["versions"]}
    return Result(checks, {"local_minima": minima}, found["seconds"], **where)


def _mark(theta: Any) -> str:
    """Return a digest that tells parameters from others."""
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(theta):
        digest.update(np.asarray(leaf).tobytes())
    return digest.hexdigest()


def _learned(context: Context) -> Result:
    """Learn an optimizer with NRES, and compare it with tuned ones on its own task."""
    updates = 4 if context.quick else 240_000
    given: dict[str, Any] = {"workers": 2, "options": {"horizon": 20}} if context.quick else {}
    settings = resolve(
        "learned-optimizer",
        "nres",
        updates=updates,
        seed=LEARNED_START,
        eval_every=max(1, updates // 240),
        log_every=max(1, updates // 1200),
        **given,
    )
    file, kept = context.folder / "optimizer.npz", context.folder / "metrics.jsonl"
    run = find_run(settings, read_runs(kept))
    if run is None or not file.exists():
        folder = context.finished(context.folder / "runs" / "nres", settings)
        system = folder.components.system
        assert isinstance(system, LearnedOptimizerSystem)
        write_optimizer(folder, system, file)
        run = FinishedRun.of("NRES", folder)
        write_runs(kept, [run])
    measured = _compared(context, _system(**settings.options), read_optimizer(file)[1])
    curves = {name: np.array(curve, float) for name, curve in measured["losses"].items()}
    learned_optimizer.learned_figure(run.evaluations, curves, context.drawing)
    means = {name: float(curve.mean()) for name, curve in curves.items()}
    numbers: dict[str, Any] = {
        "mean_loss": means,
        "final_loss": {name: float(curve[-100:].mean()) for name, curve in curves.items()},
        "mean_loss_on_other_sequences": measured["mean_loss_on_other_sequences"],
    }
    best = min((name for name in means if name != "learned"), key=means.__getitem__)
    check = Check(
        "mean loss over its own task",
        "not in the paper",
        f"learned {means['learned']:.3f}, {best} {means[best]:.3f}",
        "holds" if means["learned"] < means[best] else "fails",
    )
    return Result(
        (check,),
        numbers,
        run.entries[-1]["seconds"] + measured["seconds"],
        1,
        first_and_others([run.device, measured["device"]]),
        first_and_others([run.versions, measured["versions"]]),
    )


def _compared(context: Context, system: LearnedOptimizerSystem, theta: Any) -> dict[str, Any]:
    """Measure the learning curves of a learned optimizer and of tuned ones, once."""
    file, mark = context.folder / "measured.json", _mark(theta)
    if file.exists():
        found = json.loads(file.read_text(encoding="utf-8"))
        if found["theta"] == mark:
            return found
    began = time.perf_counter()
    context.say("comparing it with tuned optimizers")
    optimizers = {
        "learned": learned_optimizer.TunedOptimizer(system.optimizer, theta),
        **learned_optimizer.tuned(system),
    }
    others = learned_optimizer.other_sequences(system, 5)
    found = {
        "theta": mark,
        "losses": {
            name: [round(x, 6) for x in one.losses(system).tolist()]
            for name, one in optimizers.items()
        },
        "mean_loss_on_other_sequences": {
            name: [float(one.losses(other).mean()) for other in others]
            for name, one in optimizers.items()
        },
        "seconds": time.perf_counter() - began,
        "device": device(),
        "versions": versions(),
    }
    write_json(file, found)
    return found


LANDSCAPE = PaperFigure(
    "fig:loss",
    "The loss of a learned optimizer along a random direction is jagged.",
    "gpu",
    _landscape,
    "At a fresh start it has cliffs, and its exact gradient grows with every step that is "
    "differentiated. After some learning it is jagged, but by less than a hundredth of its value, "
    "and the gradient grows no more after 100 steps. The paper does not say where it looked.",
)
LEARNED = PaperFigure(
    "",
    "A learned optimizer does better on its own task than tuned Adam.",
    "gpu",
    _learned,
)
