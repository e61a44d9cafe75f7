"""The common part of the estimators that differentiate a system."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree

from nres.estimators.base import Estimator
from nres.pools.base import TraceablePool, Window
from nres.system import Theta, at_least_single


class Differentiating(Estimator):
    """The common part of `BPTT`, `TBPTT`, `DODGE` and `UORO`: one unroll per worker."""

    pool: TraceablePool

    __init__ = Estimator.__init__

    def __check_init__(self) -> None:
        if not self.pool.traceable:
            raise TypeError(
                f"{type(self).__name__} differentiates the system, and "
                f"{type(self.pool).__name__} is a black box. An evolution strategy needs nothing "
                "but losses: nres.NRES(pool, workers=..., window=..., sigma=...)."
            )

    @property
    def members(self) -> int:
        return 1


def for_lanes(theta: Theta, workers: int) -> PyTree:
    """`theta` for one member of each worker."""
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (1, workers, *x.shape)), theta)


def widened(theta: Theta) -> Theta:
    """`theta` in single precision at least, in which gradients are to be added up."""
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
    """`TraceablePool.run` with parameters in a wider dtype than the system is written for.

    Derivatives are then added up over the steps in the wide dtype. `like` has the system's own.
    """

    def narrow(thetas):
        return jax.tree.map(lambda x, own: x.astype(own.dtype), thetas, like)

    pairs = zip(jax.tree.leaves(thetas), jax.tree.leaves(like), strict=True)
    if all(wide.dtype == own.dtype for wide, own in pairs):
        return pool.run(state, thetas, keys, start, window, length)

    def one_step(state, i):
        # Converted in every step, so that what flows back is converted there, and added up here.
        one = None if length is None else (i < length).astype(start.dtype)
        result = pool.run(state, narrow(thetas), keys, start + i, 1, one)
        return result.state, (result.loss, result.steps)

    offsets = jnp.arange(window, dtype=start.dtype)
    state, (loss, steps) = jax.lax.scan(one_step, state, offsets)
    return Window(state, loss.sum(axis=0), steps.sum(axis=0, dtype=steps.dtype))
