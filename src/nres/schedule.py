"""`Piecewise`: a number that changes at given updates, and can be written down."""

import dataclasses
import itertools
import math

import jax.numpy as jnp
from jaxtyping import Array, Float


@dataclasses.dataclass(frozen=True)
class Piecewise:
    """A function of the number of updates made: constant between given updates.

    Serves as `sigma` of an estimator and as learning rate of an optax optimizer.

    ```python
    rate = nres.Piecewise.parse("1e-5,1000:1e-6")  # 1e-5 for 1000 updates, then 1e-6
    rate(999), rate(1000), str(rate)
    ```
    """

    first: float
    changes: tuple[tuple[int, float], ...] = ()
    """From which update on it has which value."""

    @classmethod
    def parse(cls, text: str | float | int) -> "Piecewise":
        """Read `"VALUE"` or `"VALUE,UPDATE:VALUE,..."`."""
        first, *rest = str(text).split(",")
        try:
            changes = [part.split(":") for part in rest]
            result = cls(float(first), tuple((int(u), float(v)) for u, v in changes))
        except ValueError:
            raise ValueError(
                f"{text!r} is neither a number nor VALUE,UPDATE:VALUE,... such as "
                "1e-5,1000:1e-6 (1e-5, and 1e-6 from update 1000 on)."
            ) from None
        updates = [0, *(update for update, _ in result.changes)]
        if any(later <= earlier for earlier, later in itertools.pairwise(updates)):
            raise ValueError(f"the updates in {text!r} must be positive and increase.")
        if not all(math.isfinite(v) and v > 0 for v in result.values):
            raise ValueError(f"the values in {text!r} must be positive.")
        return result

    @property
    def values(self) -> tuple[float, ...]:
        return (self.first, *(value for _, value in self.changes))

    def __str__(self) -> str:
        return ",".join([repr(self.first), *(f"{u}:{v!r}" for u, v in self.changes)])

    def __call__(self, update: Array | int) -> Float[Array, ""]:
        value = jnp.asarray(self.first, float)
        for start, later in self.changes:
            value = jnp.where(jnp.asarray(update) >= start, jnp.asarray(later, float), value)
        return value
