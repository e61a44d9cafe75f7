"""Several runs side by side: curves over seeds, and how much longer a method takes than another."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

from nres.runs.folder import Run

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

    def first_at_most(self, level: float) -> float:
        """Where the mean is first as low as a level; infinite if it never is."""
        reached = np.flatnonzero(self.mean <= level)
        return float(self.x[reached[0]]) if reached.size else math.inf


def headline(run: Run) -> str:
    """The evaluation that is compared: the first one a system reports."""
    names = [name for name in run.metrics if name.startswith("eval/")]
    if not names:
        raise ValueError(f"{run.path} has not been evaluated yet.")
    return names[0]


def curve(runs: Sequence[Run], axis: str) -> Curve:
    """The evaluations of runs that differ in their seed, over one of `AXES`.

    Seeds are brought to the same points by linear interpolation, as far as all of them got.
    """
    points = []
    for run in runs:
        metrics = run.metrics
        y = metrics[headline(run)]
        known = np.isfinite(y)
        points.append((metrics[axis][known].astype(float), y[known]))
    end = min(x[-1] for x, _ in points)
    begin = max(x[0] for x, _ in points)
    longest = max((x for x, _ in points), key=len)
    grid = np.unique(np.clip(longest, begin, end))
    values = np.stack([np.interp(grid, x, y) for x, y in points])
    return Curve(grid, values.mean(axis=0), values.min(axis=0), values.max(axis=0))


def curves(runs: Mapping[str, Sequence[Run]]) -> dict[str, dict[str, Curve]]:
    """All methods over all axes."""
    return {method: {axis: curve(group, axis) for axis in AXES} for method, group in runs.items()}


def early_level(curves: Mapping[str, Mapping[str, Curve]], method: str) -> float:
    """The best that a method reaches in the first third of its updates, on the mean over seeds."""
    own = curves[method]["update"]
    early = own.x <= own.x[0] + (own.x[-1] - own.x[0]) / 3
    return float(own.mean[early].min())


def slowdowns(
    curves: Mapping[str, Mapping[str, Curve]], reference: str
) -> tuple[float, dict[str, dict[str, float]]]:
    """How many times longer each method takes to `early_level` of the reference, on each axis.

    **Returns:** the level, and the ratios by method and axis; infinite where a method never
    gets there.
    """
    level = early_level(curves, reference)
    ratios = {}
    for method, by_axis in curves.items():
        ratios[method] = {
            axis: by_axis[axis].first_at_most(level)
            / max(curves[reference][axis].first_at_most(level), 1e-12)
            for axis in AXES
        }
    return level, ratios
