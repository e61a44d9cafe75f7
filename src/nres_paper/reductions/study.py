"""The study `nres reproduce reductions`: the variance that each reduction saves."""

import dataclasses
import functools
import itertools
import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import nres
from nres.runs import SettingsError, write_json
from nres_paper.grades import SHOWN, Check
from nres_paper.reductions.drawing import TITLES, draw
from nres_paper.reductions.drift import compare_drifted, follow
from nres_paper.reductions.episodes import Task, record
from nres_paper.reductions.estimates import plain
from nres_paper.reductions.measured import measure_reductions, shares
from nres_paper.reductions.statistics import over_episodes, total_variance
from nres_paper.reductions.training import Path, train
from nres_paper.reproduction import Context, PaperFigure, Result


@dataclasses.dataclass(frozen=True)
class Trained:
    """Plan of training runs with and without momentum as control variate."""

    updates: int
    seeds: int
    level: float
    """The mean loss per step to reach."""
    rates: tuple[float, ...]
    """Learning rates, as factors of the case's own."""


@dataclasses.dataclass(frozen=True)
class Case:
    """A system, the settings of NRES on it, and the measurements to make."""

    pool: Callable[[], nres.Pool]
    theta: Callable[[nres.Pool], Any]
    window: int
    sigma: float
    workers: int
    rate: float
    checkpoints: tuple[int, ...]
    """The numbers of updates after which variances are measured."""
    groups: int
    """The number of groups of N pairs of each measurement."""
    drifting: int = 0
    """The number of pairs at each window for the importance correction; 0 not to measure it."""

    trained: Trained | None = None

    def task(self) -> Task:
        """Construct the pool, with the settings."""
        return Task(self.pool(), self.window, self.sigma, self.workers)


def _initial(pool: nres.Pool) -> Any:
    assert pool.initial_theta is not None
    return pool.initial_theta(jax.random.key(0))


def _quadratic() -> nres.Pool:
    key = jax.random.key(0)
    system = nres.systems.Quadratic.random(key, horizon=40, states=4, parameters=8)
    return nres.JaxPool(system)


CASES: Mapping[str, Case] = {
    "quadratic": Case(
        _quadratic, lambda pool: jnp.ones(8), 4, 0.3, 40, 0.003, (20,), 64, drifting=2000
    ),
    "lorenz": Case(
        lambda: nres.JaxPool(nres.systems.Lorenz()),
        _initial,
        100,
        0.04,
        200,
        1e-5,
        (20, 600),
        24,
        drifting=1000,
        trained=Trained(1000, 6, 80.0, (1.0, 2.0)),
    ),
    "swimmer": Case(
        lambda: nres.pools.MujocoPool("swimmer"),
        _initial,
        100,
        0.3,
        30,
        3.0,
        (6,),
        12,
        trained=Trained(20, 3, -0.25, (1.0,)),
    ),
}
LAWS: Mapping[str, nres.Noise] = {"gaussian": nres.Gaussian(), "orthogonal": nres.Orthogonal()}
# The decay of the momentum that serves as a guess of the gradient.
DECAY = 0.9
# Learning rates for the importance correction, as factors of the case's own.
RATES = (0.01, 0.1, 1.0)


def _small(case: Case) -> Case:
    return dataclasses.replace(
        case,
        checkpoints=case.checkpoints[:1],
        groups=8,
        drifting=min(case.drifting, 8),
        trained=None,
    )


def _make(context: Context) -> Result:
    file = context.folder / "measured.json"
    kept: dict[str, Any] = {"plan": _plan(context.quick), "seconds": 0.0, "entries": {}}
    if file.exists():
        before = json.loads(file.read_text(encoding="utf-8"))
        if before["plan"] != kept["plan"]:
            raise SettingsError(
                f"{file} contains results with other settings: choose another folder with --out."
            )
        kept = before

    def entry(name: str, measure: Callable[[], dict[str, Any]]) -> None:
        """Measure what is not in the file yet."""
        if name in kept["entries"]:
            return
        context.say(name)
        started = time.monotonic()
        kept["entries"][name] = measure()
        kept["seconds"] += time.monotonic() - started
        write_json(file, kept)

    # Quick versions show that the command runs, also where MuJoCo is not installed.
    names = ["quadratic"] if context.quick else list(CASES)
    for name in names:
        case = _small(CASES[name]) if context.quick else CASES[name]
        _measure_case(name, case, entry)
    entries = kept["entries"]
    draw(entries, context.drawing)
    return Result(_checks(entries), entries, kept["seconds"])


def _measure_case(
    name: str, case: Case, entry: Callable[[str, Callable[[], dict[str, Any]]], None]
) -> None:
    task = case.task()
    theta = case.theta(task.pool)

    @functools.cache
    def path(factor: float) -> Path:
        updates = max(case.checkpoints) if factor == 1 else task.windows
        law, rate = LAWS["orthogonal"], factor * case.rate
        return train(task, theta, jax.random.key(0), rate=rate, updates=updates, law=law)

    def variances(update: int, law: str) -> dict[str, Any]:
        return _variances(task, path(1.0), update, LAWS[law], case.groups)

    def drift(factor: float) -> dict[str, Any]:
        return _drift(task, path(factor), case.checkpoints[0], case.drifting)

    for update, law in itertools.product(case.checkpoints, LAWS):
        entry(f"{name}, {update} updates, {law}", functools.partial(variances, update, law))
    for factor in RATES if case.drifting else ():
        entry(f"{name}, rate {factor * case.rate:g}", functools.partial(drift, factor))
    if case.trained is not None:
        for factor in case.trained.rates:
            rate = factor * case.rate
            measure = functools.partial(_training, task, theta, case.trained, rate)
            entry(f"{name}, training, rate {rate:g}", measure)


def _variances(task: Task, path: Path, update: int, law: nres.Noise, groups: int) -> dict[str, Any]:
    """Measure all reductions at one checkpoint."""
    theta = path.thetas[update]
    episodes = record(task, theta, law, jax.random.key(update), groups)
    found = measure_reductions(task, theta, episodes, path.momentum(update, DECAY))
    updates = plain(episodes)
    gradient = updates.mean(axis=(0, 1))
    episode_variance = total_variance(over_episodes(updates))
    return {
        "shares": dataclasses.asdict(shares(episodes)),
        "variance": total_variance(updates),
        "episode_variance": episode_variance,
        # Without the part that noise contributes.
        "squared_gradient": float(gradient @ gradient - episode_variance / groups),
        "reductions": {
            name: {kind: dataclasses.asdict(ratio) for kind, ratio in ratios.items()}
            for name, ratios in found.items()
        },
    }


def _drift(task: Task, path: Path, update: int, workers: int) -> dict[str, Any]:
    """Measure the importance correction at the first checkpoint of a path."""
    # Workers reach their first windows at the initial parameters.
    before = [path.thetas[0]] * task.windows + path.thetas[: update + 1]
    found = follow(task, before[-task.windows :], jax.random.key(1), workers)
    row = compare_drifted(found, task.workers)
    return dataclasses.asdict(row) | {"ratio": row.ratio}


def _training(task: Task, theta: Any, plan: Trained, rate: float) -> dict[str, Any]:
    """Train with and without momentum as control variate, and count updates to the level."""
    settings: dict[str, Any] = {"rate": rate, "updates": plan.updates, "law": LAWS["orthogonal"]}
    found = {}
    for name, decay in (("plain", None), ("momentum", DECAY)):
        keys = [jax.random.key(100 + seed) for seed in range(plan.seeds)]
        runs = [train(task, theta, key, decay=decay, **settings).losses for key in keys]
        # Over an episode, all workers pass through all windows.
        smooth = [np.convolve(x, np.ones(task.windows) / task.windows, "valid") for x in runs]
        reached = [np.flatnonzero(x <= plan.level) for x in smooth]
        found[name] = {
            "updates": [int(x[0]) + task.windows if x.size else None for x in reached],
            "final": [float(x[-1]) if np.isfinite(x[-1]) else None for x in smooth],
        }
    return found


def _checks(entries: dict[str, Any]) -> tuple[Check, ...]:
    """Summarise the measurements in words."""
    checks = []
    for name, about in TITLES.items():
        rows = {n: e["reductions"] for n, e in entries.items() if name in e.get("reductions", {})}
        for kind in ("update", "episode"):
            ratios = [row[name][kind]["ratio"] for row in rows.values()]
            if ratios:
                text = f"{min(ratios):.2g} to {max(ratios):.2g}"
                checks.append(Check(f"{about}, per {kind}", "not in the paper", text, SHOWN))
    drifts = {n: e for n, e in entries.items() if "drift" in e}
    for name, row in drifts.items():
        text = f"mean square error × {row['ratio']:.3g} at a drift of {row['drift']:.2g} σ"
        checks.append(Check(f"importance correction, {name}", "not in the paper", text, SHOWN))
    for name, row in entries.items():
        if "plain" in row:
            counts = {kind: _mean(row[kind]["updates"]) for kind in ("plain", "momentum")}
            text = f"{counts['plain']} updates without, {counts['momentum']} with momentum"
            checks.append(Check(name, "not in the paper", text, SHOWN))
    return tuple(checks)


def _mean(updates: list[int | None]) -> str:
    """Return the mean number of updates to the level as text."""
    there = [count for count in updates if count is not None]
    if len(there) < len(updates):
        return f"(reached by {len(there)} of {len(updates)} seeds)"
    return f"{np.mean(there):.0f}"


def _plan(quick: bool = False) -> Any:
    """Return the numbers that determine the measurements."""
    cases = {name: _small(case) if quick else case for name, case in CASES.items()}
    numbers = {
        name: {
            field: value
            for field, value in dataclasses.asdict(case).items()
            if field not in ("pool", "theta")
        }
        for name, case in cases.items()
    }
    return json.loads(json.dumps([numbers, list(LAWS), DECAY, RATES]))


REDUCTIONS = PaperFigure(
    "",
    "Further reductions of the variance of NRES save little where the noise limits training.",
    "cpu",
    _make,
    _plan,
    "Every number is a variance with a reduction, divided by that without it at equal steps. "
    "[Reductions that did not pay](reductions.md) explains each of them.",
)
