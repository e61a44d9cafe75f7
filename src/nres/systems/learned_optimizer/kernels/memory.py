"""Masked reads and writes of vectors in kernels."""

import jax.numpy as jnp
from jax.experimental.pallas import triton
from jaxtyping import Array

from nres.systems.learned_optimizer.fusing import interpreted


def load(ref, at: Array, mask: Array) -> Array:
    """Read places of a vector, with zeros where the mask is false."""
    mask = jnp.broadcast_to(mask, at.shape)
    return triton.load(ref.at[at], mask=mask, other=jnp.zeros((), ref.dtype))


def store(ref, at: Array, value: Array, mask: Array) -> None:
    """Write places of a vector where the mask is true."""
    if interpreted():  # the interpreter would write back the old values at masked positions
        at = jnp.where(mask, at, ref.size)
    triton.store(ref.at[at], value, mask=jnp.broadcast_to(mask, at.shape))
