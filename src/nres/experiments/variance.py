"""The variance of estimators along a trajectory: tables [fig:variance], [fig:nres_vs_fulles]."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Array
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nres.figures import COLOURS, log_if_positive
from nres.files import save_drawing, save_figure
from nres.system import Theta
from nres.variance import Advice, Row, Sweep, sweep, updates_worth


@dataclasses.dataclass(frozen=True)
class Study:
    """What is measured along a trajectory of which system."""

    updates: int
    """Of PES, which makes the trajectory."""
    keep_every: int
    window: int
    sigma: float
    periods: tuple[int, ...]
    samples: int
    seed: int


# T = 1000 and 2000. On the first the paper looks at these; it does not say which periods it tried.
STUDIES: Mapping[str, Study] = {
    "learned-optimizer": Study(80_000, 10_000, 1, 0.01, (1, 4, 16, 64, 256, 1000), 2048, 11),
    "lorenz": Study(2400, 300, 100, 0.04, (100, 200, 500, 1000, 2000), 65_536, 0),
}


def along(
    system: Any,
    trajectory: Mapping[int, Theta],
    key: Array,
    known: Mapping[int, list[dict[str, Any]]],
    report: Callable[[int, list[dict[str, Any]]], Any],
    **settings: Any,
) -> dict[int, tuple[Row, ...]]:
    """A sweep at each of some parameters; those already known are not made again.

    **Arguments:**

    - `system`: what is unrolled.
    - `trajectory`: parameters by the number of updates that led to them.
    - `key`: a JAX random key.
    - `known`: rows by updates, as `report` got them.
    - `report`: called after each sweep, to keep it.
    - `settings`: of `nres.variance.sweep`.
    """
    rows = {}
    for update, theta in trajectory.items():
        if update in known:
            rows[update] = tuple(map(_read_row, known[update]))
            continue
        table: Sweep = sweep(system, theta, jax.random.fold_in(key, update), **settings)
        rows[update] = table.rows
        report(update, table.to_json())
    return rows


def _read_row(row: dict[str, Any]) -> Row:
    """A row as it was kept: what is no number was written as nothing."""
    values: dict[str, Any] = {k: math.nan if value is None else value for k, value in row.items()}
    return Row(**values)


def periods_figure(rows: Mapping[int, tuple[Row, ...]], title: str, path: Path) -> None:
    """Total variance against the period, a line for each of some parameters."""
    figure = Figure(figsize=(7.2, 4.4), layout="constrained")
    panel = figure.subplots()
    for (update, sweep_rows), colour in zip(rows.items(), _shades(len(rows)), strict=True):
        k = np.array([row.period for row in sweep_rows])
        v, low, high = (
            np.array([getattr(row, name) for row in sweep_rows])
            for name in ("variance", "low", "high")
        )
        panel.fill_between(k, low, high, color=colour, alpha=0.15, lw=0)
        panel.plot(k, v, "o-", ms=4, color=colour, label=f"{update:,}" if update else "start")
    panel.set(
        xlabel="period K: steps that share a noise",
        ylabel="total variance of one worker's estimate",
        xscale="log",
        title=title,
    )
    log_if_positive(panel)
    _plain_ticks(panel, sorted({row.period for some in rows.values() for row in some}))
    panel.grid(alpha=0.3)
    figure.legend(loc="outside right center", title="updates", frameon=False)
    save_drawing(figure, path)


def fulles_figure(rows: Mapping[int, tuple[Row, Row]], title: str, path: Path) -> None:
    """The variance of NRES and FullES at equal compute, at each of some parameters."""
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
        xlabel="updates of PES that led to the parameters",
        ylabel="total variance at equal compute",
        yscale="log",
        title=title,
    )
    panel.margins(y=0.12)
    panel.set_xticks(at, [f"{update:,}" for update in rows])
    panel.grid(alpha=0.3, axis="y")
    figure.legend(loc="outside right center", frameon=False)
    save_drawing(figure, path)


def advice_figure(advice: Advice, sequential: int, horizon: int, path: Path) -> None:
    """What an advice rests on: how much updates are worth, and what a step does to the loss."""
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    worth, loss = figure.subplots(1, 2)
    gains = advice.gains
    for (sigma, gain), colour in zip(gains.items(), _shades(len(gains)), strict=True):
        rows = [r for r in advice.table.where(sigma=sigma).rows if r.period == horizon]
        values = np.array([updates_worth(row, sequential, horizon, gain.harm) for row in rows])
        windows = np.array([row.window for row in rows])
        worth.plot(windows[values > 0], values[values > 0], "o-", ms=4, color=colour)
        loss.errorbar(
            sigma, gain.after, 2 * gain.stderr, fmt="o", color=colour, capsize=3, label=f"{sigma:g}"
        )
    before = next(iter(gains.values())).before
    loss.axhline(before, color="black", lw=0.8, ls=":", label="before")
    worth.axvline(advice.window, color="black", lw=0.8, ls="--")
    loss.axvline(advice.sigma, color="black", lw=0.8, ls="--")
    worth.set(
        xlabel="window W",
        ylabel="noise-free updates that the budget is worth",
        xscale="log",
        yscale="log",
        title="How much gradients are worth",
    )
    loss.set(
        xlabel="sigma",
        ylabel="loss",
        xscale="log",
        title="After a step of length sigma along the gradient",
    )
    for panel in (worth, loss):
        panel.grid(alpha=0.3)
    figure.legend(loc="outside right center", title="sigma", frameon=False)
    save_figure(figure, path)


def _shades(count: int) -> np.ndarray:
    """Colours in an order that the eye sees."""
    return colormaps["viridis"](np.linspace(0.9, 0, count))


def _plain_ticks(panel: Axes, values: list[int]) -> None:
    panel.set_xticks(values, [f"{value:,}" for value in values])
    panel.xaxis.minorticks_off()


def equal_compute(rows: tuple[Row, ...], horizon: int) -> tuple[Row, Row]:
    """The mean of T/W estimates of NRES, and one of FullES: as many steps."""
    (full,) = [row for row in rows if row.method == "FullES"]
    (nres,) = [row for row in rows if row.method == "NRES"]
    workers = math.ceil(horizon / nres.window)
    names = ("variance", "low", "high", "episode_variance")
    changed: dict[str, Any] = {name: getattr(nres, name) / workers for name in names}
    changed |= {"workers": workers, "total_steps": workers * nres.total_steps}
    return dataclasses.replace(nres, **changed), full
