"""Figures of measured variances, and of the advice that follows from them."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nres.figures.style import log_if_positive
from nres.files import save_drawing, save_figure
from nres.variance import Advice, Row, effective_updates


def periods_figure(rows: Mapping[int, tuple[Row, ...]], title: str, path: Path) -> None:
    """Draw the total variance against the noise-sharing period.

    Args:
        rows: Measurements, by the number of updates before them; each entry is one line.
        title: Title of the figure.
        path: File to write, without an ending: there will be a PNG and an SVG.
    """
    figure = Figure(figsize=(7.2, 4.4), layout="constrained")
    panel = figure.subplots()
    for (update, sweep_rows), colour in zip(rows.items(), _shades(len(rows)), strict=True):
        k = np.array([row.period for row in sweep_rows])
        v, low, high = (
            np.array([getattr(row, name) for row in sweep_rows])
            for name in ("variance", "low", "high")
        )
        panel.fill_between(k, low, high, color=colour, alpha=0.15, lw=0)
        panel.plot(
            k,
            v,
            "o-",
            ms=4,
            color=colour,
            label=f"after {update:,} updates" if update else "at the start",
        )
    panel.set(
        xlabel="period K: number of steps that share one noise sample",
        ylabel="total variance of one worker's estimate",
        xscale="log",
        title=title,
    )
    log_if_positive(panel)
    _plain_ticks(panel, sorted({row.period for some in rows.values() for row in some}))
    panel.grid(alpha=0.3)
    figure.legend(loc="outside right center", title="parameters", frameon=False)
    save_drawing(figure, path)


def advice_figure(advice: Advice, sequential: int, horizon: int, path: Path) -> None:
    """Draw the measurements behind a recommendation.

    Args:
        advice: The recommendation of `nres.variance.advise`.
        sequential: Number of sequential steps in the budget.
        horizon: Number of steps T of an episode.
        path: File to write, with an ending that matplotlib knows.
    """
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    effective, loss = figure.subplots(1, 2)
    gains = advice.gains
    for (sigma, gain), colour in zip(gains.items(), _shades(len(gains)), strict=True):
        rows = [r for r in advice.table.where(sigma=sigma).rows if r.period == horizon]
        values = np.array(
            [effective_updates(row, sequential, horizon, gain.relative_curvature) for row in rows]
        )
        windows = np.array([row.window for row in rows])
        effective.plot(windows[values > 0], values[values > 0], "o-", ms=4, color=colour)
        loss.errorbar(
            sigma,
            gain.after,
            2 * gain.stderr,
            fmt="o",
            color=colour,
            capsize=3,
            label=f"sigma = {sigma:g}",
        )
    before = next(iter(gains.values())).before
    loss.axhline(before, color="black", lw=0.8, ls=":", label="before the step")
    effective.axvline(advice.window, color="black", lw=0.8, ls="--", label="recommended")
    loss.axvline(advice.sigma, color="black", lw=0.8, ls="--")
    effective.set(
        xlabel="window W: number of steps per update",
        ylabel="equivalent number of noise-free updates",
        xscale="log",
        yscale="log",
        title="Effective updates within the budget",
    )
    loss.set(
        xlabel="sigma",
        ylabel="loss, ± 2 standard errors",
        xscale="log",
        title="Loss after one step of length sigma",
    )
    for panel in (effective, loss):
        panel.grid(alpha=0.3)
        panel.xaxis.set_major_formatter("{x:g}")
    effective.yaxis.set_major_formatter("{x:g}")
    figure.legend(loc="outside right center", frameon=False)
    save_figure(figure, path)


def _shades(count: int) -> np.ndarray:
    """Return colours from light to dark."""
    return colormaps["viridis"](np.linspace(0.9, 0, count))


def _plain_ticks(panel: Axes, values: list[int]) -> None:
    panel.set_xticks(values, [f"{value:,}" for value in values])
    panel.xaxis.minorticks_off()
