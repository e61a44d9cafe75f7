"""Comparison of runs: curves over seeds, and the cost at which each method reaches a level."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nres.history import AXES
from nres.runs.folder import Run, RunError
from nres.runs.metrics import read_entries

# The file in the folder of a comparison that holds its summary.
COMPARISON_FILE = "comparison.json"


@dataclasses.dataclass(frozen=True)
class Evaluations:
    """Evaluations of a run, and their positions on each of `AXES`; smaller values are better."""

    at: Mapping[str, np.ndarray]
    values: np.ndarray

    @classmethod
    def of(cls, run: Run) -> "Evaluations":
        """Read the evaluations of a run: the first metric that its system reports."""
        return cls.read(evaluated(run))

    @classmethod
    def read(cls, entries: Sequence[Mapping[str, Any]]) -> "Evaluations":
        """Read entries with all of `AXES` and a `value`; `None` counts as infinite."""
        values = [math.inf if entry["value"] is None else entry["value"] for entry in entries]
        at = {axis: np.array([entry[axis] for entry in entries], float) for axis in AXES}
        return cls(at, np.array(values, float))

    def smoothed(self, over: int) -> "Evaluations":
        """Smooth the values with a running median, which is robust against single outliers.

        The first evaluation, of the initial parameters, stays as it is and enters no median.
        """
        later = self.values[1:]
        last = max(0, len(later) - over)
        firsts = (min(max(0, i - over // 2), last) for i in range(len(later)))
        medians = [np.median(later[first : first + over]) for first in firsts]
        return Evaluations(self.at, np.array([*self.values[:1], *medians]))

    def least(self, share: float = 1.0) -> float:
        """Return the smallest value in the first `share` of the updates."""
        x = self.at["update"]
        return float(self.values[x <= x[0] + (x[-1] - x[0]) * share].min())

    def first(self, level: float, axis: str) -> float:
        """Return the position of the first value at or below a level; infinite if there is none."""
        there = self.values <= level
        return float(self.at[axis][there][0]) if there.any() else math.inf


@dataclasses.dataclass(frozen=True)
class Curve:
    """Mean, minimum and maximum over several seeds, as a curve."""

    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def evaluated(run: Run) -> list[dict[str, Any]]:
    """Return the evaluations of a run as entries with all of `AXES` and the `value` to compare."""
    entries = read_entries(run.metrics_file)
    name = _headline(run, entries)
    return [
        {axis: entry[axis] for axis in AXES} | {"value": entry[name]}
        for entry in entries
        if name in entry
    ]


def headline(run: Run) -> str:
    """Return the column that is compared: the first metric that the system reports."""
    return _headline(run, read_entries(run.metrics_file))


def _headline(run: Run, entries: Sequence[dict[str, Any]]) -> str:
    for entry in entries:
        for name in entry:
            if name.startswith("eval/"):
                return name
    raise RunError(f"{run.path} has no evaluation yet: resume it, or leave it out.")


def curve(seeds: Sequence[Evaluations], axis: str) -> Curve:
    """Average the evaluations of runs that differ only in their seed, along one of `AXES`.

    The evaluations are interpolated linearly to common points, up to where the shortest run ends.
    """
    points = [(one.at[axis], one.values) for one in seeds]
    end = min(x[-1] for x, _ in points)
    begin = max(x[0] for x, _ in points)
    longest = max((x for x, _ in points), key=len)
    grid = np.unique(np.clip(longest, begin, end))
    values = np.stack([np.interp(grid, x, y) for x, y in points])
    return Curve(grid, values.mean(axis=0), values.min(axis=0), values.max(axis=0))


def curves(methods: Mapping[str, Sequence[Evaluations]]) -> dict[str, dict[str, Curve]]:
    """Return the curves of all methods over all axes."""
    return {name: {axis: curve(seeds, axis) for axis in AXES} for name, seeds in methods.items()}


def early_level(seeds: Sequence[Evaluations], share: float = 0.5) -> float:
    """Return the best level that every run reaches in the first `share` of its updates."""
    return max(one.least(share) for one in seeds)


def lower_median(values: Sequence[float]) -> float:
    """Return the median; of an even number of values, the lower of the two in the middle."""
    return float(np.sort(values)[(len(values) - 1) // 2])


def times_to_level(
    methods: Mapping[str, Sequence[Evaluations]], level: float
) -> dict[str, dict[str, float]]:
    """Return the position on each axis at which each method first reaches a level.

    The position is the median over seeds; infinite if most seeds never reach the level.
    """
    return {
        name: {axis: lower_median([one.first(level, axis) for one in seeds]) for axis in AXES}
        for name, seeds in methods.items()
    }


def relative_times(
    times: Mapping[str, Mapping[str, float]], reference: str
) -> dict[str, dict[str, float | None]]:
    """Return the times of `times_to_level` as multiples of those of a reference.

    A multiple is `None` if the reference never reaches the level, or reaches it at once.
    """
    base = times[reference]
    return {
        name: {
            axis: x / base[axis] if 0 < base[axis] < math.inf else None for axis, x in own.items()
        }
        for name, own in times.items()
    }
