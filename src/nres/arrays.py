"""Functions that work on NumPy arrays and on JAX arrays."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def namespace(array: Any) -> Any:
    """Return the module whose functions fit an array: `jax.numpy` or `numpy`."""
    return jnp if isinstance(array, jax.Array) else np
