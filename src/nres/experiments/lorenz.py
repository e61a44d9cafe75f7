"""The loss surface of Lorenz [subsec:lorenz]."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from nres.evaluate import evaluate
from nres.systems import Lorenz


def loss_surface(
    system: Lorenz, ln_r: Float[np.ndarray, "columns"], ln_a: Float[np.ndarray, "rows"]
) -> Float[Array, "rows columns"]:
    """The training loss on a grid of parameters."""
    grid = jnp.stack(jnp.meshgrid(jnp.asarray(ln_r), jnp.asarray(ln_a)), axis=-1)
    key = jax.random.key(0)  # nothing random: every episode is the same
    loss = jax.jit(jax.vmap(lambda theta: evaluate(system, theta, key).loss))
    return loss(grid.reshape(-1, 2)).reshape(grid.shape[:2])
