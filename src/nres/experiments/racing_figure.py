"""A race as a picture: curves, and how many times longer the others take, to any level."""

import math
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from nres.experiments.claims import REFERENCE, Slower, Standings
from nres.experiments.races import Race
from nres.figures import COLOURS, DISPLAY_NAMES, line_style, log_if_positive, plain_numbers
from nres.files import save_drawing
from nres.runs.compare import AXES, curve, lower_median

# How many levels are looked at, of those that NRES passes.
LEVELS = 60


def race_figure(race: Race, standings: Standings, path: Path) -> None:
    """Draw a race; `path` has no ending."""
    figure = Figure(figsize=(12, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[1.25, 1])
    styles = _styles(race)
    for name, runs in standings.runs.items():
        if race.entrants[name].asymptote:
            end = float(np.mean([run.values[len(run.values) * 3 // 4 :].mean() for run in runs]))
            style = styles[name] | {"ls": (0, (1, 1.5)), "lw": 1.4}
            left.axhline(end * race.scale, label=f"{name}, at the end", **style)
            continue
        drawn = curve(runs, race.axis)
        # A logarithm knows no zero: the start itself is left out.
        x, mean, low, high = (
            part[drawn.x > 0] for part in (drawn.x, drawn.mean, drawn.low, drawn.high)
        )
        left.plot(x, mean * race.scale, label=race.entrants[name].label or name, **styles[name])
        left.fill_between(
            x, low * race.scale, high * race.scale, color=styles[name]["color"], alpha=0.15, lw=0
        )
    left.axhline(standings.level * race.scale, color="black", lw=0.8, ls=":", label="level")
    left.set(xlabel=AXES[race.axis], ylabel=race.shown, xscale="log")
    if race.scale > 0:  # returns are not losses
        log_if_positive(left)
    if race.top is not None:
        least = min(run.least() for runs in standings.runs.values() for run in runs)
        left.set_ylim(0.95 * least * race.scale, race.top)
    seeds = max(map(len, standings.runs.values()))
    left.set_title(
        f"running median of {race.smooth}" * (race.smooth > 1)
        + ", " * (race.smooth > 1 and seeds > 1)
        + "band: from the least seed to the largest" * (seeds > 1),
        fontsize="medium",
    )
    _longer(race, standings, styles, right)
    for panel in (left, right):
        panel.grid(alpha=0.3)
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False)
    save_drawing(figure, path)


def _longer(
    race: Race, standings: Standings, styles: dict[str, dict[str, Any]], panel: Axes
) -> None:
    """How many times longer than NRES, to all levels that it passes."""
    reference = standings.runs[REFERENCE]
    best = max(run.least() for run in reference)
    start = lower_median([run.least(0.01) for run in reference])
    if race.top is not None:
        start = min(start, race.top)
    levels = np.geomspace(start, best, LEVELS) if best > 0 else np.linspace(start, best, LEVELS)
    for name, entrant in race.entrants.items():
        if entrant.asymptote:
            continue
        at = [Standings(standings.runs, float(level), race.axis).ratio(name) for level in levels]
        ratios = np.array([ratio if ratio < math.inf else math.nan for ratio in at])
        if np.isfinite(ratios).any():
            panel.set_yscale("log")
            panel.plot(levels * race.scale, ratios, **styles[name])
    said: dict[float, str] = {}  # of several at the same height, the first is named
    for claim in race.claims:
        if isinstance(claim, Slower) and claim.paper > 1:
            said.setdefault(claim.paper, claim.name)
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
    panel.axvline(standings.level * race.scale, color="black", lw=0.8, ls=":")
    panel.set(
        xlabel=f"{race.shown} to reach",
        ylabel=f"{AXES[race.axis]},\nin those of {race.entrants[REFERENCE].label or REFERENCE}",
    )
    if panel.get_yscale() == "log":
        plain_numbers(panel.yaxis, "×")
    panel.set_title("a line ends where a method never gets there", fontsize="medium")
    if race.scale > 0:
        panel.invert_xaxis()


def _styles(race: Race) -> dict[str, dict[str, Any]]:
    """The colour of the method; variants of one method dashed, in lighter and lighter shades."""
    styles = {}
    variants: dict[str, list[str]] = {}
    for name, entrant in race.entrants.items():
        method = DISPLAY_NAMES[entrant.method]
        styles[name] = line_style(method)
        if name not in COLOURS:
            variants.setdefault(method, []).append(name)
    for method, names in variants.items():
        for number, name in enumerate(names, start=1):
            white = 0.75 * number / (len(names) + 1)
            mixed = tuple(c + (1 - c) * white for c in to_rgb(COLOURS[method]))
            styles[name] |= {"color": mixed, "ls": (0, (2 + number, 1))}
    return styles
