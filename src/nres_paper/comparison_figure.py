"""Figure of a comparison: learning curves, and times to any level relative to NRES."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from nres.figures import (
    COLOURS,
    DISPLAY_NAMES,
    line_style,
    log_if_positive,
    plain_numbers,
    save_drawing,
)
from nres.runs import AXES, curve, lower_median
from nres_paper.claims import Slower
from nres_paper.plans import Comparison
from nres_paper.ranking import REFERENCE, Ranking

# The number of levels at which methods are compared with NRES.
LEVELS = 60
# The ratio of the first and the last level from which their axis is logarithmic.
DECADES = 100


def draw_comparison(comparison: Comparison, ranking: Ranking, path: Path) -> None:
    """Draw a comparison as PNG and SVG. `path` has no suffix."""
    widths = [1.25, 1] if REFERENCE in ranking.runs else [1.25]
    figure = Figure(figsize=(12 * sum(widths) / 2.25, 4.6), layout="constrained")
    left, *right = figure.subplots(1, len(widths), width_ratios=widths, squeeze=False)[0]
    styles, scale = _styles(comparison), comparison.scale
    for name, runs in ranking.runs.items():
        if comparison.runs[name].asymptote:
            end = float(np.mean([run.values[len(run.values) * 3 // 4 :].mean() for run in runs]))
            style = styles[name] | {"ls": (0, (1, 1.5)), "lw": 1.4}
            left.axhline(end * scale, label=f"{name}, final value", **style)
            continue
        drawn = curve(runs, comparison.axis)
        # A logarithmic axis has no zero, so leave the start out.
        x, mean, low, high = (
            part[drawn.x > 0] for part in (drawn.x, drawn.mean, drawn.low, drawn.high)
        )
        left.plot(x, mean * scale, label=comparison.runs[name].label or name, **styles[name])
        left.fill_between(
            x, low * scale, high * scale, color=styles[name]["color"], alpha=0.15, lw=0
        )
    left.axhline(ranking.level * scale, color="black", lw=0.8, ls=":", label="level")
    left.set(xlabel=AXES[comparison.axis], ylabel=comparison.shown, xscale="log")
    left.xaxis.set_minor_formatter("")  # the labels would overlap
    if scale > 0:  # returns are not losses
        log_if_positive(left)
    if comparison.top is not None:
        least = min(run.least() for runs in ranking.runs.values() for run in runs)
        left.set_ylim(0.95 * least * scale, comparison.top)
    seeds = max(map(len, ranking.runs.values()))
    left.set_title(
        f"Running median of {comparison.smooth}" * (comparison.smooth > 1)
        + ". " * (comparison.smooth > 1 and seeds > 1)
        + "Band: range over seeds" * (seeds > 1),
        fontsize="medium",
    )
    for panel in right:
        _longer(comparison, ranking, styles, panel)
    for panel in figure.axes:
        panel.grid(alpha=0.3)
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False)
    save_drawing(figure, path)


def _longer(
    comparison: Comparison, ranking: Ranking, styles: dict[str, dict[str, Any]], panel: Axes
) -> None:
    """Draw the time of each run relative to NRES, for all levels that NRES reaches."""
    reference = ranking.runs[REFERENCE]
    best = max(run.least() for run in reference)
    start = lower_median([run.least(0.01) for run in reference])
    if comparison.top is not None:
        start = min(start, comparison.top)
    levels = np.geomspace(start, best, LEVELS) if best > 0 else np.linspace(start, best, LEVELS)
    for name, run in comparison.runs.items():
        if run.asymptote or name not in ranking.runs:
            continue
        at = [dataclasses.replace(ranking, level=float(level)).ratio(name) for level in levels]
        ratios = np.array([ratio if ratio < math.inf else math.nan for ratio in at])
        if np.isfinite(ratios).any():
            panel.set_yscale("log")
            panel.plot(levels * comparison.scale, ratios, **styles[name])
    said: dict[float, str] = {}  # of several claims at the same height, name the first
    for claim in comparison.claims:
        if isinstance(claim, Slower) and claim.factor > 1 and claim.axis is None:
            said.setdefault(claim.factor, claim.name)
    for paper, name in said.items():
        colour = styles[name]["color"]
        panel.axhline(paper, color=colour, lw=0.9, ls=":")
        panel.annotate(
            f"paper: {name} {paper:g}×",
            (0.01, paper),
            (0, 3),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            fontsize="small",
            color=colour,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.5},
        )
    if said and panel.get_yscale() == "log":
        top = panel.get_ylim()[1]
        panel.set_ylim(top=max(top, 1.5 * max(said)))  # for the annotation above the line
    panel.axvline(ranking.level * comparison.scale, color="black", lw=0.8, ls=":")
    unit = comparison.runs[REFERENCE].label or REFERENCE
    panel.set(
        xlabel=f"{comparison.shown} to reach (level)",
        ylabel=f"{AXES[comparison.axis]},\nrelative to {unit}",
    )
    if panel.get_yscale() == "log":
        plain_numbers(panel.yaxis, "×")
    panel.set_title("A line ends where a method never reaches the level", fontsize="medium")
    if best > 0 and start > DECADES * best:
        panel.set_xscale("log")
        panel.xaxis.set_minor_formatter("")  # the labels would overlap
    if comparison.scale > 0:
        panel.invert_xaxis()


def _styles(comparison: Comparison) -> dict[str, dict[str, Any]]:
    """Give runs the colour of their method, and variants dashes and ever lighter shades."""
    styles = {}
    variants: dict[str, list[str]] = {}
    for name, run in comparison.runs.items():
        method = DISPLAY_NAMES[run.method]
        styles[name] = line_style(method)
        if name not in COLOURS:
            variants.setdefault(method, []).append(name)
    for method, names in variants.items():
        for number, name in enumerate(names, start=1):
            white = 0.75 * number / (len(names) + 1)
            mixed = tuple(c + (1 - c) * white for c in to_rgb(COLOURS[method]))
            styles[name] |= {"color": mixed, "ls": (0, (2 + number, 1))}
    return styles
