"""Helpers that the kernels for GPUs share."""

from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, UInt8

from nres.gpu import has_nvidia

Layers: TypeAlias = list[dict[str, Array]]
"""Parameters of a model: the weight and the bias of each layer."""
Batch: TypeAlias = tuple[UInt8[Array, "batch ..."], UInt8[Array, " batch"]]
"""Images in bytes, and their labels."""


def interpreted() -> bool:
    """Return true if kernels are interpreted, for tests on a CPU."""
    return not has_nvidia()


def precision(*, moderate: bool = False) -> Any:
    """Return JAX's precision setting for matrix products as Pallas expects it; default TF32.

    Args:
        moderate: True if no number is near the ends of half precision's range. Half precision has
            as many significant bits as TF32, and its products are faster.
    """
    if interpreted():
        return None
    chosen = jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]
    preset = jax.lax.DotAlgorithmPreset
    if chosen not in _TF32:
        return preset.TF32_TF32_F32_X3
    return preset.F16_F16_F32 if moderate else preset.TF32_TF32_F32


# The settings for which TF32 is precise enough.
_TF32 = (
    *(None, "default", "fastest", "high", "tensorfloat32", "TF32_TF32_F32"),
    *("bfloat16", "bfloat16_3x", "BF16_BF16_F32", "F16_F16_F32"),
)


def padded_size(size: int) -> int:
    """Round up to a size that kernels can use: a power of two, at least sixteen."""
    return max(16, 1 << (size - 1).bit_length())


def relu(x: Array) -> Array:
    """Apply ReLU and keep NaN, which the maximum instruction of a GPU would hide."""
    return jnp.where(x < 0, 0.0, x)
