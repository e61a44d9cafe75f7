"""What the paper claims of a comparison, in a form that our own results can be held against."""

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from nres.runs.compare import AXES, Evaluations, lower_median

REFERENCE = "NRES"


@dataclasses.dataclass(frozen=True)
class Check:
    """One statement of the paper's, and what was found here."""

    about: str
    paper: str
    ours: str
    grade: str
    """`holds`, `weaker` (the same direction, but less than half as much) or `fails`."""


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
        """When most seeds have reached the level: of an even number, more than half."""
        return -lower_median([-time for time in self.reached(name, axis)])

    def ratios(self, name: str, than: str = REFERENCE) -> list[float]:
        """How many times longer than another until the level, of each seed by itself.

        Zero where the other one never gets there, which is the worst that can be said of a claim.
        """
        pairs = zip(self.reached(name), self.reached(than), strict=False)
        return [_over(mine, other) if math.isfinite(other) else 0.0 for mine, other in pairs]

    def ratio(self, name: str, than: str = REFERENCE) -> float:
        """The median of these; not a number if the other one seldom gets there."""
        middle = lower_median(self.ratios(name, than))
        return middle if middle > 0 else math.nan

    def at_least(self, name: str, than: str = REFERENCE) -> float:
        """What a ratio must exceed if the level was never reached: the runs were that long."""
        ends = [float(run.at[self.axis][-1]) for run in self.runs[name]]
        return _over(min(ends), self.arrival(than))

    def few(self, name: str) -> str:
        """How many seeds of a method there are, if not as many as of others."""
        seeds = len(self.runs[name])
        most = max(map(len, self.runs.values()))
        return "" if seeds == most else f" ({seeds} seed{'s' * (seeds > 1)})"

    def missing(self, name: str) -> str:
        """That not all seeds of a method got there, if so."""
        times = self.reached(name)
        there = sum(map(math.isfinite, times))
        return "" if there == len(times) else f"; {name} gets there with {there} of {len(times)}"

    def to_json(self, name: str) -> dict[str, Any]:
        """All about one of them."""
        runs = self.runs[name]
        return {
            "reached": {axis: self.reached(name, axis) for axis in AXES},
            "times_longer": self.ratio(name),
            "times_longer_by_seed": self.ratios(name),
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

    def judge(self, standings: Standings) -> Check:
        about = self.name + standings.few(self.name)
        said = _times(self.paper) if self.paper > 1 else "longer"
        if self.axis is not None:
            standings = dataclasses.replace(standings, axis=self.axis)
            about = f"{about}, {_counted(self.axis)}"
        ratio = standings.ratio(self.name, self.than)
        if math.isnan(ratio):
            return Check(about, said, _lost(standings, self.than), "fails")
        text = _times(ratio) + _range(standings.ratios(self.name, self.than))
        if math.isinf(ratio):
            ratio = standings.at_least(self.name, self.than)
            text = f"never (> {_times(ratio)})"
        missing = standings.missing(self.than)
        enough = ratio >= self.paper / 2 and not missing
        grade = "fails" if ratio <= 1 else "holds" if enough else "weaker"
        return Check(about, said, text + missing, grade)


@dataclasses.dataclass(frozen=True)
class Never:
    """A method does not get there in the time it is given."""

    name: str

    def judge(self, standings: Standings) -> Check:
        about, ratio = self.name + standings.few(self.name), standings.ratio(self.name)
        if math.isnan(ratio):
            return Check(about, "never", _lost(standings, REFERENCE), "fails")
        if math.isinf(ratio):
            bound = standings.at_least(self.name)
            grade = "holds" if bound > 1 else "fails"
            return Check(about, "never", f"never (> {_times(bound)})", grade)
        grade = "weaker" if ratio > 1 else "fails"
        return Check(about, "never", _times(ratio) + _range(standings.ratios(self.name)), grade)


@dataclasses.dataclass(frozen=True)
class Reaches:
    """A method gets there after so many steps; up to twice as many are the same.

    More than ten times as many are not what was claimed.
    """

    name: str
    paper: float
    axis: str = "total_steps"

    def judge(self, standings: Standings) -> Check:
        steps = standings.reached(self.name, self.axis)
        middle = standings.arrival(self.name, self.axis)
        about = f"{self.name}, {_counted(self.axis)}"
        if math.isinf(middle):
            end = min(float(run.at[self.axis][-1]) for run in standings.runs[self.name])
            solved = sum(map(math.isfinite, steps))
            some = f"; {solved} of {len(steps)} seeds do" if solved else ""
            text = f"never in {_number(end)}{some}"
            return Check(about, _number(self.paper), text, "fails")
        spread = f" ({_number(min(steps))} to {_number(max(steps))})" if len(steps) > 1 else ""
        grade = "holds" if middle <= 2 * self.paper else "weaker"
        grade = "fails" if middle > 10 * self.paper else grade
        return Check(about, _number(self.paper), _number(middle) + spread, grade)


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
        holds = max(best[name] for name in self.these) < min(best[name] for name in self.those)
        some = any(best[mine] < best[other] for mine in self.these for other in self.those)
        text = ", ".join(f"{name} {value:.4g}" for name, value in best.items())
        about = f"{' and '.join(self.these)} at best"
        grade = "holds" if holds else "weaker" if some else "fails"
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
        text = ", ".join(
            f"{name} {_number(time)}" for name, time in zip(self.names, times, strict=True)
        )
        grade = "holds" if all(right) else "weaker" if times[0] < times[-1] else "fails"
        paper = "in this order: " + ", ".join(self.names)
        return Check(_counted(axis), paper, text, grade)


def _counted(axis: str) -> str:
    return AXES[axis].replace(" unroll", "")


def _over(time: float, reference: float) -> float:
    """Not a number if the reference never gets there, or is there from the start."""
    return time / reference if 0 < reference < math.inf else math.nan


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


def _lost(standings: Standings, name: str) -> str:
    there = math.isfinite(standings.arrival(name))
    return f"{name} is there from the start" if there else f"{name} does not get there"


def _number(value: float) -> str:
    if math.isinf(value):
        return "never"
    return f"{value:.2e}" if value >= 1e4 else f"{value:,.3g}"
