"""What the paper claims of a comparison, in a form that our own results can be held against."""

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from nres.runs.compare import AXES, Evaluations, lower_median

REFERENCE = "NRES"


@dataclasses.dataclass(frozen=True)
class Check:
    """One statement of the paper's, and what was found here."""

    about: str
    paper: str
    ours: str
    grade: str
    """`holds`, `weaker` (the same direction, but less than half as much, or for most only) or
    `fails`."""


def verdict(checks: Sequence[Check]) -> str:
    """All statements taken together."""
    grades = {check.grade for check in checks}
    if grades == {"holds"}:
        return "yes"
    return "no" if grades == {"fails"} else "in part"


@dataclasses.dataclass(frozen=True)
class Standings:
    """Who got where in a comparison, by name, with one run a seed."""

    runs: Mapping[str, Sequence[Evaluations]]
    """Smoothed."""
    level: float
    axis: str

    def reached(self, name: str, axis: str | None = None) -> list[float]:
        """Where the level is first reached, of each seed."""
        return [run.first(self.level, axis or self.axis) for run in self.runs[name]]

    def best(self, name: str) -> float:
        """The least value, the median over seeds."""
        return lower_median([run.least() for run in self.runs[name]])

    def arrival(self, name: str, axis: str | None = None) -> float:
        """Where the level is first reached, the mean over seeds; infinite if one never does."""
        return float(np.mean(self.reached(name, axis)))

    def ratios(self, name: str, than: str = REFERENCE) -> list[float]:
        """How many times longer than another until the level, of each seed by itself.

        Zero where the other one never gets there, or is there from the start: the worst that can
        be said of a claim.
        """
        return [_over(mine, other) for mine, other, _ in self._pairs(name, than)]

    def ratio(self, name: str, than: str = REFERENCE) -> float:
        """The median of these; not a number if the other one seldom gets there."""
        middle = lower_median(self.ratios(name, than))
        return middle if middle > 0 else math.nan

    def at_least(self, name: str, than: str = REFERENCE) -> float:
        """The median, where a run that never gets there has only taken as long as it was."""
        return lower_median(
            [_over(min(mine, end), other) for mine, other, end in self._pairs(name, than)]
        )

    def _pairs(self, name: str, than: str) -> list[tuple[float, float, float]]:
        """When two methods are there, of the seeds that both have, and when the first ended."""
        ends = [float(run.at[self.axis][-1]) for run in self.runs[name]]
        return list(zip(self.reached(name), self.reached(than), ends, strict=False))

    def few(self, *names: str) -> str:
        """How many seeds of some methods there are, if not as many as of others."""
        seeds = min(len(self.runs[name]) for name in names)
        most = max(map(len, self.runs.values()))
        return "" if seeds == most else f" ({seeds} seed{'s' * (seeds > 1)})"

    def partly(self, name: str) -> str:
        """That some seeds of a method got there and others did not, if so."""
        times = self.reached(name)
        there = sum(map(math.isfinite, times))
        some = 0 < there < len(times)
        return f"; {name} gets there with {there} of {len(times)} seeds" if some else ""

    def longer(self, name: str, than: str = REFERENCE) -> str:
        """How many times longer, in words."""
        ratio = self.ratio(name, than)
        if math.isnan(ratio):
            start = sum(time == 0 for time in self.reached(than)) > len(self.runs[than]) / 2
            return f"{than} is there from the start" if start else f"{than} does not get there"
        if math.isinf(ratio):
            bound = _times(self.at_least(name, than))
            return f"never (> {bound}){self.partly(name)}{self.partly(than)}"
        return _times(ratio) + _range(self.ratios(name, than)) + self.partly(than)

    def to_json(self, name: str) -> dict[str, Any]:
        """All about one of them."""
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

    def judge(self, standings: Standings) -> Check: ...


@dataclasses.dataclass(frozen=True)
class Slower:
    """A method takes longer than NRES, or than another: so many times, if that is said."""

    name: str
    paper: float = 1.0
    than: str = REFERENCE
    axis: str | None = None
    """What is counted, if not what the others are counted in."""
    more: bool = False
    """Whether the paper says: more than that."""

    def judge(self, standings: Standings) -> Check:
        about = self.name + standings.few(self.name)
        said = "> " * self.more + _times(self.paper) if self.paper > 1 else "longer"
        if self.axis is not None:
            standings = dataclasses.replace(standings, axis=self.axis)
            about = f"{about}, {_counted(self.axis)}"
        text = standings.longer(self.name, self.than)
        if math.isnan(standings.ratio(self.name, self.than)):
            return Check(about, said, text, "fails")
        ratio = standings.at_least(self.name, self.than)
        enough = ratio >= self.paper / 2 and not standings.partly(self.than)
        return Check(about, said, text, "fails" if ratio <= 1 else "holds" if enough else "weaker")


@dataclasses.dataclass(frozen=True)
class Never:
    """A method does not get there in the time it is given."""

    name: str

    def judge(self, standings: Standings) -> Check:
        about, text = self.name + standings.few(self.name), standings.longer(self.name)
        ratio = standings.ratio(self.name)
        if math.isnan(ratio) or standings.at_least(self.name) <= 1:
            return Check(about, "never", text, "fails")
        none = math.isinf(ratio) and not standings.partly(self.name) + standings.partly(REFERENCE)
        return Check(about, "never", text, "holds" if none else "weaker")


@dataclasses.dataclass(frozen=True)
class Reaches:
    """A method gets there after so many steps, the mean over seeds; up to twice as many hold.

    More than ten times as many are not what was claimed.
    """

    name: str
    paper: float | None = None
    """How many, if the paper says that: else no more than its runs were given."""
    axis: str = "total_steps"

    def judge(self, standings: Standings) -> Check:
        steps = standings.reached(self.name, self.axis)
        mean = standings.arrival(self.name, self.axis)
        about = f"{self.name}, {_counted(self.axis)}"
        said = "within the budget" if self.paper is None else _number(self.paper)
        if math.isinf(mean):
            end = min(float(run.at[self.axis][-1]) for run in standings.runs[self.name])
            solved = sum(map(math.isfinite, steps))
            some = f"; {solved} of {len(steps)} seeds do" if solved else ""
            grade = "weaker" if solved > len(steps) / 2 else "fails"
            return Check(about, said, f"never in {_number(end)}{some}", grade)
        grade = "holds"
        if self.paper is not None and mean > 2 * self.paper:
            grade = "fails" if mean > 10 * self.paper else "weaker"
        return Check(about, said, _mean(steps), grade)


@dataclasses.dataclass(frozen=True)
class Attains:
    """A method gets down to a value."""

    name: str
    paper: float

    def judge(self, standings: Standings) -> Check:
        best = standings.best(self.name)
        grade = "holds" if best <= self.paper else "fails"
        return Check(f"{self.name} at best", f"{self.paper:.4g}", f"{best:.4g}", grade)


@dataclasses.dataclass(frozen=True)
class Better:
    """Every one of some methods gets to a lower value than every one of others."""

    these: tuple[str, ...]
    those: tuple[str, ...]

    def judge(self, standings: Standings) -> Check:
        best = {name: standings.best(name) for name in (*self.these, *self.those)}
        right = [best[mine] < best[other] for mine in self.these for other in self.those]
        most = sum(right) > len(right) / 2
        text = ", ".join(f"{name} {value:.4g}" for name, value in best.items())
        about = f"{' and '.join(self.these)} at best"
        grade = "holds" if all(right) else "weaker" if most else "fails"
        return Check(about, f"better than {', '.join(self.those)}", text, grade)


@dataclasses.dataclass(frozen=True)
class Sooner:
    """Of some methods each gets there before the next."""

    names: tuple[str, ...]
    axis: str | None = None
    """What is counted, if not what the others are counted in."""

    def judge(self, standings: Standings) -> Check:
        axis = self.axis or standings.axis
        # Of as many seeds for each: the same ones, which share what is random.
        seeds = min(len(standings.runs[name]) for name in self.names)
        alike = {name: standings.runs[name][:seeds] for name in self.names}
        among = dataclasses.replace(standings, runs=alike)
        times = [among.arrival(name, axis) for name in self.names]
        right = [a < b for a, b in itertools.pairwise(times)]
        text = "; ".join(f"{name} {_mean(among.reached(name, axis))}" for name in self.names)
        grade = "holds" if all(right) else "weaker" if times[0] < times[-1] else "fails"
        about, paper = _counted(axis) + standings.few(*self.names), "; ".join(self.names)
        return Check(about, f"in this order: {paper}", text, grade)


def _counted(axis: str) -> str:
    return AXES[axis].replace(" unroll", "")


def _over(time: float, reference: float) -> float:
    """Zero if the reference never gets there, or is there from the start."""
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
    """The mean over seeds in words, with the least and the largest."""
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
