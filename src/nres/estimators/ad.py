"""The common part of the estimators that differentiate a system."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree

from nres.estimators.base import Estimator
from nres.pools.base import TraceablePool, Window
from nres.system import Theta, at_least_single


class Differentiating(Estimator):
    """Base class of `BPTT`, `TBPTT`, `DODGE`, `RTRL` and `UORO`: one unroll per worker."""

    pool: TraceablePool

    __init__ = Estimator.__init__

    def __check_init__(self) -> None:
        if not self.pool.traceable:
            raise TypeError(
                f"{type(self).__name__} differentiates the system, but "
                f"{type(self.pool).__name__} is a black box. Use an evolution strategy, which "
                "needs only losses: nres.NRES(pool, workers=..., window=..., sigma=...)."
            )

    @property
    def members(self) -> int:
        return 1


def for_lanes(theta: Theta, workers: int) -> PyTree:
    """Repeat `theta` for one member of each worker.

    Args:
        theta: The parameters.
        workers: The number of workers.

    Returns:
        A pytree like `theta` with axes `(1, workers)` in front.
    """
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (1, workers, *x.shape)), theta)


def widened(theta: Theta) -> Theta:
    """Convert `theta` to at least single precision, in which gradients are added up."""
    return jax.tree.map(lambda x: x.astype(at_least_single(x.dtype)), theta)


def run_widened(
    pool: TraceablePool,
    like: Theta,
    state: PyTree,
    thetas: PyTree,
    keys: Array,
    start: Int[Array, " workers"],
    window: int,
    length: Int[Array, " workers"] | None,
) -> Window:
    """Call `TraceablePool.run` with parameters in a wider dtype than the system's own.

    Derivatives are then added up over the steps in the wide dtype. `like` has the system's dtypes.
    """

    def narrow(thetas):
        return jax.tree.map(lambda x, own: x.astype(own.dtype), thetas, like)

    pairs = zip(jax.tree.leaves(thetas), jax.tree.leaves(like), strict=True)
    if all(wide.dtype == own.dtype for wide, own in pairs):
        return pool.run(state, thetas, keys, start, window, length)

    def one_step(state, i):
        # Convert in every step: cotangents are then widened per step, and added up in the wide one.
        one = None if length is None else (i < length).astype(start.dtype)
        result = pool.run(state, narrow(thetas), keys, start + i, 1, one)
        return result.state, (result.loss, result.steps)

    offsets = jnp.arange(window, dtype=start.dtype)
    state, (loss, steps) = jax.lax.scan(one_step, state, offsets)
    return Window(state, loss.sum(axis=0), steps.sum(axis=0, dtype=steps.dtype))
