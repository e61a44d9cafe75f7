"""Helpers that the kernels for GPUs share."""

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, UInt8

Layers: TypeAlias = list[dict[str, Array]]
"""Parameters of a model: the weight and the bias of each layer."""
Batch: TypeAlias = tuple[UInt8[Array, "batch ..."], UInt8[Array, " batch"]]
"""Images in bytes, and their labels."""


def interpreted() -> bool:
    """Return true if kernels are interpreted, for tests on a CPU."""
    return jax.default_backend() == "cpu"


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


def derivatives_of(plain: Callable, static: int = 0) -> Callable[[Callable], Callable]:
    """Give a faster version of `plain` the derivatives of `plain`.

    Args:
        plain: The same computation in plain JAX.
        static: The number of leading arguments that are not arrays.
    """

    def decorate(fast: Callable) -> Callable:
        function = jax.custom_jvp(fast, nondiff_argnums=tuple(range(static)))

        @function.defjvp
        def _(*arguments):
            *fixed, primals, tangents = arguments
            return jax.jvp(functools.partial(plain, *fixed), primals, tangents)

        return function

    return decorate
