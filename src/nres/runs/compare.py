"""Several runs side by side: curves over seeds, and how much longer a method takes than another."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nres.runs.folder import Run, RunError
from nres.runs.metrics import read_entries

# What a run is measured against: the columns of its metrics, and what they are called.
AXES: Mapping[str, str] = {
    "update": "updates",
    "sequential_steps": "sequential unroll steps",
    "total_steps": "total unroll steps",
    "seconds": "seconds of training",
}


@dataclasses.dataclass(frozen=True)
class Evaluations:
    """What the evaluations of a run found, less being better, and where on each of `AXES`."""

    at: Mapping[str, np.ndarray]
    values: np.ndarray

    @classmethod
    def of(cls, run: Run) -> "Evaluations":
        """Those of a run: of what its system reports, the first."""
        return cls.read(evaluated(run))

    @classmethod
    def read(cls, entries: Sequence[Mapping[str, Any]]) -> "Evaluations":
        """From entries with all of `AXES` and a `value`: not finite is worse than anything."""
        values = [math.inf if entry["value"] is None else entry["value"] for entry in entries]
        at = {axis: np.array([entry[axis] for entry in entries], float) for axis in AXES}
        return cls(at, np.array(values, float))

    def smoothed(self, over: int) -> "Evaluations":
        """With a running median, which one lucky evaluation does not move.

        The first evaluation is that of the start: it stays, and is no part of what follows.
        """
        later = self.values[1:]
        last = max(0, len(later) - over)
        firsts = (min(max(0, i - over // 2), last) for i in range(len(later)))
        medians = [np.median(later[first : first + over]) for first in firsts]
        return Evaluations(self.at, np.array([*self.values[:1], *medians]))

    def least(self, share: float = 1.0) -> float:
        """The least value in the first part of the updates."""
        x = self.at["update"]
        return float(self.values[x <= x[0] + (x[-1] - x[0]) * share].min())

    def first(self, level: float, axis: str) -> float:
        """Where a level is first reached; infinite if it never is."""
        there = self.values <= level
        return float(self.at[axis][there][0]) if there.any() else math.inf


@dataclasses.dataclass(frozen=True)
class Curve:
    """A measurement over several seeds: its mean, and the least and largest of them."""

    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def evaluated(run: Run) -> list[dict[str, Any]]:
    """The evaluations of a run: where on each of `AXES`, and the `value` that is compared."""
    entries = read_entries(run.metrics_file)
    name = _headline(run, entries)
    return [
        {axis: entry[axis] for axis in AXES} | {"value": entry[name]}
        for entry in entries
        if name in entry
    ]


def headline(run: Run) -> str:
    """The evaluation that is compared: the first one a system reports."""
    return _headline(run, read_entries(run.metrics_file))


def _headline(run: Run, entries: Sequence[dict[str, Any]]) -> str:
    for entry in entries:
        for name in entry:
            if name.startswith("eval/"):
                return name
    raise RunError(f"{run.path} has not been evaluated yet.")


def curve(seeds: Sequence[Evaluations], axis: str) -> Curve:
    """The evaluations of runs that differ in their seed, over one of `AXES`.

    Seeds are brought to the same points by linear interpolation, as far as all of them got.
    """
    points = [(one.at[axis], one.values) for one in seeds]
    end = min(x[-1] for x, _ in points)
    begin = max(x[0] for x, _ in points)
    longest = max((x for x, _ in points), key=len)
    grid = np.unique(np.clip(longest, begin, end))
    values = np.stack([np.interp(grid, x, y) for x, y in points])
    return Curve(grid, values.mean(axis=0), values.min(axis=0), values.max(axis=0))


def curves(methods: Mapping[str, Sequence[Evaluations]]) -> dict[str, dict[str, Curve]]:
    """All methods over all axes."""
    return {name: {axis: curve(seeds, axis) for axis in AXES} for name, seeds in methods.items()}


def early_level(seeds: Sequence[Evaluations], share: float = 0.5) -> float:
    """A level that every one of the runs reaches in the first part of its updates."""
    return max(one.least(share) for one in seeds)


def lower_median(values: Sequence[float]) -> float:
    """Of an even number the lower one in the middle: infinite only if most are."""
    return float(np.sort(values)[(len(values) - 1) // 2])


def times_to_level(
    methods: Mapping[str, Sequence[Evaluations]], level: float
) -> dict[str, dict[str, float]]:
    """Where on each axis each method first reaches a level: the median over seeds.

    Infinite where most never do.
    """
    return {
        name: {axis: lower_median([one.first(level, axis) for one in seeds]) for axis in AXES}
        for name, seeds in methods.items()
    }
