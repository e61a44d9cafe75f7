"""Small tasks for learned optimizers, which several test files share."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from nres.data import Images
from nres.systems import learned_optimizer as lo
from nres.systems.learned_optimizer import dense
from nres.systems.learned_optimizer.network import Inputs

KEY = jax.random.key(0)


def blobs(count=60):
    """Two classes of four-pixel images, easy to tell apart."""
    generator = np.random.default_rng(0)
    labels = (np.arange(count) % 2).astype(np.uint8)
    images = generator.integers(0, 120, (count, 2, 2, 1)) + 130 * labels[:, None, None, None]
    return Images(images.astype(np.uint8), labels)


def small_task(**options):
    init = functools.partial(dense.init_dense, (4, 3, 2))
    return lo.classification(init, dense.apply_dense, blobs(), batch=8, **options)


@functools.cache
def small_system(**options):
    return lo.LearnedOptimizerSystem(small_task(), lo.PerParameterMLP(4, 1), horizon=6, **options)


def inputs(lanes, size):
    keys = jax.random.split(KEY, 3)
    return Inputs(
        jnp.linspace(-1, 1, 11),
        jax.random.normal(keys[0], (lanes, size)),
        3 * jax.random.normal(keys[1], (lanes, size)),
        jax.random.normal(keys[2], (lanes, 6, size)),
        jnp.int32(7),
    )
