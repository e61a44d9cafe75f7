"""Claims of the paper about the values that methods reach."""

import dataclasses
from typing import ClassVar

import numpy as np

from nres_paper.claims import enough, in_order, paired_ratio
from nres_paper.grades import FAILS, HOLDS, NEAR, NOT_THERE, UNKNOWN, spread
from nres_paper.ranking import Ranking, estimate


@dataclasses.dataclass(frozen=True)
class Attains:
    """The claim that a method reaches a value with every seed."""

    name: str
    paper: float
    longer: ClassVar[bool] = False

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    @property
    def said(self) -> tuple[str, str]:
        return f"best value of {self.name}", f"{self.paper:.4g}"

    def judged(self, ranking: Ranking) -> tuple[str, str]:
        best = ranking.least(self.name)
        text = f"{np.mean(best):.4g}" + spread(best, "{:.4g}")
        if max(best) > self.paper:
            return text, UNKNOWN if ranking.is_short(self.name) else FAILS
        return text, HOLDS if enough(ranking, self.name) else UNKNOWN


@dataclasses.dataclass(frozen=True)
class Better:
    """The claim that each of these methods reaches a lower value than each of those."""

    these: tuple[str, ...]
    those: tuple[str, ...]
    longer: bool = False
    in_paper: bool = True

    @property
    def names(self) -> tuple[str, ...]:
        return *self.these, *self.those

    @property
    def said(self) -> tuple[str, str]:
        about = f"best value of {', '.join(self.these)}" + ", in longer runs" * self.longer
        better = f"better than {', '.join(self.those)}"
        return (about, better) if self.in_paper else (f"{about}, {better}", NOT_THERE)

    def judged(self, ranking: Ranking) -> tuple[str, str]:
        best = {name: ranking.least(name) for name in self.names}
        text = ", ".join(f"{name} {np.mean(values):.4g}" for name, values in best.items())
        return in_order(
            [
                (f"{mine} and {other}", paired_ratio(ranking, best, other, mine))
                for mine in self.these
                for other in self.those
            ],
            text,
        )


@dataclasses.dataclass(frozen=True)
class NoWorse:
    """The claim that a method ends with at most `NEAR` times the value of another; in no paper."""

    name: str
    than: str
    longer: ClassVar[bool] = False

    @property
    def names(self) -> tuple[str, ...]:
        return self.name, self.than

    @property
    def said(self) -> tuple[str, str]:
        return f"final value of {self.name}, at most {NEAR:g} times that of {self.than}", NOT_THERE

    def judged(self, ranking: Ranking) -> tuple[str, str]:
        final = {name: ranking.final(name) for name in self.names}
        found = paired_ratio(ranking, final, self.name, self.than)
        text = f"{found.middle:.3g} ({found})"
        if found.high < NEAR:
            return text, HOLDS
        return text, FAILS if found.low > NEAR else UNKNOWN


@dataclasses.dataclass(frozen=True)
class Ends:
    """The claim that a method ends near its asymptote, or far above it."""

    name: str
    asymptote: str
    near: bool
    longer: ClassVar[bool] = True

    @property
    def names(self) -> tuple[str, ...]:
        return self.name, self.asymptote

    @property
    def said(self) -> tuple[str, str]:
        about = f"final value of {self.name}, relative to {self.asymptote}"
        return about, "about 1" if self.near else "far above 1"

    def judged(self, ranking: Ranking) -> tuple[str, str]:
        (limit,) = ranking.final(self.asymptote)[:1]
        found = estimate([value / limit for value in ranking.within_budget().final(self.name)])
        text = f"{found.middle:.3g} ({found})"
        if self.near:
            if found.low >= 1 / NEAR and found.high <= NEAR:
                return text, HOLDS
            return text, FAILS if found.low > NEAR or found.high < 1 / NEAR else UNKNOWN
        if found.low > NEAR:
            return text, HOLDS
        return text, FAILS if found.high < NEAR else UNKNOWN
