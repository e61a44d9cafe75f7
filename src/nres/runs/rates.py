"""Learning rates as text: constant, piecewise constant or a cosine, with an optional warm-up."""

import dataclasses
import math
from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Float

from nres.runs.names import SettingsError
from nres.schedule import Piecewise


@dataclasses.dataclass(frozen=True)
class Cosine:
    """A learning rate that falls from `first` to `last` along half a period of a cosine.

    With a warm-up of `w` updates, the rate is `first` until update `w`. After `u` more of the
    remaining `n` updates, it is `last + (first - last) (1 + cos(pi u / n)) / 2`, and `last` from
    then on.
    """

    first: float
    last: float
    updates: int | None = None
    """The update at which the rate reaches `last`; `None` for the last update of the run."""

    @classmethod
    def parse(cls, text: str) -> "Cosine":
        """Read `"cosine:FROM:TO"` or `"cosine:FROM:TO:UPDATES"`.

        Raises:
            ValueError: If the text has another form, or a number is out of bounds.
        """
        try:
            _, first, last, *updates = text.split(":")
            result = cls(float(first), float(last), *map(int, updates))
        except (ValueError, TypeError):
            raise ValueError(
                f"{text!r} is not of the form cosine:FROM:TO or cosine:FROM:TO:UPDATES; for "
                "example, cosine:1e-3:1e-5 lowers the rate from 1e-3 to 1e-5 over the run."
            ) from None
        if not 0 <= result.last < result.first < math.inf:
            raise ValueError(f"in {text!r}, FROM must be larger than TO, and TO at least zero.")
        if result.updates is not None and result.updates < 1:
            raise ValueError(f"in {text!r}, UPDATES must be at least 1.")
        return result

    def __str__(self) -> str:
        parts = ["cosine", repr(self.first), repr(self.last)]
        return ":".join(parts if self.updates is None else [*parts, str(self.updates)])

    def __call__(self, update: Array | int, warmup: int = 0) -> Float[Array, ""]:
        """Return the rate at an update, which is `first` during the warm-up."""
        assert self.updates is not None
        # All numbers are floating-point, so that others need no new compilation.
        done = (jnp.asarray(update, float) - float(warmup)) / float(self.updates - warmup)
        wave = (1 + jnp.cos(jnp.pi * jnp.minimum(jnp.maximum(done, 0.0), 1.0))) / 2
        return self.last + (self.first - self.last) * wave


def parse_rate(text: str) -> Piecewise | Cosine:
    """Read a learning rate: a number, `VALUE,UPDATE:VALUE,...` or `cosine:FROM:TO`.

    Raises:
        ValueError: If the text has another form, or a number is out of bounds.
    """
    if text.partition(":")[0] == "cosine":
        return Cosine.parse(text)
    try:
        return Piecewise.parse(text)
    except ValueError as error:
        raise ValueError(f"{error} A cosine is written cosine:1e-3:1e-5.") from error


def whole_rate(text: str, *, updates: int, warmup: int | None, budget_seconds: float | None) -> str:
    """Return a learning rate with its length, so that it stays if more updates follow.

    Args:
        text: The rate, as `parse_rate` reads it.
        updates: The number of updates of the run.
        warmup: The number of updates over which the rate rises, if any.
        budget_seconds: The seconds after which the run ends, if they are limited.

    Raises:
        SettingsError: If the length is unknown, or not longer than the warm-up.
    """
    schedule = parse_rate(text)
    if not isinstance(schedule, Cosine):
        return text
    if schedule.updates is None:
        if budget_seconds is not None:
            raise SettingsError(
                f"lr = {text} needs a length if budget_seconds ends the run: give {text}:UPDATES."
            )
        schedule = dataclasses.replace(schedule, updates=updates)
    if schedule.updates is not None and (warmup or 0) >= schedule.updates:
        raise SettingsError(
            f"warmup must be smaller than the {schedule.updates} updates of lr = {text}, got "
            f"{warmup}."
        )
    return str(schedule)


def learning_rate(text: str, warmup: int | None) -> float | Callable[[Array], Array]:
    """Return a learning rate for optax.

    Args:
        text: The rate, as `parse_rate` reads it.
        warmup: The number of updates over which the rate rises linearly from zero, if any.
    """
    schedule = parse_rate(text)
    if warmup is None and isinstance(schedule, Piecewise):
        return schedule if schedule.changes else schedule.first
    after = warmup or 0

    def rate(update: Array) -> Array:
        value = schedule(update, after) if isinstance(schedule, Cosine) else schedule(update)
        if not after:
            return value
        return value * jnp.minimum(jnp.asarray(update, float) / float(after), 1.0)

    return rate
