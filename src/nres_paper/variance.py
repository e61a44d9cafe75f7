"""Variance of estimators along a trajectory: its plan, and the drawing of NRES and FullES."""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from nres.figures import COLOURS, save_drawing
from nres.variance import Row


@dataclasses.dataclass(frozen=True)
class Study:
    """Plan of the measurements along a trajectory of a system."""

    updates: int
    """The number of updates of PES, whose parameters form the trajectory."""
    keep_every: int
    window: int
    sigma: float
    periods: tuple[int, ...]
    samples: int
    seed: int


# T is 1000 and 2000. The paper has eight checkpoints of the first.
STUDIES: Mapping[str, Study] = {
    "learned-optimizer": Study(80_000, 10_000, 1, 0.01, (1, 4, 16, 64, 256, 1000), 2048, 0),
    "lorenz": Study(2400, 300, 100, 0.04, (100, 200, 500, 1000, 2000), 65_536, 0),
}


HORIZONS: Mapping[str, int] = {"learned-optimizer": 1000, "lorenz": 2000}


def study(system: str, quick: bool = False) -> Study:
    """Return the plan for a system, or a small version of it."""
    plan = STUDIES[system]
    return dataclasses.replace(plan, updates=4, keep_every=2, samples=16) if quick else plan


def fulles_figure(rows: Mapping[int, tuple[Row, Row]], title: str, path: Path) -> None:
    """Draw the variance of NRES and FullES at equal compute, for each checkpoint."""
    figure = Figure(figsize=(7.2, 4.4), layout="constrained")
    panel = figure.subplots()
    at = np.arange(len(rows))
    for i, name in enumerate(("NRES", "FullES")):
        values = [pair[i] for pair in rows.values()]
        middle = np.array([row.variance for row in values])
        low = middle - [row.low for row in values]
        high = np.array([row.high for row in values]) - middle
        workers = values[0].workers
        panel.errorbar(
            at,
            middle,
            np.maximum(0, [low, high]),
            fmt="o",
            capsize=3,
            color=COLOURS[name],
            label=f"{name}, {workers:,} worker" + "s" * (workers > 1),
        )
    for x, (one, other) in zip(at, rows.values(), strict=True):
        times = other.variance / one.variance
        panel.annotate(
            f"{times:,.0f}×" if times >= 10 else f"{times:.1f}×",
            (float(x), max(one.high, other.high)),
            (0, 5),
            textcoords="offset points",
            ha="center",
            fontsize="small",
        )
    panel.set(
        xlabel="number of updates of PES before the measurement",
        ylabel="total variance at equal compute",
        yscale="log",
        title=title,
    )
    panel.margins(y=0.12)
    panel.set_xticks(at, [f"{update:,}" for update in rows])
    panel.grid(alpha=0.3, axis="y")
    figure.legend(loc="outside right center", frameon=False)
    save_drawing(figure, path)


def equal_compute(rows: tuple[Row, ...], horizon: int) -> tuple[Row, Row]:
    """Return the rows for the mean of T/W estimates of NRES and, equally long, one of FullES."""
    (full,) = [row for row in rows if row.method == "FullES"]
    (nres,) = [row for row in rows if row.method == "NRES"]
    workers = math.ceil(horizon / nres.window)
    names = ("variance", "low", "high", "episode_variance")
    changed: dict[str, Any] = {name: getattr(nres, name) / workers for name in names}
    changed |= {"workers": workers, "total_steps": workers * nres.total_steps}
    return dataclasses.replace(nres, **changed), full
