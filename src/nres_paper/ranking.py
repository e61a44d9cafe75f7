"""Times at which the runs of a comparison reach a level, and paired tests over seeds."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

from nres.runs import AXES, Evaluations, lower_median

REFERENCE = "NRES"
CONFIDENCE = 0.95
"""The confidence of all intervals."""
ENOUGH = 3
"""The number of seeds from which on something counts as established without a test over seeds."""


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A ratio of two methods over paired seeds: the geometric mean with its interval."""

    middle: float
    low: float
    high: float
    p: float
    """The p-value of the hypothesis that the ratio is one; NaN if there are too few seeds."""
    seeds: int

    def __str__(self) -> str:
        if math.isnan(self.p):
            return f"{self.seeds} seed{'s' * (self.seeds > 1)}"
        return f"{CONFIDENCE:.0%} interval {self.low:.3g} to {self.high:.3g}, {p_text(self.p)}"

    @property
    def above(self) -> bool:
        """True if the ratio is established to be larger than one."""
        return self.low > 1

    @property
    def below(self) -> bool:
        """True if the ratio is established to be smaller than one."""
        return self.high < 1


def p_text(p: float) -> str:
    """Return a p-value as text."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.2g}"


def estimate(ratios: Sequence[float]) -> Estimate:
    """Estimate a ratio from one positive ratio per seed, by a t-test on their logarithms.

    With one seed there is no interval: it reaches from zero to infinity. So it does with two whose
    ratios are equal, which happens by chance because times are counted in evaluations.
    """
    logs = np.log(ratios)
    middle = float(np.exp(logs.mean()))
    if len(logs) < 2 or (len(logs) < ENOUGH and logs.std() == 0):
        return Estimate(middle, 0.0, math.inf, math.nan, len(logs))
    error = float(logs.std(ddof=1)) / math.sqrt(len(logs))
    if error == 0:  # all seeds agree, as for a method without randomness
        p = 0.0 if middle != 1 else 1.0
        return Estimate(middle, middle, middle, p, len(logs))
    freedom = len(logs) - 1
    reach = float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom)) * error
    p = float(2 * stats.t.sf(abs(logs.mean()) / error, freedom))
    low, high = np.exp([logs.mean() - reach, logs.mean() + reach])
    return Estimate(middle, float(low), float(high), p, len(logs))


@dataclasses.dataclass(frozen=True)
class Ranking:
    """Times at which the runs of a comparison reach a level, by name, with one run per seed."""

    runs: Mapping[str, Sequence[Evaluations]]
    """Smoothed evaluations."""
    level: float
    axis: str
    seeds: Mapping[str, Sequence[int]] = dataclasses.field(default_factory=dict)
    """The seeds of the runs; by default they are numbered."""
    budgets: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """The number of updates in the paper, where it differs."""
    fixed: frozenset[str] = frozenset()
    """The methods without randomness, whose only run stands for all seeds."""
    places: Mapping[str, frozenset[str]] = dataclasses.field(default_factory=dict)
    """The kinds of machine on which the runs were made."""

    def within_budget(self) -> "Ranking":
        """Return the ranking after the numbers of updates in the paper."""
        runs = {
            name: [_cut(run, self.budgets.get(name, math.inf)) for run in some]
            for name, some in self.runs.items()
        }
        return dataclasses.replace(self, runs=runs)

    def machines(self, *names: str) -> frozenset[str]:
        """Return the kinds of machine on which the runs of some methods were made."""
        return frozenset().union(*(self.places.get(name, frozenset()) for name in names))

    def is_short(self, name: str) -> bool:
        """Return whether a run makes fewer updates than in the paper."""
        ends = [run.at["update"][-1] for run in self.runs[name]]
        return min(ends) < self.budgets.get(name, 0)

    def reached(self, name: str, axis: str | None = None) -> list[float]:
        """Return the position on the axis at which each seed first reaches the level."""
        return [run.first(self.level, axis or self.axis) for run in self.runs[name]]

    def ends(self, name: str, axis: str | None = None) -> list[float]:
        """Return the position on the axis at which each seed ends."""
        return [float(run.at[axis or self.axis][-1]) for run in self.runs[name]]

    def at_least(self, name: str, axis: str | None = None) -> list[float]:
        """Return a lower bound of the position at which each seed reaches the level.

        A run that never arrives counts with its full length, which is less than it would need.
        """
        return list(map(min, self.reached(name, axis), self.ends(name, axis)))

    def least(self, name: str) -> list[float]:
        """Return the lowest value of each seed."""
        return [run.least() for run in self.runs[name]]

    def final(self, name: str) -> list[float]:
        """Return the mean of the last quarter of the values of each seed."""
        return [float(run.values[len(run.values) * 3 // 4 :].mean()) for run in self.runs[name]]

    def paired(
        self, name: str, than: str, values: Mapping[str, Sequence[float]]
    ) -> list[tuple[float, float]]:
        """Return the values of two methods at their common seeds."""
        first, second = (dict(zip(self._seeds(n), values[n], strict=True)) for n in (name, than))
        if name in self.fixed:
            first = dict.fromkeys(second, values[name][0])
        if than in self.fixed:
            second = dict.fromkeys(first, values[than][0])
        return [(first[seed], second[seed]) for seed in first if seed in second]

    def ratios(self, name: str, than: str = REFERENCE, axis: str | None = None) -> list[float]:
        """Return how many times longer than another method each seed takes to reach the level.

        A run that never arrives counts with its full length, as in `at_least`. The ratio is NaN
        where the other method never reaches the level.
        """
        times = {than: self.reached(than, axis), name: self.at_least(name, axis)}
        pairs = self.paired(name, than, times)
        return [mine / other if other < math.inf else math.nan for mine, other in pairs]

    def most(self, name: str, than: str, axis: str | None = None) -> float | None:
        """Return an upper bound of the mean ratio over all seeds, or `None`.

        The other method counts with its full length where it never arrives.
        """
        times = {than: self.at_least(than, axis), name: self.reached(name, axis)}
        pairs = self.paired(name, than, times)
        if any(math.isinf(mine) for mine, _ in pairs):
            return None
        return estimate([mine / other for mine, other in pairs]).middle

    def starts_below(self, name: str) -> bool:
        """Return whether a seed is at the level from the start."""
        return any(run.values[0] <= self.level for run in self.runs[name])

    def ratio(self, name: str, than: str = REFERENCE) -> float:
        """Return the median ratio: infinite if a method mostly misses the level.

        It is NaN if the other method mostly misses the level, starts below it, or has no runs.
        """
        if than not in self.runs or self.starts_below(than):
            return math.nan
        times = {n: self.reached(n) for n in (name, than)}
        pairs = self.paired(name, than, times)
        over = [mine / other if 0 < other < math.inf else 0.0 for mine, other in pairs]
        middle = lower_median(over) if over else 0.0
        return middle if middle > 0 else math.nan

    def arrived(self, name: str) -> int:
        """Return the number of seeds that reach the level."""
        return sum(map(math.isfinite, self.reached(name)))

    def to_json(self, name: str) -> dict[str, Any]:
        """Return all numbers of one method as JSON."""
        runs = self.runs[name]
        return {
            "seeds": list(self._seeds(name)),
            "reached": {axis: self.reached(name, axis) for axis in AXES},
            "times_longer": self.ratio(name),
            "start": [float(run.values[0]) for run in runs],
            "best": self.least(name),
            "end": {axis: self.ends(name, axis) for axis in AXES},
        }

    def _seeds(self, name: str) -> Sequence[int]:
        return self.seeds.get(name, range(len(self.runs[name])))


def _cut(run: Evaluations, updates: float) -> Evaluations:
    """Return the evaluations up to a number of updates."""
    there = run.at["update"] <= updates
    return Evaluations({axis: x[there] for axis, x in run.at.items()}, run.values[there])
