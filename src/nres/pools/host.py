"""What pools of simulators that are not JAX have in common."""

from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from nres.evaluate import evaluate

EPISODES = 20


class PoolError(RuntimeError):
    """A simulator did what it must not."""


def seed_of(key: np.ndarray) -> int:
    """The seed of an episode, from the key of its worker and episode."""
    return int(key[-1])


def flat_lanes(tree: PyTree, dtype: Any = None) -> PyTree:
    """Members and workers as one axis of lanes, in this order."""
    return jax.tree.map(lambda x: np.asarray(x, dtype).reshape(-1, *x.shape[2:]), tree)


def returns(pool: Any, theta: PyTree, key: Any) -> dict[str, float]:
    """The loss per step and the mean return of some unperturbed episodes."""
    losses = np.asarray(evaluate(pool, theta, key, episodes=EPISODES).losses, np.float64)
    total = -losses * pool.horizon
    return {"loss": losses.mean(), "return": total.mean(), "least_return": total.min()}
