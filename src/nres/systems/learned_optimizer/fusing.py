"""What the kernels for GPUs have in common."""

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, UInt8

Layers: TypeAlias = list[dict[str, Array]]
"""A model: of each layer the weight and the bias."""
Batch: TypeAlias = tuple[UInt8[Array, "batch ..."], UInt8[Array, "batch"]]
"""Images in bytes, and their labels."""


def on_nvidia() -> bool:
    """Whether computations run where the kernels do."""
    return jax.default_backend() == "gpu" and "NVIDIA" in jax.devices()[0].device_kind


def interpreted() -> bool:
    """Whether kernels are only tried out, on a processor."""
    return jax.default_backend() == "cpu"


def precision() -> Any:
    """As exact as JAX is told to multiply matrices: with short floats unless told otherwise."""
    if interpreted():
        return None
    chosen = jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]
    if chosen in ("highest", "float32", "F32_F32_F32", "TF32_TF32_F32_X3"):
        return jax.lax.DotAlgorithmPreset.TF32_TF32_F32_X3
    return jax.lax.DotAlgorithmPreset.TF32_TF32_F32


def padded_size(size: int) -> int:
    """What a kernel can work on: a power of two, and sixteen at least."""
    return max(16, 1 << (size - 1).bit_length())


def relu(x: Array) -> Array:
    """At least zero, and not a number what was none: the maximum of a GPU would hide it."""
    return jnp.where(x < 0, 0.0, x)


def derivatives_of(plain: Callable, static: int = 0) -> Callable[[Callable], Callable]:
    """Make a function that computes the same as `plain`, but faster, differentiable like it.

    **Arguments:**

    - `plain`: what it computes, in plain JAX.
    - `static`: how many arguments, the first ones, are no arrays.
    """

    def decorate(fast: Callable) -> Callable:
        function = jax.custom_jvp(fast, nondiff_argnums=tuple(range(static)))

        @function.defjvp
        def _(*arguments):
            *fixed, primals, tangents = arguments
            return jax.jvp(functools.partial(plain, *fixed), primals, tangents)

        return function

    return decorate
