"""What the kernels for GPUs have in common."""

import functools
from collections.abc import Callable
from typing import Any

import jax


def on_nvidia() -> bool:
    """Whether computations run where the kernels do."""
    return jax.default_backend() == "gpu" and "NVIDIA" in jax.devices()[0].device_kind


def precision() -> Any:
    """As exact as JAX is told to multiply matrices: with short floats unless told otherwise."""
    if jax.default_backend() == "cpu":
        return None
    chosen = jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]
    if chosen in (None, "default", "tensorfloat32", "bfloat16"):
        return jax.lax.DotAlgorithmPreset.TF32_TF32_F32
    return jax.lax.DotAlgorithmPreset.TF32_TF32_F32_X3


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
