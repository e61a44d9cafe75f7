"""Learned optimizers [exp:lopt]: the landscape of their loss, and one raced against the usual."""

import hashlib
import json
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nres.experiments import learned_optimizer
from nres.experiments.card import write_optimizer
from nres.experiments.claims import Check
from nres.experiments.exhibits import Exhibit, Findings, Work, first_and_others
from nres.experiments.lorenz import local_minima
from nres.experiments.presets import fashion_mnist_system
from nres.experiments.races import LEARNED_START
from nres.experiments.racing import Record, read_records, write_records
from nres.files import write_json
from nres.runs import SettingsError, resolve
from nres.runs.folder import device, versions
from nres.systems.learned_optimizer import LearnedOptimizerSystem, read_optimizer


def _landscape(work: Work) -> Findings:
    """Along a random direction from a fresh start, and from a learned optimizer if there is one."""
    system = fashion_mnist_system(horizon=20 if work.quick else 1000)
    at, along = jax.random.split(jax.random.key(LEARNED_START))
    thetas = {"at a fresh start": system.initial_theta(at)}
    learned = work.folder.parent / "learned-optimizer" / "optimizer.npz"
    if learned.exists():
        thetas["at a learned optimizer"] = read_optimizer(learned)[1]
    elif not work.quick:
        raise SettingsError(
            f"there is no {learned} to look around: `nres reproduce learned-optimizer` makes it."
        )
    marks = {name: _mark(theta) for name, theta in thetas.items()}
    direction = jax.random.normal(along, thetas["at a fresh start"].shape)
    direction = direction / jnp.linalg.norm(direction)
    distances = np.linspace(-0.4, 0.4, 9 if work.quick else 201)
    horizons = tuple(h for h in (1, 3, 10, 30, 100, 300, 1000) if h <= system.horizon)
    shorter = [LearnedOptimizerSystem(system.task, system.optimizer, horizon=h) for h in horizons]
    file = work.folder / "measured.json"
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
            work.say(f"the loss {name}")
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
    learned_optimizer.landscape_figure(distances, losses, horizons, norms, work.drawing)
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
    return Findings(checks, {"local_minima": minima}, found["seconds"], **where)


def _mark(theta: Any) -> str:
    """What tells parameters from others."""
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(theta):
        digest.update(np.asarray(leaf).tobytes())
    return digest.hexdigest()


def _learned(work: Work) -> Findings:
    """Learn an optimizer with NRES, and race it against tuned ones on its own task."""
    updates = 4 if work.quick else 240_000
    given: dict[str, Any] = {"workers": 2, "options": {"horizon": 20}} if work.quick else {}
    settings = resolve(
        "learned-optimizer",
        "nres",
        updates=updates,
        seed=LEARNED_START,
        eval_every=max(1, updates // 240),
        log_every=max(1, updates // 1200),
        **given,
    )
    file, kept = work.folder / "optimizer.npz", work.folder / "metrics.jsonl"
    records = [record for record in read_records(kept) if record.settings == settings]
    if not records or not file.exists():
        run = work.finished(work.folder / "runs" / "nres", settings)
        system = run.components.system
        assert isinstance(system, LearnedOptimizerSystem)
        write_optimizer(run, system, file)
        records = [Record.of("NRES", run)]
        write_records(kept, records)
    (record,) = records
    measured = _raced(work, fashion_mnist_system(**settings.options), read_optimizer(file)[1])
    curves = {name: np.array(curve, float) for name, curve in measured["losses"].items()}
    learned_optimizer.race_figure(record.evaluations, curves, work.drawing)
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
    return Findings(
        (check,),
        numbers,
        record.entries[-1]["seconds"] + measured["seconds"],
        1,
        first_and_others([record.device, measured["device"]]),
        first_and_others([record.versions, measured["versions"]]),
    )


def _raced(work: Work, system: LearnedOptimizerSystem, theta: Any) -> dict[str, Any]:
    """The learning curves of a learned optimizer and of tuned ones; computed once, and kept."""
    file, mark = work.folder / "measured.json", _mark(theta)
    if file.exists():
        found = json.loads(file.read_text(encoding="utf-8"))
        if found["theta"] == mark:
            return found
    began = time.perf_counter()
    work.say("racing it against tuned optimizers")
    racers = {
        "learned": learned_optimizer.Racer(system.optimizer, theta),
        **learned_optimizer.tuned(system),
    }
    others = learned_optimizer.other_sequences(system, 5)
    found = {
        "theta": mark,
        "losses": {
            name: [round(x, 6) for x in racer.losses(system).tolist()]
            for name, racer in racers.items()
        },
        "mean_loss_on_other_sequences": {
            name: [float(racer.losses(other).mean()) for other in others]
            for name, racer in racers.items()
        },
        "seconds": time.perf_counter() - began,
        "device": device(),
        "versions": versions(),
    }
    write_json(file, found)
    return found


LANDSCAPE = Exhibit(
    "fig:loss",
    "The loss of a learned optimizer along a random direction is jagged.",
    "gpu",
    _landscape,
    "At a fresh start it has cliffs, and its exact gradient grows with every step that is "
    "differentiated. After some learning it is jagged, but by less than a hundredth of its value, "
    "and the gradient grows no more after 100 steps. The paper does not say where it looked.",
)
LEARNED = Exhibit(
    "",
    "A learned optimizer does better on its own task than tuned Adam.",
    "gpu",
    _learned,
)
