"""How long the paper's applications take, theirs and ours: drawn from the results of the races."""

import dataclasses

import numpy as np
from matplotlib.figure import Figure

from nres.experiments.claims import Check
from nres.experiments.exhibits import Exhibit, Findings, Work, facts_of, place
from nres.experiments.racing import Record, read_records
from nres.figures import COLOURS
from nres.files import save_drawing
from nres.runs import SettingsError


@dataclasses.dataclass(frozen=True)
class _Task:
    """What the paper says how long it takes, in seconds, and what of ours is the same."""

    label: str
    race: str
    paper: float
    on: str
    methods: tuple[str, ...]


# The paper gives bounds: NRES converges in less than these on a GPU; all methods are trained in
# less than these on processors.
_ES = ("NRES", "PES", "TES", "FullES")
_TASKS = (
    _Task("Lorenz, NRES", "lorenz-es", 150, "RTX 3090", ("NRES",)),
    _Task("learned optimizer, NRES", "lopt-es", 2500, "RTX 3090", ("NRES",)),
    _Task("Swimmer, all four methods", "swimmer", 2 * 3600, "processors", _ES),
    _Task("HalfCheetah, all four methods", "halfcheetah", 10 * 3600, "processors", _ES),
)


def _make(work: Work) -> Findings:
    found: dict[str, tuple[float, str]] = {}
    used: list[Record] = []
    seeds = 0
    for task in _TASKS:
        records = read_records(work.folder.parent / task.race / "metrics.jsonl")
        if not {record.entrant for record in records} >= set(task.methods):
            raise SettingsError(
                f"there are no results of {task.race}, or not all, in {work.folder.parent}: "
                f"`nres reproduce {task.race}` makes them."
            )
        mine = [record for record in records if record.entrant in task.methods]
        found[task.label] = (_seconds(mine, task.methods), _places(mine))
        used += mine
        seeds = max(seeds, len({record.settings.seed for record in mine}))
    _draw(found, work)
    checks = tuple(
        Check(
            task.label,
            f"< {task.paper:,.0f} s ({task.on})",
            f"{_said(found[task.label][0])} ({found[task.label][1]})",
            "holds" if found[task.label][0] < task.paper else "fails",
        )
        for task in _TASKS
    )
    numbers = {label: {"seconds": seconds, "on": on} for label, (seconds, on) in found.items()}
    return Findings(checks, numbers, seeds=seeds, **facts_of(used))


def _seconds(records: list[Record], methods: tuple[str, ...]) -> float:
    """Of all methods one after another, to the end of their runs: the mean over seeds."""
    total = 0.0
    for method in methods:
        ends = [r.entries[-1]["seconds"] for r in records if r.entrant == method]
        total += float(np.mean(ends))
    return total


def _places(records: list[Record]) -> str:
    names = sorted({place(record.device) for record in records})
    unit = " processors"
    if all(name.endswith(unit) for name in names):
        return " or ".join(name.removesuffix(unit) for name in names) + unit
    return " or ".join(names)


def _said(seconds: float) -> str:
    return f"{seconds:,.0f} s" if seconds >= 100 else f"{seconds:.3g} s"


def _draw(found: dict[str, tuple[float, str]], work: Work) -> None:
    figure = Figure(figsize=(10.5, 3.6), layout="constrained")
    panel = figure.subplots()
    at = np.arange(len(_TASKS))[::-1]
    theirs, ours = [task.paper for task in _TASKS], [found[task.label][0] for task in _TASKS]
    panel.hlines(at, ours, theirs, color="#bbbbbb", lw=2, zorder=1)
    panel.plot(theirs, at, "o", color="#777777", ms=9, label="the paper, at most")
    panel.plot(ours, at, "o", color=COLOURS["NRES"], ms=9, label="nres, mean over seeds")
    for y, task, seconds in zip(at, _TASKS, ours, strict=True):
        for x, text, side, shift in (
            (task.paper, f"< {_said(task.paper)}, {task.on}", "left", -10),
            (seconds, f"{_said(seconds)}, {found[task.label][1]}", "right", 10),
        ):
            panel.annotate(text, (x, y), (shift, 8), textcoords="offset points", ha=side)
    panel.set_yticks(at, [task.label for task in _TASKS])
    panel.set(xscale="log", xlabel="seconds of training", ylim=(-0.5, len(_TASKS) - 0.3))
    low, high = panel.get_xlim()
    panel.set_xlim(low / 50, high * 50)
    panel.grid(alpha=0.3, axis="x")
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    save_drawing(figure, work.drawing)


WALL_CLOCK = Exhibit(
    "Computation resources",
    "Lorenz and learned optimizers converge in less than 150 and 2,500 seconds on an RTX 3090; "
    "Swimmer and HalfCheetah train in less than 2 and 10 hours.",
    "gpu",
    _make,
)
