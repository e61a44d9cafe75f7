"""Figure of the training times of the applications, in the paper and here."""

import dataclasses
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from nres.figures import COLOURS, save_drawing
from nres.runs import SettingsError
from nres_paper.comparing import FinishedRun, place, planned, read_runs
from nres_paper.comparisons import COMPARISONS
from nres_paper.grades import FAILS, HOLDS, NOT_RUN, Check
from nres_paper.reproduction import Context, PaperFigure, Result, metadata_of


@dataclasses.dataclass(frozen=True)
class _Timing:
    """Seconds that the paper reports for a task, and the corresponding runs here."""

    label: str
    comparison: str
    paper: float
    on: str
    methods: tuple[str, ...]


# The paper gives upper bounds: for the convergence of NRES on a GPU, and for training with all
# evolution strategies on CPUs.
_TIMINGS = (
    _Timing("Lorenz, NRES", "lorenz-es-gpu", 150, "RTX 3090", ("NRES",)),
    _Timing("learned optimizer, NRES", "lopt-es", 2500, "RTX 3090", ("NRES",)),
    _Timing("Swimmer, all methods", "swimmer", 2 * 3600, "CPU", ("NRES", "PES", "TES", "FullES")),
    _Timing(
        "HalfCheetah, all methods",
        "halfcheetah",
        10 * 3600,
        "CPU",
        ("NRES", "PES, 30,000 updates", "TES", "FullES"),
    ),
)


@dataclasses.dataclass(frozen=True)
class _Timed:
    """Seconds, steps and devices of the runs behind a timing."""

    seconds: float
    steps: str
    on: str


def _make(context: Context) -> Result:
    found: dict[str, _Timed] = {}
    used: list[FinishedRun] = []
    for timing in _TIMINGS:
        runs = read_runs(context.folder.parent / timing.comparison / "metrics.jsonl")
        timed = [run for run in runs if run.name in timing.methods]
        if {run.name for run in timed} == set(timing.methods):
            found[timing.label] = _timed(timed, timing)
            used += timed
    if not used:
        names = ", ".join(timing.comparison for timing in _TIMINGS)
        raise SettingsError(
            f"there are no results in {context.folder.parent}: make those of {names} with "
            "`nres reproduce ID`."
        )
    _draw(found, context)
    checks = tuple(_check(timing, found.get(timing.label)) for timing in _TIMINGS)
    numbers = {label: dataclasses.asdict(timed) for label, timed in found.items()}
    seeds = len({run.settings.seed for run in used})
    return Result(checks, numbers, seeds=seeds, **metadata_of(used))


def _check(timing: _Timing, timed: _Timed | None) -> Check:
    paper = f"< {timing.paper:,.0f} s ({timing.on})"
    if timed is None:
        return Check(timing.label, paper, NOT_RUN, NOT_RUN)
    text = f"{_said(timed.seconds)} ({timed.on}; {timed.steps})"
    return Check(timing.label, paper, text, HOLDS if timed.seconds < timing.paper else FAILS)


def _timed(runs: list[FinishedRun], timing: _Timing) -> _Timed:
    """Sum the times of the methods, each averaged over seeds, for the paper's updates.

    Those of runs that made fewer updates are scaled.
    """
    planned = COMPARISONS[timing.comparison].runs
    totals = dict.fromkeys(("seconds", "total_steps", "sequential_steps"), 0.0)
    scaled = []
    for method in timing.methods:
        most = planned[method].budget or planned[method].updates
        last = [
            [entry for entry in run.entries if entry["update"] <= most][-1]
            for run in runs
            if run.name == method
        ]
        made = min(entry["update"] for entry in last)
        if most > made:
            scaled.append(f"{method} scaled from {made:,} to {most:,} updates")
        for axis in totals:
            needed = [entry[axis] * most / entry["update"] for entry in last]
            totals[axis] += float(np.mean(needed))
    steps = f"{totals['total_steps']:.2e} total, {totals['sequential_steps']:.2e} sequential steps"
    return _Timed(totals["seconds"], "; ".join([steps, *scaled]), _places(runs))


def _places(runs: list[FinishedRun]) -> str:
    names = sorted({place(run.device) for run in runs})
    unit = " CPU core"
    if len(names) > 1 and all(unit in name for name in names):
        return " or ".join(name.split(unit)[0] for name in names) + f"{unit}s"
    return " or ".join(names)


def _said(seconds: float) -> str:
    return f"{seconds:,.0f} s" if seconds >= 100 else f"{seconds:.3g} s"


def _draw(found: dict[str, _Timed], context: Context) -> None:
    figure = Figure(figsize=(10.5, 3.6), layout="constrained")
    panel = figure.subplots()
    timings = [timing for timing in _TIMINGS if timing.label in found]
    at = np.arange(len(timings))[::-1]
    theirs = [timing.paper for timing in timings]
    ours = [found[timing.label].seconds for timing in timings]
    panel.hlines(at, ours, theirs, color="#bbbbbb", lw=2, zorder=1)
    panel.plot(theirs, at, "o", color="#777777", ms=9, label="paper (upper bound)")
    panel.plot(ours, at, "o", color=COLOURS["NRES"], ms=9, label="nres (mean over seeds)")
    for y, timing, seconds in zip(at, timings, ours, strict=True):
        for x, text, side, shift in (
            (timing.paper, f"< {_said(timing.paper)}, {timing.on}", "left", -10),
            (seconds, f"{_said(seconds)}, {found[timing.label].on}", "right", 10),
        ):
            panel.annotate(text, (x, y), (shift, 8), textcoords="offset points", ha=side)
    panel.set_yticks(at, [timing.label for timing in timings])
    panel.set(xscale="log", xlabel="seconds of training", ylim=(-0.5, len(timings) - 0.3))
    low, high = panel.get_xlim()
    panel.set_xlim(low / 50, high * 50)
    panel.grid(alpha=0.3, axis="x")
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    save_drawing(figure, context.drawing)


def _settings(timing: _Timing) -> list[Any]:
    comparison = COMPARISONS[timing.comparison]
    names = timing.methods
    return [planned(comparison, name, comparison.seeds[0]).to_json() for name in names]


WALL_CLOCK = PaperFigure(
    'the section "Computation resources"',
    "NRES converges in less than 150 seconds on Lorenz and 2,500 seconds on learned optimizers, "
    "with an RTX 3090; training with all methods takes less than 2 hours on Swimmer and 10 hours "
    "on HalfCheetah.",
    "gpu",
    _make,
    lambda: [[*dataclasses.astuple(timing), _settings(timing)] for timing in _TIMINGS],
)
