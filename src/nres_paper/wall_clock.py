"""Figure of the training times of the applications, in the paper and here."""

import dataclasses

import numpy as np
from matplotlib.figure import Figure

from nres.figures import COLOURS, save_drawing
from nres.runs import SettingsError
from nres_paper.claims import Check
from nres_paper.comparing import FinishedRun, read_runs
from nres_paper.reproduction import Context, PaperFigure, Result, metadata_of, place


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
_ES = ("NRES", "PES", "TES", "FullES")
_TIMINGS = (
    _Timing("Lorenz, NRES", "lorenz-es", 150, "RTX 3090", ("NRES",)),
    _Timing("learned optimizer, NRES", "lopt-es", 2500, "RTX 3090", ("NRES",)),
    _Timing("Swimmer, all four methods", "swimmer", 2 * 3600, "CPU", _ES),
    _Timing("HalfCheetah, all four methods", "halfcheetah", 10 * 3600, "CPU", _ES),
)


def _make(context: Context) -> Result:
    found: dict[str, tuple[float, str]] = {}
    used: list[FinishedRun] = []
    seeds = 0
    for timing in _TIMINGS:
        runs = read_runs(context.folder.parent / timing.comparison / "metrics.jsonl")
        if not {run.name for run in runs} >= set(timing.methods):
            raise SettingsError(
                f"there are no complete results of {timing.comparison} in {context.folder.parent}: "
                f"make them with `nres reproduce {timing.comparison}`."
            )
        timed = [run for run in runs if run.name in timing.methods]
        found[timing.label] = (_seconds(timed, timing.methods), _places(timed))
        used += timed
        seeds = max(seeds, len({run.settings.seed for run in timed}))
    _draw(found, context)
    checks = tuple(
        Check(
            timing.label,
            f"< {timing.paper:,.0f} s ({timing.on})",
            f"{_said(found[timing.label][0])} ({found[timing.label][1]})",
            "holds" if found[timing.label][0] < timing.paper else "fails",
        )
        for timing in _TIMINGS
    )
    numbers = {label: {"seconds": seconds, "on": on} for label, (seconds, on) in found.items()}
    return Result(checks, numbers, seeds=seeds, **metadata_of(used))


def _seconds(runs: list[FinishedRun], methods: tuple[str, ...]) -> float:
    """Sum the training times of the methods, each averaged over seeds."""
    total = 0.0
    for method in methods:
        ends = [r.entries[-1]["seconds"] for r in runs if r.name == method]
        total += float(np.mean(ends))
    return total


def _places(runs: list[FinishedRun]) -> str:
    names = sorted({place(run.device) for run in runs})
    unit = " CPU cores"
    if all(name.endswith(unit) for name in names):
        return " or ".join(name.removesuffix(unit) for name in names) + unit
    return " or ".join(names)


def _said(seconds: float) -> str:
    return f"{seconds:,.0f} s" if seconds >= 100 else f"{seconds:.3g} s"


def _draw(found: dict[str, tuple[float, str]], context: Context) -> None:
    figure = Figure(figsize=(10.5, 3.6), layout="constrained")
    panel = figure.subplots()
    at = np.arange(len(_TIMINGS))[::-1]
    theirs = [timing.paper for timing in _TIMINGS]
    ours = [found[timing.label][0] for timing in _TIMINGS]
    panel.hlines(at, ours, theirs, color="#bbbbbb", lw=2, zorder=1)
    panel.plot(theirs, at, "o", color="#777777", ms=9, label="paper (upper bound)")
    panel.plot(ours, at, "o", color=COLOURS["NRES"], ms=9, label="nres (mean over seeds)")
    for y, timing, seconds in zip(at, _TIMINGS, ours, strict=True):
        for x, text, side, shift in (
            (timing.paper, f"< {_said(timing.paper)}, {timing.on}", "left", -10),
            (seconds, f"{_said(seconds)}, {found[timing.label][1]}", "right", 10),
        ):
            panel.annotate(text, (x, y), (shift, 8), textcoords="offset points", ha=side)
    panel.set_yticks(at, [timing.label for timing in _TIMINGS])
    panel.set(xscale="log", xlabel="seconds of training", ylim=(-0.5, len(_TIMINGS) - 0.3))
    low, high = panel.get_xlim()
    panel.set_xlim(low / 50, high * 50)
    panel.grid(alpha=0.3, axis="x")
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    save_drawing(figure, context.drawing)


WALL_CLOCK = PaperFigure(
    'the section "Computation resources"',
    "NRES converges in less than 150 seconds on Lorenz and 2,500 seconds on learned optimizers, "
    "with an RTX 3090; training with all methods takes less than 2 hours on Swimmer and 10 hours "
    "on HalfCheetah.",
    "gpu",
    _make,
    lambda: [dataclasses.astuple(timing) for timing in _TIMINGS],
)
