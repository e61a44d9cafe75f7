"""Figures about learned optimizers: the loss landscape, and a comparison with tuned optimizers."""

import hashlib
import json
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nres.runs import (
    SYSTEMS,
    Settings,
    device,
    versions,
    write_json,
    write_optimizer,
)
from nres.systems.learned_optimizer import LearnedOptimizerSystem, read_optimizer
from nres_paper import learned_optimizer
from nres_paper.comparing import FinishedRun, find_run, read_runs, write_runs
from nres_paper.grades import FAILS, HOLDS, NOT_THERE, Check
from nres_paper.lorenz import local_minima
from nres_paper.original import original
from nres_paper.reproduction import Context, PaperFigure, Result, first_and_others
from nres_paper.trajectory import pes_settings, pes_trajectory

_SYSTEM = "learned-optimizer"
# The places on the trajectory of PES where the landscape is measured.
_UPDATES = (10_000, 40_000, 80_000)
_POINTS, _REACH, _ALONG = 201, 0.4, 0


def _make_system(**options: Any) -> LearnedOptimizerSystem:
    known = SYSTEMS[_SYSTEM]
    return known.make(**{**known.options, **options})


def _landscape(context: Context) -> Result:
    """Measure the loss along a line through parameters of a training run with PES."""
    system = _make_system(horizon=20 if context.quick else 1000)
    path = pes_trajectory(context, _SYSTEM).thetas
    updates = list(path)[-1:] if context.quick else _UPDATES
    thetas = {f"after {update:,} updates of PES": jnp.asarray(path[update]) for update in updates}
    marks = {name: _mark(theta) for name, theta in thetas.items()}
    direction = jax.random.normal(jax.random.key(_ALONG), next(iter(thetas.values())).shape)
    direction = direction / jnp.linalg.norm(direction)
    distances = np.linspace(-_REACH, _REACH, 9 if context.quick else _POINTS)
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
    # Full single precision, so that the loss is jagged and not its rounding.
    with jax.default_matmul_precision("highest"):
        for name, theta in thetas.items():
            if name in found["loss"]:
                continue
            context.say(f"measuring the loss {name}")
            began = time.perf_counter()
            along_line = learned_optimizer.landscape(system, theta, direction, distances)
            found["loss"][name] = along_line.tolist()
            found["gradient_norm"][name] = [
                learned_optimizer.gradient_norm(other, theta) for other in shorter
            ]
            found["seconds"] += time.perf_counter() - began
            write_json(file, found)
    # The file has `null` for values that are not finite; they count as infinite.
    losses = {
        name: np.nan_to_num(np.array(values, float), nan=np.inf, posinf=np.inf)
        for name, values in found["loss"].items()
    }
    norms = found["gradient_norm"]
    learned_optimizer.landscape_figure(
        distances,
        {name[:1].upper() + name[1:]: values for name, values in losses.items()},
        horizons,
        {name[:1].upper() + name[1:]: values for name, values in norms.items()},
        context.drawing,
    )
    minima = {name: local_minima(values) for name, values in losses.items()}
    checks = tuple(
        Check(
            f"local minima among {len(distances)} points, {name}",
            "jagged",
            str(count),
            HOLDS if count > 10 else FAILS,
        )
        for name, count in minima.items()
    )
    where = {"device": found["device"], "versions": found["versions"]}
    return Result(checks, {"local_minima": minima}, found["seconds"], **where)


def _mark(theta: Any) -> str:
    """Return a digest that identifies parameters."""
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(theta):
        digest.update(np.asarray(leaf).tobytes())
    return digest.hexdigest()


def _learned_settings(quick: bool = False) -> Settings:
    updates = 4 if quick else 240_000
    given: dict[str, Any] = {"workers": 2, "options": {"horizon": 20}} if quick else {}
    return original(
        _SYSTEM,
        "nres",
        updates=updates,
        seed=0,
        eval_every=max(1, updates // 240),
        log_every=max(1, updates // 1200),
        **given,
    )


def _learned(context: Context) -> Result:
    """Learn an optimizer with NRES, and compare it with tuned optimizers on its task."""
    settings = _learned_settings(context.quick)
    file, kept = context.folder / "optimizer.npz", context.folder / "metrics.jsonl"
    run = find_run(settings, read_runs(kept))
    if run is None or not file.exists():
        folder = context.finished(context.folder / "runs" / "nres", settings)
        system = folder.components.system
        assert isinstance(system, LearnedOptimizerSystem)
        write_optimizer(folder, system, file)
        run = FinishedRun.of("NRES", folder)
        write_runs(kept, [run])
    measured = _compared(context, _make_system(**settings.options), read_optimizer(file)[1])
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
        "mean loss on its own task",
        NOT_THERE,
        f"learned: {means['learned']:.3f}; {best}: {means[best]:.3f}",
        HOLDS if means["learned"] < means[best] else FAILS,
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
    """Measure the learning curves of a learned optimizer and of tuned ones, or read them."""
    file, mark = context.folder / "measured.json", _mark(theta)
    if file.exists():
        found = json.loads(file.read_text(encoding="utf-8"))
        if found["theta"] == mark:
            return found
    began = time.perf_counter()
    context.say("comparing the learned optimizer with tuned ones")
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
    "Figure 1 (a)",
    "The loss of a learned optimizer along a random direction is jagged.",
    "gpu",
    _landscape,
    lambda: [_UPDATES, _POINTS, _REACH, pes_settings(_SYSTEM).to_json()],
    "The loss is smooth at fresh initial parameters. Along the way of a training run, it is jagged "
    "at some places and not at others.",
)
LEARNED = PaperFigure(
    "",
    "A learned optimizer does better on its own task than tuned Adam.",
    "gpu",
    _learned,
    lambda: _learned_settings().to_json(),
)
