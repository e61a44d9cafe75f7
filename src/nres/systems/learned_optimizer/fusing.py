"""Helpers that the kernels for GPUs share, and models whose parameters are one vector."""

import math
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree, UInt8

Layers: TypeAlias = list[dict[str, Array]]
"""Parameters of a model: the weight and the bias of each layer."""
Batch: TypeAlias = tuple[UInt8[Array, "batch ..."], UInt8[Array, " batch"]]
"""Images in bytes, and their labels."""


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


def has_nvidia() -> bool:
    """Return true if JAX can use an NVIDIA GPU, which the kernels need."""
    try:
        return bool(jax.devices("cuda"))
    except RuntimeError:
        return False


def interpreted() -> bool:
    """Return true if kernels are interpreted, for tests on a CPU."""
    return not has_nvidia()


def precision() -> Any:
    """Return JAX's precision setting for matrix products as Pallas expects it; default TF32."""
    if interpreted():
        return None
    chosen = jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]
    if chosen in ("highest", "float32", "F32_F32_F32", "TF32_TF32_F32_X3"):
        return jax.lax.DotAlgorithmPreset.TF32_TF32_F32_X3
    return jax.lax.DotAlgorithmPreset.TF32_TF32_F32


def padded_size(size: int) -> int:
    """Round up to a size that kernels can use: a power of two, at least sixteen."""
    return max(16, 1 << (size - 1).bit_length())


def relu(x: Array) -> Array:
    """Apply ReLU and keep NaN, which the maximum instruction of a GPU would hide."""
    return jnp.where(x < 0, 0.0, x)
