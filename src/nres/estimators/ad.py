"""What the estimators that differentiate a system have in common."""

from typing import NotRequired, TypedDict

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from nres.estimators.base import Estimator, check_settings
from nres.pools.base import Pool
from nres.pools.jax import JaxPool, as_pool
from nres.system import System, Theta


class Options(TypedDict):
    """What every member of the family takes; `BPTT` documents it."""

    nonfinite: NotRequired[str]


class Differentiating(Estimator):
    """The common part of `BPTT`, `TBPTT`, `DODGE` and `UORO`: one unroll a worker."""

    pool: JaxPool
    horizon: int = eqx.field(static=True)
    workers: int = eqx.field(static=True)
    window: int = eqx.field(static=True)
    members: int = eqx.field(static=True)
    nonfinite: str = eqx.field(static=True)

    def __init__(
        self, system: System | Pool, *, workers: int, window: int, nonfinite: str = "skip"
    ):
        pool = as_pool(system)
        if not isinstance(pool, JaxPool):
            raise TypeError(
                f"{type(self).__name__} differentiates the system, and "
                f"{type(pool).__name__} is a black box. An evolution strategy needs nothing but "
                "losses: nres.NRES(pool, workers=..., window=..., sigma=...)."
            )
        self.pool = pool
        self.horizon = pool.horizon
        self.workers, self.window = check_settings(pool, workers, window, nonfinite)
        self.members = 1
        self.nonfinite = nonfinite


def for_lanes(theta: Theta, workers: int) -> PyTree:
    """`theta` for one member of each worker."""
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (1, workers, *x.shape)), theta)
