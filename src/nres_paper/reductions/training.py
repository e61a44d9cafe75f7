"""Training with NRES, with and without cross-fitted momentum as control variate."""

import dataclasses
from typing import Any

import jax
import jax.flatten_util
import numpy as np
from jaxtyping import Float

import nres
from nres_paper.reductions.episodes import Task


@dataclasses.dataclass(frozen=True)
class Path:
    """A training run with gradient descent."""

    thetas: list[Any]
    """The parameters before each update, and after the last."""
    gradients: Float[np.ndarray, "updates d"]
    losses: Float[np.ndarray, " updates"]
    """The mean loss per step of all workers in each update."""

    def momentum(self, updates: int, decay: float) -> Float[np.ndarray, " d"]:
        """Return the exponentially weighted mean of the first gradients."""
        weights = decay ** np.arange(updates)[::-1]
        return weights @ self.gradients[:updates] / weights.sum()


def train(
    task: Task,
    theta: Any,
    key: jax.Array,
    *,
    rate: float,
    updates: int,
    law: nres.Noise,
    decay: float | None = None,
) -> Path:
    r"""Train with two pools of N/2 workers, so that each can use the momentum of the other.

    With momenta $h_1, h_2$ of the two pools' estimates, the first pool's estimate is
    $\hat g_1 - \frac2N \sum_i (\epsilon_i^\top h_2)\, \epsilon_i / \sigma^2 + h_2$. Since $h_2$
    does not depend on the noise of the first pool, this has the same mean as $\hat g_1$.

    Args:
        task: The pool and the settings of NRES.
        theta: The parameters to start from.
        key: A JAX random key.
        rate: The learning rate.
        updates: The number of updates.
        law: The distribution of the noise.
        decay: The decay of the momenta; `None` for plain NRES.
    """
    flat, unravel = jax.flatten_util.ravel_pytree(theta)
    estimator = nres.NRES(
        task.pool, workers=task.workers // 2, window=task.window, sigma=task.sigma, noise=law
    )
    states = [estimator.init(theta, own) for own in jax.random.split(key)]
    sums, weight = np.zeros((2, flat.size)), 0.0
    path = Path([theta], np.zeros((updates, flat.size)), np.zeros(updates))
    for update in range(updates):
        estimates = [estimator.estimate(path.thetas[-1], state) for state in states]
        states = [estimate.state for estimate in estimates]
        plain = np.stack([_flat(estimate.grad) for estimate in estimates])
        gradients = plain
        if decay is not None:
            guesses = sums[::-1] / max(weight, 1.0)  # those of the other pool; zero at first
            noises = [_rows(state.carry.noise.epsilon) / task.sigma for state in states]
            gradients = plain - np.stack(list(map(_control, noises, guesses)))
            sums, weight = decay * sums + plain, decay * weight + 1
        path.gradients[update] = gradients.mean(axis=0)
        path.losses[update] = np.mean([estimate.loss for estimate in estimates])
        flat = flat - rate * path.gradients[update].astype(flat.dtype)
        path.thetas.append(unravel(flat))
    return path


def _control(noise: Float[np.ndarray, "workers d"], guess: Float[np.ndarray, " d"]) -> np.ndarray:
    return (noise @ guess) @ noise / len(noise) - guess


def _flat(tree: Any) -> Float[np.ndarray, " d"]:
    return np.asarray(jax.flatten_util.ravel_pytree(tree)[0], np.float64)


def _rows(tree: Any) -> Float[np.ndarray, "workers d"]:
    leaves = [np.asarray(x, np.float64) for x in jax.tree.leaves(tree)]
    return np.concatenate([x.reshape(len(x), -1) for x in leaves], axis=1)
