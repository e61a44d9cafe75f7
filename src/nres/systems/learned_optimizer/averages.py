"""Running averages of gradients and of their squares, in full and factored by rows and columns."""

import abc
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from nres.system import Theta
from nres.systems.learned_optimizer.fusing import Layers
from nres.systems.learned_optimizer.optimizers import LearnableOptimizer, Params

# The number of momenta.
MOMENTA = 3
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
    columns: Float[Array, "momenta ..."] | None
    """Averages of squares over the second longest axis, whose length becomes 1."""

    @classmethod
    def zeros(cls, tensor: Float[Array, "..."], momenta: int) -> "Averages":
        """Return the averages before the first step."""
        many = jnp.zeros((momenta, *tensor.shape), tensor.dtype)
        rows, columns = _means(many, 1)
        return cls(many, jnp.zeros_like(tensor), rows, columns)

    def updated(self, gradient: Float[Array, "..."], decays: Decays) -> "Averages":
        """Return the averages after one more gradient."""
        squares = gradient**2
        rows, columns = _means(squares + TINY_SQUARE)
        if columns is not None and self.columns is not None:
            columns = _moved(self.columns, columns, decays.factored)
        return Averages(
            _moved(self.momenta, gradient, decays.momenta),
            _moved(self.second[None], squares, decays.second[None])[0],
            _moved(self.rows, rows, decays.factored),
            columns,
        )

    def scales(self) -> Float[Array, "momenta ..."]:
        """Return the inverse roots of the factored second moments, one per decay."""
        if self.columns is None:
            return jax.lax.rsqrt(self.rows + TINY_FACTOR)
        _, next_longest = longest_axes(self.second.shape)
        mean = self.rows.mean(1 + next_longest, keepdims=True)
        rows = jnp.maximum(self.rows / (mean + TINY_FACTOR), TINY_FACTOR)
        columns = jnp.maximum(self.columns, TINY_FACTOR)
        return jax.lax.rsqrt(rows) * jax.lax.rsqrt(columns)


class AveragingOptimizer(LearnableOptimizer):
    """Base class of optimizers that step tensor by tensor, from averages with three decays."""

    @abc.abstractmethod
    def decays(self, theta: Theta) -> Decays:
        """Return the decays of the averages."""

    @abc.abstractmethod
    def change(
        self, theta: Theta, g: Array, p: Array, averages: Averages, t: Int[Array, ""]
    ) -> Array:
        """Return the change of one tensor, given averages that contain its gradient."""

    def init(self, params: Params) -> list[Averages]:
        return [Averages.zeros(p, MOMENTA) for p in jax.tree.leaves(params)]

    def update(self, theta, grads, state, params, t):
        leaves, structure = jax.tree.flatten(params)
        decays = self.decays(theta)
        gradients = jax.tree.leaves(grads)
        averages = [old.updated(g, decays) for old, g in zip(state, gradients, strict=True)]
        changes = [
            self.change(theta, g, p, new, t)
            for g, p, new in zip(gradients, leaves, averages, strict=True)
        ]
        return jax.tree.unflatten(structure, changes), averages


def longest_axes(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the longest and the second longest axis; of equal axes, the later counts as longer."""
    order = np.argsort(shape, kind="stable")
    return int(order[-1]), int(order[-2])


def normalised(x: Float[Array, "..."], eps: float, axes: tuple[int, ...]) -> Float[Array, "..."]:
    """Divide by the root mean square over some axes."""
    return x * jax.lax.rsqrt(eps + jnp.mean(x**2, axes, keepdims=True))


def _means(x: Array, first: int = 0) -> tuple[Array, Array | None]:
    """Return means over the longest and over the second longest axis from `first` on.

    With fewer than two such axes, there is nothing to average: return the array and `None`.
    """
    if x.ndim - first < 2:
        return x, None
    longest, next_longest = (first + axis for axis in longest_axes(x.shape[first:]))
    return x.mean(longest, keepdims=True), x.mean(next_longest, keepdims=True)


def _moved(old: Array, new: Array, decays: Array) -> Array:
    decays = decays.astype(old.dtype).reshape(-1, *(1 for _ in new.shape))
    return decays * old + (1 - decays) * new[None]


def apply_layers(layers: Layers, x: Float[Array, "inputs ..."]) -> Float[Array, "outputs ..."]:
    """Apply a network with ReLU between its layers to the first axis.

    With the inputs in front, each of them is contiguous, and one kernel of a GPU can make them all.
    """
    columns = x.reshape(x.shape[0], -1)
    for i, layer in enumerate(layers):
        weight, bias = (layer[name].astype(x.dtype) for name in ("weight", "bias"))
        columns = weight.T @ (jax.nn.relu(columns) if i else columns) + bias[:, None]
    return columns.reshape(-1, *x.shape[1:])
