"""Claims of the paper about a comparison, and their checks against results."""

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from nres.runs import AXES, Evaluations, lower_median

REFERENCE = "NRES"


@dataclasses.dataclass(frozen=True)
class Check:
    """One statement of the paper and the corresponding result here."""

    about: str
    paper: str
    ours: str
    grade: str
    """`holds`; `weaker` (the same direction, but less than half as large, or only for most runs);
    or `fails`."""


def verdict(checks: Sequence[Check]) -> str:
    """Combine the grades of all statements into `yes`, `in part` or `no`."""
    grades = {check.grade for check in checks}
    if grades == {"holds"}:
        return "yes"
    return "no" if grades == {"fails"} else "in part"


@dataclasses.dataclass(frozen=True)
class Ranking:
    """Times at which the runs of a comparison reach a level, by name, with one run per seed."""

    runs: Mapping[str, Sequence[Evaluations]]
    """Smoothed evaluations."""
    level: float
    axis: str

    def reached(self, name: str, axis: str | None = None) -> list[float]:
        """Return the position on the axis at which each seed first reaches the level."""
        return [run.first(self.level, axis or self.axis) for run in self.runs[name]]

    def best(self, name: str) -> float:
        """Return the lowest value of a run, as the median over seeds."""
        return lower_median([run.least() for run in self.runs[name]])

    def arrival(self, name: str, axis: str | None = None) -> float:
        """Return the mean over seeds of `reached`; infinite if a seed never reaches the level."""
        return float(np.mean(self.reached(name, axis)))

    def ratios(self, name: str, than: str = REFERENCE) -> list[float]:
        """Return how many times longer than another method each seed takes to reach the level.

        The ratio is zero where the other method never reaches the level or starts below it,
        because such a pair proves nothing.
        """
        return [_over(mine, other) for mine, other, _ in self._pairs(name, than)]

    def ratio(self, name: str, than: str = REFERENCE) -> float:
        """Return the median of `ratios`, or NaN if the other method mostly misses the level."""
        middle = lower_median(self.ratios(name, than))
        return middle if middle > 0 else math.nan

    def at_least(self, name: str, than: str = REFERENCE) -> float:
        """Return the median of `ratios`, with its full length for a run that never arrives."""
        return lower_median(
            [_over(min(mine, end), other) for mine, other, end in self._pairs(name, than)]
        )

    def _pairs(self, name: str, than: str) -> list[tuple[float, float, float]]:
        """Return the arrivals of two methods at common seeds, and the end of the first method."""
        ends = [float(run.at[self.axis][-1]) for run in self.runs[name]]
        return list(zip(self.reached(name), self.reached(than), ends, strict=False))

    def few(self, *names: str) -> str:
        """State the number of seeds of some methods if other methods have more."""
        seeds = min(len(self.runs[name]) for name in names)
        most = max(map(len, self.runs.values()))
        return "" if seeds == most else f" ({seeds} seed{'s' * (seeds > 1)})"

    def partly(self, name: str) -> str:
        """State how many seeds of a method reach the level, if only some of them do."""
        times = self.reached(name)
        there = sum(map(math.isfinite, times))
        some = 0 < there < len(times)
        return f"; {there} of {len(times)} seeds of {name} reach the level" if some else ""

    def longer(self, name: str, than: str = REFERENCE) -> str:
        """State how many times longer a method takes, as text."""
        ratio = self.ratio(name, than)
        if math.isnan(ratio):
            start = sum(time == 0 for time in self.reached(than)) > len(self.runs[than]) / 2
            return f"{than} starts below the level" if start else f"{than} never reaches the level"
        if math.isinf(ratio):
            bound = _times(self.at_least(name, than))
            return f"never (> {bound}){self.partly(name)}{self.partly(than)}"
        return _times(ratio) + _range(self.ratios(name, than)) + self.partly(than)

    def to_json(self, name: str) -> dict[str, Any]:
        """Return all numbers of one method as JSON."""
        runs = self.runs[name]
        return {
            "reached": {axis: self.reached(name, axis) for axis in AXES},
            "times_longer": self.ratio(name),
            "times_longer_by_seed": self.ratios(name),
            "start": [float(run.values[0]) for run in runs],
            "best": [run.least() for run in runs],
            "end": {axis: [float(run.at[axis][-1]) for run in runs] for axis in AXES},
        }


class Claim(Protocol):
    """A statement about a comparison."""

    def check(self, ranking: Ranking) -> Check:
        """Check the statement against a ranking."""


@dataclasses.dataclass(frozen=True)
class Slower:
    """The claim that a method takes longer than another, by a factor if the paper gives one."""

    name: str
    paper: float = 1.0
    than: str = REFERENCE
    axis: str | None = None
    """The axis to count on; by default that of the comparison."""
    more: bool = False
    """True if the paper says "more than"."""

    def check(self, ranking: Ranking) -> Check:
        about = self.name + ranking.few(self.name)
        said = "> " * self.more + _times(self.paper) if self.paper > 1 else "longer"
        if self.axis is not None:
            ranking = dataclasses.replace(ranking, axis=self.axis)
            about = f"{about}, {_counted(self.axis)}"
        text = ranking.longer(self.name, self.than)
        if math.isnan(ranking.ratio(self.name, self.than)):
            return Check(about, said, text, "fails")
        ratio = ranking.at_least(self.name, self.than)
        enough = ratio >= self.paper / 2 and not ranking.partly(self.than)
        return Check(about, said, text, "fails" if ratio <= 1 else "holds" if enough else "weaker")


@dataclasses.dataclass(frozen=True)
class Never:
    """The claim that a method does not reach the level within its updates."""

    name: str

    def check(self, ranking: Ranking) -> Check:
        about, text = self.name + ranking.few(self.name), ranking.longer(self.name)
        ratio = ranking.ratio(self.name)
        if math.isnan(ratio) or ranking.at_least(self.name) <= 1:
            return Check(about, "never", text, "fails")
        none = math.isinf(ratio) and not ranking.partly(self.name) + ranking.partly(REFERENCE)
        return Check(about, "never", text, "holds" if none else "weaker")


@dataclasses.dataclass(frozen=True)
class Reaches:
    """The claim that a method reaches the level after a number of steps, averaged over seeds.

    The claim holds up to twice as many steps, and fails above ten times as many.
    """

    name: str
    paper: float | None = None
    """The paper's number of steps; `None` accepts any number within the budget."""
    axis: str = "total_steps"

    def check(self, ranking: Ranking) -> Check:
        steps = ranking.reached(self.name, self.axis)
        mean = ranking.arrival(self.name, self.axis)
        about = f"{self.name}, {_counted(self.axis)}"
        said = "within the budget" if self.paper is None else _number(self.paper)
        if math.isinf(mean):
            end = min(float(run.at[self.axis][-1]) for run in ranking.runs[self.name])
            solved = sum(map(math.isfinite, steps))
            some = f"; {solved} of {len(steps)} seeds reach the level" if solved else ""
            grade = "weaker" if solved > len(steps) / 2 else "fails"
            return Check(about, said, f"never in {_number(end)}{some}", grade)
        grade = "holds"
        if self.paper is not None and mean > 2 * self.paper:
            grade = "fails" if mean > 10 * self.paper else "weaker"
        return Check(about, said, _mean(steps), grade)


@dataclasses.dataclass(frozen=True)
class Attains:
    """The claim that a method reaches a value."""

    name: str
    paper: float

    def check(self, ranking: Ranking) -> Check:
        best = ranking.best(self.name)
        grade = "holds" if best <= self.paper else "fails"
        return Check(f"best value of {self.name}", f"{self.paper:.4g}", f"{best:.4g}", grade)


@dataclasses.dataclass(frozen=True)
class Better:
    """The claim that each of these methods reaches a lower value than each of those."""

    these: tuple[str, ...]
    those: tuple[str, ...]

    def check(self, ranking: Ranking) -> Check:
        best = {name: ranking.best(name) for name in (*self.these, *self.those)}
        right = [best[mine] < best[other] for mine in self.these for other in self.those]
        most = sum(right) > len(right) / 2
        text = ", ".join(f"{name} {value:.4g}" for name, value in best.items())
        about = f"best value of {', '.join(self.these)}"
        grade = "holds" if all(right) else "weaker" if most else "fails"
        return Check(about, f"better than {', '.join(self.those)}", text, grade)


@dataclasses.dataclass(frozen=True)
class Sooner:
    """The claim that the methods reach the level in the given order."""

    names: tuple[str, ...]
    axis: str | None = None
    """The axis to count on; by default that of the comparison."""

    def check(self, ranking: Ranking) -> Check:
        axis = self.axis or ranking.axis
        # Compare equally many seeds of each method: the same seeds share their randomness.
        seeds = min(len(ranking.runs[name]) for name in self.names)
        alike = {name: ranking.runs[name][:seeds] for name in self.names}
        among = dataclasses.replace(ranking, runs=alike)
        times = [among.arrival(name, axis) for name in self.names]
        right = [a < b for a, b in itertools.pairwise(times)]
        text = "; ".join(f"{name} {_mean(among.reached(name, axis))}" for name in self.names)
        grade = "holds" if all(right) else "weaker" if times[0] < times[-1] else "fails"
        about, paper = _counted(axis) + ranking.few(*self.names), "; ".join(self.names)
        return Check(about, f"in this order: {paper}", text, grade)


def _counted(axis: str) -> str:
    return AXES[axis].replace(" unroll", "")


def _over(time: float, reference: float) -> float:
    """Divide, or return zero if the reference never reaches the level or starts below it."""
    return time / reference if 0 < reference < math.inf else 0.0


def _times(ratio: float) -> str:
    return f"{ratio:.3g}×" if ratio < 1000 else f"{_number(ratio)}×"


def _range(ratios: Sequence[float]) -> str:
    ratios = [ratio for ratio in ratios if ratio > 0]
    if len(ratios) < 2:
        return ""
    low, high = (
        "never" if math.isinf(value) else f"{value:.3g}" for value in (min(ratios), max(ratios))
    )
    return f" ({low} to {high})"


def _mean(steps: Sequence[float]) -> str:
    """State the mean over seeds with the minimum and the maximum, as text."""
    there, (low, high) = sum(map(math.isfinite, steps)), (min(steps), max(steps))
    if 0 < there < len(steps):
        return f"{_number(low)} to never ({there} of {len(steps)} seeds)"
    spread = f" ({_number(low)} to {_number(high)})" if low < high else ""
    return _number(float(np.mean(steps))) + spread


def _number(value: float) -> str:
    if math.isinf(value):
        return "never"
    if value >= 1e4:
        return f"{value:.2e}"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
