"""Grades of statements of the paper, and the words in which results are told.

The grades are:

- `holds`: a bound is met; a number is within a factor of `BAND` of the paper's; an order of methods
  is established by a paired test over seeds.
- `differs`: the direction is the paper's, but the number is outside the band or a bound is missed.
- `fails`: the opposite is established, or a method does what the paper says it does not.
- `not established`: seeds scatter too much, are too few, or runs are too short to tell.
- `not run yet`: there are no results.
- `shown`: the same comparison on another axis, about which the paper says nothing.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from nres.runs import AXES

BAND = 1.5
"""A number holds if it is at most this factor larger or smaller than the paper's."""
NEAR = 1.1
"""A method is at its asymptote if it ends within this factor of it."""

HOLDS, DIFFERS, FAILS = "holds", "differs", "fails"
UNKNOWN, NOT_RUN, SHOWN = "not established", "not run yet", "shown"
NOT_THERE = "not in the paper"
"""The words for the paper's side of a statement that the paper does not make."""
GRADES = (HOLDS, DIFFERS, FAILS, UNKNOWN, NOT_RUN, SHOWN)


@dataclasses.dataclass(frozen=True)
class Check:
    """One statement of the paper and the corresponding result here."""

    about: str
    paper: str
    ours: str
    grade: str
    """One of `GRADES`."""


VERDICTS = ("yes", "in part", "no", UNKNOWN, NOT_RUN)


def verdict(checks: Sequence[Check]) -> str:
    """Combine the grades of all statements of the paper into one of `VERDICTS`."""
    grades = {check.grade for check in checks if check.paper != NOT_THERE} - {SHOWN}
    if grades == {HOLDS}:
        return "yes"
    if grades & {HOLDS, DIFFERS}:
        return "in part"
    return next((word for grade, word in _WORST if grade in grades), NOT_RUN)


_WORST = ((FAILS, "no"), (UNKNOWN, UNKNOWN))


def counted(axis: str) -> str:
    """Name the unit of an axis."""
    return AXES[axis].replace(" unroll", "")


def times(ratio: float) -> str:
    """Return a ratio as text."""
    return f"{ratio:.3g}×" if ratio < 1000 else f"{number(ratio)}×"


def spread(values: Sequence[float], form: str) -> str:
    """Return the minimum and the maximum in brackets, or nothing if they look the same."""
    low, high = (form.format(value) for value in (min(values), max(values)))
    return f" ({low} to {high})" if low != high else ""


def mean(steps: Sequence[float]) -> str:
    """State the mean over seeds with the minimum and the maximum, as text."""
    there, (low, high) = sum(map(math.isfinite, steps)), (min(steps), max(steps))
    if 0 < there < len(steps):
        return f"{number(low)} to never ({there} of {len(steps)} seeds)"
    around = f" ({number(low)} to {number(high)})" if low < high else ""
    return number(float(np.mean(steps))) + around


def number(value: float) -> str:
    """Return a number with three digits, or `never` for infinity."""
    if math.isinf(value):
        return "never"
    if value >= 1e4:
        return f"{value:.2e}"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
