"""Claims of the paper about a comparison, and their checks against results."""

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import ClassVar, Protocol

import numpy as np

from nres_paper.grades import (
    BAND,
    DIFFERS,
    FAILS,
    HOLDS,
    NOT_RUN,
    SHOWN,
    UNKNOWN,
    Check,
    counted,
    mean,
    number,
    times,
)
from nres_paper.ranking import ENOUGH, REFERENCE, Estimate, Ranking, estimate, p_text


class Claim(Protocol):
    """A statement about a comparison."""

    @property
    def longer(self) -> bool:
        """True if the statement is about the whole runs, and not about the paper's updates."""

    @property
    def names(self) -> tuple[str, ...]:
        """The runs that the statement is about."""

    @property
    def said(self) -> tuple[str, str]:
        """The subject of the statement, and what the paper says about it."""

    def judged(self, ranking: Ranking) -> tuple[str, str]:
        """Return the result here as text, and its grade."""


def checked(claim: Claim, ranking: Ranking) -> Check:
    """Check a statement against a ranking."""
    about, paper = claim.said
    if any(not ranking.runs.get(name) for name in claim.names):
        return Check(about, paper, NOT_RUN, NOT_RUN)
    few = _few(ranking, claim.names)
    if not claim.longer:
        ranking = ranking.within_budget()
    return Check(about + few, paper, *claim.judged(ranking))


def all_checks(claims: Sequence[Claim], ranking: Ranking) -> tuple[Check, ...]:
    """Check statements; those about seconds are followed by the same on the other axes."""
    found = []
    for claim in claims:
        found.append(checked(claim, ranking))
        if isinstance(claim, Slower) and ranking.axis == "seconds" and claim.axis is None:
            for axis in ("total_steps", "sequential_steps"):
                check = checked(dataclasses.replace(claim, axis=axis, factor=1.0), ranking)
                if check.grade != NOT_RUN:
                    found.append(dataclasses.replace(check, paper="", grade=SHOWN))
    return tuple(found)


@dataclasses.dataclass(frozen=True)
class Slower:
    """The claim that a method takes longer than another, by a factor if the paper gives one."""

    name: str
    factor: float = 1.0
    than: str = REFERENCE
    axis: str | None = None
    """The axis to count on; by default that of the comparison."""
    more: bool = False
    """True if the paper says "more than"."""
    percent: float | None = None
    """The share of steps that the other method saves, if the paper states that instead."""
    longer: ClassVar[bool] = False

    @property
    def names(self) -> tuple[str, ...]:
        return self.name, self.than

    @property
    def said(self) -> tuple[str, str]:
        about = self.name if self.axis is None else f"{self.name}, {counted(self.axis)}"
        if self.percent is not None:
            return about, f"{self.than} needs {self.percent:g} % fewer"
        return about, "> " * self.more + times(self.factor) if self.factor > 1 else "longer"

    def judged(self, ranking: Ranking) -> tuple[str, str]:
        if text := at_once(ranking, *self.names):
            return text, UNKNOWN
        ratios = ranking.ratios(self.name, self.than, self.axis)
        missing = sum(map(math.isnan, ratios))
        if missing == len(ratios):
            return self._without_ratios(ranking)
        found = estimate([ratio for ratio in ratios if not math.isnan(ratio)])
        there = ranking.arrived(self.name)
        never = there < len(ranking.runs[self.name])
        text = f"{'> ' * never}{times(found.middle)}"
        paper = self.factor if self.percent is None else 1 / (1 - self.percent / 100)
        if self.percent is not None:
            saved = 1 - 1 / found.middle
            text += f", {abs(saved):.0%} {'fewer' if saved >= 0 else 'more'}"
        if paper > 1 and not self.more:
            text += f"; {found.middle / paper:.2g} of the paper's factor"
        text += f" ({found})"
        if never:
            text = f"{there} of {len(ranking.runs[self.name])} seeds reach the level; " + text
        if missing:
            count = ranking.arrived(self.than)
            text += f"; {count} of {len(ranking.runs[self.than])} seeds of {self.than} reach it"
            most = ranking.most(self.name, self.than, self.axis)
            if most is not None:
                text += f", at most {times(most)} over all {len(ratios)} seeds"
        if (self.axis or ranking.axis) == "seconds" and len(ranking.machines(*self.names)) > 1:
            return f"{text}; on different machines", UNKNOWN
        return text, self._grade(found, paper, never, bool(missing))

    def _without_ratios(self, ranking: Ranking) -> tuple[str, str]:
        seeds = len(ranking.runs[self.than])
        if there := ranking.arrived(self.than):
            text = f"{there} of {seeds} seeds of {self.than} reach the level"
            return f"{text}, none of them in common", UNKNOWN
        if not ranking.arrived(self.name):
            return f"neither {self.than} nor {self.name} reaches the level", UNKNOWN
        return f"{self.than} never reaches the level", missed(ranking, self.than)

    def _grade(self, found: Estimate, paper: float, never: bool, missing: bool) -> str:
        if found.below and not never:
            return FAILS
        if missing or not found.above:
            return UNKNOWN
        if self.more:
            if found.low > paper:
                return HOLDS
            return DIFFERS if found.high < paper and not never else UNKNOWN
        if paper == 1:
            return HOLDS
        if found.middle > BAND * paper:
            return DIFFERS
        if never:  # the factor is a lower bound
            return UNKNOWN
        return HOLDS if found.middle >= paper / BAND else DIFFERS


@dataclasses.dataclass(frozen=True)
class Never:
    """The claim that a method does not reach the level within its updates, while another does."""

    name: str
    longer: ClassVar[bool] = False

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    @property
    def said(self) -> tuple[str, str]:
        return self.name, "never"

    def judged(self, ranking: Ranking) -> tuple[str, str]:
        there, seeds = ranking.arrived(self.name), len(ranking.runs[self.name])
        if there:
            after = mean([t for t in ranking.reached(self.name) if math.isfinite(t)])
            return f"{there} of {seeds} seeds, after {after} {counted(ranking.axis)}", FAILS
        updates = min(ranking.ends(self.name, "update"))
        text = f"never in {updates:,.0f} updates, {number(min(ranking.ends(self.name, STEPS)))} "
        text += counted(STEPS)
        if ranking.is_short(self.name):
            return f"{text} (paper: {ranking.budgets[self.name]:,} updates)", UNKNOWN
        if not any(map(ranking.arrived, ranking.runs)):
            return f"{text}; nor does any other method", UNKNOWN
        return text, HOLDS if enough(ranking, self.name) else UNKNOWN


STEPS = "total_steps"


def enough(ranking: Ranking, *names: str) -> bool:
    """Return whether all of these methods have enough seeds, or no randomness."""
    return all(len(ranking.runs[n]) >= ENOUGH or n in ranking.fixed for n in names)


def missed(ranking: Ranking, name: str) -> str:
    """Return the grade of a statement that needs a method to reach a level that it misses."""
    known = enough(ranking, name) and not ranking.is_short(name)
    return FAILS if known else UNKNOWN


def at_once(ranking: Ranking, *names: str) -> str:
    """Say which of these methods starts below the level, so that no time can be measured."""
    below = [name for name in names if ranking.starts_below(name)]
    return f"{' and '.join(below)} start{'s' * (len(below) == 1)} below the level" if below else ""


@dataclasses.dataclass(frozen=True)
class Reaches:
    """The claim that a method reaches the level after a number of steps, averaged over seeds."""

    name: str
    paper: float | None = None
    """The paper's number of steps; `None` accepts any number within the updates."""
    axis: str = STEPS
    longer: ClassVar[bool] = False

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    @property
    def said(self) -> tuple[str, str]:
        about = f"{self.name}, {counted(self.axis)}"
        return about, "solved" if self.paper is None else number(self.paper)

    def judged(self, ranking: Ranking) -> tuple[str, str]:
        if text := at_once(ranking, self.name):
            return text, UNKNOWN
        steps = ranking.reached(self.name, self.axis)
        there = ranking.arrived(self.name)
        if there < len(steps):
            ends = ranking.ends(self.name, self.axis)
            end = number(min(e for e, step in zip(ends, steps, strict=True) if math.isinf(step)))
            text = f"{there} of {len(steps)} seeds reach the level"
            if there:
                reached = mean([step for step in steps if math.isfinite(step)])
                text += f", after {reached}; the others end at {end}"
            else:
                text += f" within {end}"
            if there > len(steps) / 2:
                return text, DIFFERS
            return text, missed(ranking, self.name)
        holds = HOLDS if enough(ranking, self.name) else UNKNOWN
        if self.paper is None:
            return mean(steps), holds
        factor = float(np.mean(steps)) / self.paper
        text = f"{mean(steps)}; {factor:.2g} of the paper's"
        return text, holds if 1 / BAND <= factor <= BAND else DIFFERS


@dataclasses.dataclass(frozen=True)
class Sooner:
    """The claim that the methods reach the level in the given order."""

    order: tuple[str, ...]
    axis: str | None = None
    """The axis to count on; by default that of the comparison."""
    longer: ClassVar[bool] = False

    @property
    def names(self) -> tuple[str, ...]:
        return self.order

    @property
    def said(self) -> tuple[str, str]:
        about = "order" if self.axis is None else counted(self.axis)
        return about, f"in this order: {'; '.join(self.order)}"

    def judged(self, ranking: Ranking) -> tuple[str, str]:
        if text := at_once(ranking, *self.names):
            return text, UNKNOWN
        axis = self.axis or ranking.axis
        reached = {name: ranking.reached(name, axis) for name in self.order}
        text = "; ".join(f"{name} {mean(reached[name])}" for name in self.order)
        known = {name: ranking.at_least(name, axis) for name in self.order}

        def tested(first: str, second: str) -> Estimate:
            found = paired_ratio(ranking, known, second, first)
            # Of a run that never arrives, it is only known that it takes longer than it lasts.
            late = {n: ranking.arrived(n) < len(ranking.runs[n]) for n in (first, second)}
            low, high = 0.0 if late[first] else found.low, math.inf if late[second] else found.high
            return dataclasses.replace(found, low=low, high=high)

        pairs = itertools.pairwise(self.order)
        return in_order([(f"{a} and {b}", tested(a, b)) for a, b in pairs], text)


@dataclasses.dataclass(frozen=True)
class NoSlower:
    """The claim that a method needs less than `factor` times as many updates or steps as another.

    By default, this means that something costs the method little.
    """

    name: str
    than: str
    statement: str
    factor: float = BAND
    axis: str = "update"
    longer: ClassVar[bool] = False

    @property
    def names(self) -> tuple[str, ...]:
        return self.name, self.than

    @property
    def said(self) -> tuple[str, str]:
        what = "updates" if self.axis == "update" else counted(self.axis)
        return f"{what} of {self.name}, relative to {self.than}", self.statement

    def judged(self, ranking: Ranking) -> tuple[str, str]:
        if text := at_once(ranking, *self.names):
            return text, UNKNOWN
        known = {name: ranking.at_least(name, self.axis) for name in self.names}
        found = paired_ratio(ranking, known, self.name, self.than)
        # Where a method never arrives, the ratio is only a bound.
        most, least = (ranking.arrived(n) < len(ranking.runs[n]) for n in (self.than, self.name))
        missing = [
            f"{ranking.arrived(n)} of {len(ranking.runs[n])} seeds of {n} reach the level"
            for n, short in zip(self.names, (least, most), strict=True)
            if short
        ]
        if most and least:
            return "; ".join(missing), UNKNOWN
        ratio = f"{'< ' * most}{'> ' * least}{times(found.middle)} ({found})"
        text = "; ".join([ratio, *missing])
        if found.high < self.factor and not least:
            return text, HOLDS
        return text, FAILS if found.low > self.factor and not most else UNKNOWN


@dataclasses.dataclass(frozen=True)
class NearBest:
    """The claim that a run reaches the level nearly as early as variants of it.

    It holds if `NoSlower` holds for each of them, and differs if it fails for one. A variant that
    misses the level with a seed is no better than a run that never does.
    """

    name: str
    others: tuple[str, ...]
    longer: ClassVar[bool] = False

    @property
    def names(self) -> tuple[str, ...]:
        return self.name, *self.others

    @property
    def said(self) -> tuple[str, str]:
        return f"{self.name}, updates to the level", ""

    def judged(self, ranking: Ranking) -> tuple[str, str]:
        reached = {name: ranking.reached(name, "update") for name in self.names}
        text = "; ".join(f"{name}: {mean(reached[name])}" for name in self.names)
        arrives = {n: ranking.arrived(n) == len(ranking.runs[n]) for n in self.names}
        if not enough(ranking, *self.names):
            return text, UNKNOWN
        rivals = [n for n in self.others if arrives[n] or not arrives[self.name]]
        grades = {NoSlower(self.name, n, "").judged(ranking)[1] for n in rivals} | {HOLDS}
        worst = next(grade for grade in (FAILS, UNKNOWN, HOLDS) if grade in grades)
        return text, DIFFERS if worst == FAILS else worst


def _few(ranking: Ranking, names: Sequence[str]) -> str:
    """State the number of seeds of some methods if other methods have more."""
    seeds = min((len(ranking.runs[n]) for n in names if n not in ranking.fixed), default=0)
    most = max(map(len, ranking.runs.values()))
    return "" if seeds in (0, most) else f" ({seeds} seed{'s' * (seeds > 1)})"


def paired_ratio(
    ranking: Ranking, values: Mapping[str, Sequence[float]], name: str, than: str
) -> Estimate:
    """Estimate the ratio of the values of two methods at their common seeds."""
    pairs = ranking.paired(name, than, values)
    ratios = [max(a, 1e-12) / max(b, 1e-12) for a, b in pairs]
    if ranking.fixed.issuperset((name, than)):  # without randomness, all seeds would agree
        ratios *= ENOUGH
    return estimate(ratios)


def in_order(tests: Sequence[tuple[str, Estimate]], text: str) -> tuple[str, str]:
    """Grade an order of methods by the tests of its pairs, whose ratios should exceed one."""
    wrong = [pair for pair, found in tests if found.below]
    open_ = [pair for pair, found in tests if not found.below and not found.above]
    if wrong:
        return f"{text}; reversed: {', '.join(wrong)}", FAILS
    if open_:
        return f"{text}; not separated: {', '.join(open_)}", UNKNOWN
    return f"{text}; {p_text(max(found.p for _, found in tests))} or less", HOLDS
