"""Models whose parameters are one vector, which takes fewer kernels than one array per tensor."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree


class Layout(NamedTuple):
    """The order in which the parameters of a model lie in one vector: that of the pytree."""

    structure: Any
    """The pytree's structure."""
    shapes: tuple[tuple[int, ...], ...]
    """The shapes of the leaves."""

    @classmethod
    def of(cls, params: PyTree) -> "Layout":
        """Return the layout of parameters like these."""
        leaves, structure = jax.tree.flatten(params)
        return cls(structure, tuple(leaf.shape for leaf in leaves))

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of parameters in each leaf."""
        return tuple(map(math.prod, self.shapes))

    @property
    def starts(self) -> tuple[int, ...]:
        """The position of each leaf's first parameter."""
        return tuple(np.cumsum((0, *self.sizes[:-1])).tolist())

    def vector(self, params: PyTree) -> Float[Array, " size"]:
        """Return the vector of these parameters."""
        return jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(params)])

    def tree(self, vector: Float[Array, " size"]) -> PyTree:
        """Return the parameters in a vector as a pytree."""
        parts = zip(self.starts, self.sizes, self.shapes, strict=True)
        leaves = [vector[start : start + size].reshape(shape) for start, size, shape in parts]
        return jax.tree.unflatten(self.structure, leaves)


@dataclasses.dataclass(frozen=True)
class OfVector:
    """A function of a model's parameters and a batch that is computed from the vector."""

    function: Callable[[Layout, Array, Any], Array]
    """The function of a layout, a vector and a batch."""
    is_gradient: bool
    """True if it returns a vector with the same layout."""

    def __call__(self, params: PyTree, batch: Any) -> Any:
        layout = Layout.of(params)
        result = self.function(layout, layout.vector(params), batch)
        return layout.tree(result) if self.is_gradient else result


def on_vectors(function: Callable, layout: Layout, *, is_gradient: bool) -> Callable:
    """Return a function of parameters and a batch for parameters in one vector.

    Args:
        function: The function of a pytree of parameters; its faster version is used if it has one.
        layout: The order of the parameters.
        is_gradient: True if it returns a pytree like the parameters.
    """
    if isinstance(function, OfVector):
        return functools.partial(function.function, layout)

    def of_vector(vector: Float[Array, " size"], batch: Any) -> Any:
        result = function(layout.tree(vector), batch)
        return layout.vector(result) if is_gradient else result

    return of_vector
