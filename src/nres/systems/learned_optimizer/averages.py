"""Running averages of gradients and of their squares, in full and factored by rows and columns."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

# The smallest squared gradient, and the smallest factor of a factored second moment.
TINY_SQUARE, TINY_FACTOR = 1e-30, 1e-9


class Decays(NamedTuple):
    """The decays of the averages."""

    momenta: Float[Array, " momenta"]
    second: Float[Array, ""]
    factored: Float[Array, " momenta"]


class Averages(NamedTuple):
    """The averages of one tensor; all are zero at first, and none is corrected for that.

    A tensor with fewer than two axes has no columns: its `rows` are second moments in full.
    """

    momenta: Float[Array, "momenta ..."]
    """Averages of the gradient, one per decay."""
    second: Float[Array, "..."]
    """The average of the squared gradient."""
    rows: Float[Array, "momenta ..."]
    """Averages of squares over the longest axis, whose length becomes 1."""
    columns: Float[Array, "momenta ..."]
    """Averages of squares over the second longest axis, whose length becomes 1."""

    @classmethod
    def zeros(cls, tensor: Float[Array, "..."], momenta: int) -> "Averages":
        """Return the averages before the first step."""
        rows = columns = jnp.zeros((momenta, *tensor.shape), tensor.dtype)
        if tensor.ndim > 1:
            longest, next_longest = longest_axes(tensor.shape)
            rows = rows.mean(1 + longest, keepdims=True)
            columns = columns.mean(1 + next_longest, keepdims=True)
        else:
            columns = columns[:0]
        many = jnp.zeros((momenta, *tensor.shape), tensor.dtype)
        return cls(many, jnp.zeros_like(tensor), rows, columns)

    def updated(self, gradient: Float[Array, "..."], decays: Decays) -> "Averages":
        """Return the averages after one more gradient."""
        squares = gradient**2
        seen = squares + TINY_SQUARE
        per_row, per_column = seen, None
        if gradient.ndim > 1:
            longest, next_longest = longest_axes(gradient.shape)
            per_row = seen.mean(longest, keepdims=True)
            per_column = seen.mean(next_longest, keepdims=True)
        return Averages(
            _moved(self.momenta, gradient, decays.momenta),
            _moved(self.second[None], squares, decays.second[None])[0],
            _moved(self.rows, per_row, decays.factored),
            self.columns
            if per_column is None
            else _moved(self.columns, per_column, decays.factored),
        )

    def scales(self) -> Float[Array, "momenta ..."]:
        """Return the inverse roots of the factored second moments, one per decay."""
        if self.second.ndim < 2:
            return jax.lax.rsqrt(self.rows + TINY_FACTOR)
        _, next_longest = longest_axes(self.second.shape)
        mean = self.rows.mean(1 + next_longest, keepdims=True)
        rows = jnp.maximum(self.rows / (mean + TINY_FACTOR), TINY_FACTOR)
        columns = jnp.maximum(self.columns, TINY_FACTOR)
        return jax.lax.rsqrt(rows) * jax.lax.rsqrt(columns)


def longest_axes(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the longest and the second longest axis; of equal axes, the later counts as longer."""
    order = np.argsort(shape, kind="stable")
    return int(order[-1]), int(order[-2])


def normalised(
    x: Float[Array, "..."], eps: float, axes: tuple[int, ...] | None = None
) -> Float[Array, "..."]:
    """Divide by the root mean square over some axes, by default over all."""
    return x * jax.lax.rsqrt(eps + jnp.mean(x**2, axes, keepdims=True))


def _moved(old: Array, new: Array, decays: Array) -> Array:
    decays = decays.astype(old.dtype).reshape(-1, *(1 for _ in new.shape))
    return decays * old + (1 - decays) * new[None]
