"""Table of the steps of NRES with the paper's settings, with the defaults and with `--auto`."""

import dataclasses
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from nres.figures import plain_numbers, save_drawing
from nres.runs import SettingsError
from nres_paper.claims import NoSlower, all_checks, paired_ratio
from nres_paper.comparing import FinishedRun, planned, rank, read_runs
from nres_paper.default_comparisons import AUTO, DEFAULT_COMPARISONS, NEW
from nres_paper.grades import SHOWN, Check, counted, mean
from nres_paper.ranking import Ranking
from nres_paper.reproduction import Context, PaperFigure, Result, metadata_of

_AXES = ("total_steps", "sequential_steps")
_COLOURS = {NEW: "#1f77b4", AUTO: "#d62728"}


def _make(context: Context) -> Result:
    rankings: dict[str, Ranking] = {}
    used: list[FinishedRun] = []
    for name, comparison in DEFAULT_COMPARISONS.items():
        runs = read_runs(context.folder.parent / name / "metrics.jsonl")
        if runs:
            rankings[name] = rank(comparison, runs)
            used += runs
    if not used:
        raise SettingsError(
            f"there are no results in {context.folder.parent}: make those of "
            f"{', '.join(DEFAULT_COMPARISONS)} with `nres reproduce ID`."
        )
    _draw(rankings, context)
    checks = tuple(check for name in DEFAULT_COMPARISONS for check in _checks(name, rankings))
    numbers = {
        name: {run: ranking.to_json(run) for run in ranking.runs}
        for name, ranking in rankings.items()
    }
    seeds = len({run.settings.seed for run in used})
    return Result(checks, numbers, seeds=seeds, **metadata_of(used))


def _checks(name: str, rankings: dict[str, Ranking]) -> list[Check]:
    """Return the mean steps of each run until the level, then the claims about them."""
    comparison = DEFAULT_COMPARISONS[name]
    ranking = rankings.get(name, Ranking({}, comparison.level, comparison.axis))
    found = [
        Check(f"{run}, {counted(axis)}", "", mean(ranking.reached(run, axis)), SHOWN)
        for axis in _AXES
        for run in ranking.runs
    ]
    found += all_checks(comparison.claims, ranking)
    task = comparison.system
    return [dataclasses.replace(check, about=f"{task}: {check.about}") for check in found]


def _draw(rankings: dict[str, Ranking], context: Context) -> None:
    """Draw the ratios to the paper's settings with their intervals, and the aims."""
    figure = Figure(figsize=(9.5, 3.8), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for panel, axis in zip(panels, _AXES, strict=True):
        for at, (name, ranking) in enumerate(rankings.items()):
            claims = [c for c in DEFAULT_COMPARISONS[name].claims if isinstance(c, NoSlower)]
            for claim in (c for c in claims if c.axis == axis and {*c.names} <= {*ranking.runs}):
                known = {run: ranking.at_least(run, axis) for run in claim.names}
                ratio, colour = paired_ratio(ranking, known, *claim.names), _COLOURS[claim.name]
                y = -at - 0.15 + 0.3 * (claim.name == NEW)
                panel.plot([claim.factor], [y], "|", color="#777777", ms=12)
                # Where some seeds never arrive, the ratio is a bound; with both, it says nothing.
                less, more = (ranking.arrived(n) < len(ranking.runs[n]) for n in claim.names)
                if less and more:
                    continue
                if ratio.seeds > 1:
                    panel.plot([ratio.low, ratio.high], [y, y], color=colour, lw=1.5)
                mark = ">" if less else "<" if more else "o"
                panel.plot([ratio.middle], [y], mark, color=colour)
        panel.axvline(1, color="#bbbbbb", lw=1, zorder=0)
        panel.set(xscale="log", xlabel=f"{counted(axis)}, relative to the paper's settings")
        plain_numbers(panel.xaxis, "×")
        panel.grid(alpha=0.3, axis="x")
    tasks = [DEFAULT_COMPARISONS[name].system for name in rankings]
    panels[0].set_yticks(-np.arange(len(tasks)), tasks)
    panels[0].set_ylim(0.5 - len(tasks), 0.5)
    for name, colour in _COLOURS.items():
        panels[0].plot([], [], "o-", color=colour, label=name)
    grey: dict[str, Any] = {"color": "#777777", "ls": "none"}
    panels[0].plot([], [], "|", ms=12, label="aim", **grey)
    panels[0].plot([], [], ">", label="bound: some seeds never arrive", **grey)
    figure.legend(loc="outside lower center", ncols=4, frameon=False)
    save_drawing(figure, context.drawing)


def _plan() -> Any:
    return [
        planned(comparison, run, comparison.seeds[0]).to_json()
        for comparison in DEFAULT_COMPARISONS.values()
        for run in comparison.runs
    ]


DEFAULTS = PaperFigure(
    "",
    "The aim is that the defaults of this library need fewer steps than the paper's settings, and "
    "that settings which trials choose need hardly more than tuned ones.",
    "gpu",
    _make,
    _plan,
)
