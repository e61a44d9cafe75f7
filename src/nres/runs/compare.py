"""Several runs side by side: curves over seeds, and how much longer a method takes than another."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nres.runs.folder import Run, RunError
from nres.runs.metrics import read_lines

# What a run is measured against: the columns of its metrics, and what they are called.
AXES: Mapping[str, str] = {
    "update": "updates",
    "sequential_steps": "sequential unroll steps",
    "total_steps": "total unroll steps",
    "seconds": "seconds of training",
}


@dataclasses.dataclass(frozen=True)
class Curve:
    """A measurement over several seeds: its mean, and the least and largest of them."""

    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def headline(run: Run) -> str:
    """The evaluation that is compared: the first one a system reports."""
    return _headline(run, read_lines(run.metrics_file))


def _headline(run: Run, entries: Sequence[dict[str, Any]]) -> str:
    for entry in entries:
        for name in entry:
            if name.startswith("eval/"):
                return name
    raise RunError(f"{run.path} has not been evaluated yet.")


def evaluations(run: Run, axis: str) -> tuple[np.ndarray, np.ndarray]:
    """Where on one of `AXES` a run was evaluated, and with what result."""
    entries = read_lines(run.metrics_file)
    name = _headline(run, entries)
    made = [entry for entry in entries if name in entry]
    # Not finite is worse than anything.
    y = [math.inf if entry[name] is None else entry[name] for entry in made]
    return np.array([entry[axis] for entry in made], float), np.array(y, float)


def curve(runs: Sequence[Run], axis: str) -> Curve:
    """The evaluations of runs that differ in their seed, over one of `AXES`.

    Seeds are brought to the same points by linear interpolation, as far as all of them got.
    """
    points = [evaluations(run, axis) for run in runs]
    end = min(x[-1] for x, _ in points)
    begin = max(x[0] for x, _ in points)
    longest = max((x for x, _ in points), key=len)
    grid = np.unique(np.clip(longest, begin, end))
    values = np.stack([np.interp(grid, x, y) for x, y in points])
    return Curve(grid, values.mean(axis=0), values.min(axis=0), values.max(axis=0))


def curves(runs: Mapping[str, Sequence[Run]]) -> dict[str, dict[str, Curve]]:
    """All methods over all axes."""
    return {method: {axis: curve(group, axis) for axis in AXES} for method, group in runs.items()}


def early_level(runs: Sequence[Run]) -> float:
    """A level that every one of the runs reaches in the first half of its updates."""
    levels = []
    for run in runs:
        x, y = evaluations(run, "update")
        levels.append(y[x <= x[0] + (x[-1] - x[0]) / 2].min())
    return float(max(levels))


def reached(runs: Sequence[Run], level: float, axis: str) -> float:
    """Where a level is first reached: the (lower) median over seeds; infinite if most never do."""
    first = []
    for run in runs:
        x, y = evaluations(run, axis)
        first.append(x[y <= level][0] if (y <= level).any() else math.inf)
    return float(np.sort(first)[(len(first) - 1) // 2])


def times_to_level(runs: Mapping[str, Sequence[Run]], level: float) -> dict[str, dict[str, float]]:
    """Where on each axis each method first reaches a level; infinite where it never does."""
    return {
        method: {axis: reached(group, level, axis) for axis in AXES}
        for method, group in runs.items()
    }
