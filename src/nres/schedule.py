"""`Piecewise`: a piecewise-constant schedule that can be written as text."""

import dataclasses
import itertools
import math

import jax.numpy as jnp
from jaxtyping import Array, Float


@dataclasses.dataclass(frozen=True)
class Piecewise:
    """A piecewise-constant schedule: a function of the number of updates made so far.

    A schedule can serve as `sigma` of an estimator and as the learning rate of an optax
    optimizer. `str(schedule)` gives text that `Piecewise.parse` reads.

    Args:
        first: The value at update 0.
        changes: Pairs `(update, value)` in increasing order of `update`: from that update on, the
            schedule has that value.

    Example:
        ```python
        rate = nres.Piecewise.parse("1e-5,1000:1e-6")  # 1e-5 for 1000 updates, then 1e-6
        rate(999), rate(1000), str(rate)
        ```
    """

    first: float
    changes: tuple[tuple[int, float], ...] = ()
    """Pairs of an update and the value from that update on."""

    @classmethod
    def parse(cls, text: str | float | int) -> "Piecewise":
        """Read a schedule from text.

        Args:
            text: A number, or `"VALUE,UPDATE:VALUE,..."`.

        Returns:
            The schedule.

        Raises:
            ValueError: If the text has another form, if the updates do not increase, or if a value
                is not positive and finite.
        """
        first, *rest = str(text).split(",")
        try:
            changes = [part.split(":") for part in rest]
            result = cls(float(first), tuple((int(u), float(v)) for u, v in changes))
        except ValueError:
            raise ValueError(
                f"{text!r} is neither a number nor of the form VALUE,UPDATE:VALUE,...; "
                "for example, 1e-5,1000:1e-6 is 1e-5, and 1e-6 from update 1000 on."
            ) from None
        updates = [0, *(update for update, _ in result.changes)]
        if any(later <= earlier for earlier, later in itertools.pairwise(updates)):
            raise ValueError(f"the updates in {text!r} must be positive and increase.")
        if not all(math.isfinite(v) and v > 0 for v in result.values):
            raise ValueError(f"the values in {text!r} must be positive and finite.")
        return result

    @property
    def values(self) -> tuple[float, ...]:
        """All values, in order."""
        return (self.first, *(value for _, value in self.changes))

    def __str__(self) -> str:
        return ",".join([repr(self.first), *(f"{u}:{v!r}" for u, v in self.changes)])

    def __call__(self, update: Array | int) -> Float[Array, ""]:
        value = jnp.asarray(self.first, float)
        for start, later in self.changes:
            value = jnp.where(jnp.asarray(update) >= start, jnp.asarray(later, float), value)
        return value
