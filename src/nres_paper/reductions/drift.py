r"""Importance correction of hysteresis: estimates of pools that ran while parameters changed.

Keep the perturbed parameters $\phi = \theta_0 \pm \epsilon$ of an episode fixed while $\theta$
moves on to $\theta_0 + \delta$. The whole episode then belongs to one $\phi$. The ratio of its
densities around the new and the old $\theta$ is
$w = e^{\pm\delta^\top\epsilon/\sigma^2 - \lVert\delta\rVert^2/2\sigma^2}$, and

$$ \frac{1}{2\sigma^2} \sum_\pm w_\pm (L_\pm - b)\,(\pm\epsilon - \delta) $$

is an unbiased estimate of the gradient at the new $\theta$, for every b independent of $\epsilon$.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from nres_paper.reductions.episodes import Task, unroll

Each = Float[np.ndarray, "windows workers d"]


@dataclasses.dataclass(frozen=True)
class Drifted:
    """Estimates of single workers at each window, at the end of a path of parameters."""

    fresh: Each
    """Those of episodes that ran entirely at the newest parameters."""
    running: Each
    """Those of NRES, whose episodes ran while the parameters changed."""
    corrected: Each
    """Those with importance weights."""
    drift: Float[np.ndarray, " windows"]
    r"""The distance $\lVert\delta\rVert/\sigma$ since each window's episode began."""


def follow(task: Task, path: Sequence[Any], key: jax.Array, workers: int) -> Drifted:
    """Run workers that reach each window at the end of a path.

    All three kinds of estimates use the same noises, so that their differences are precise.

    Args:
        task: The pool and the settings of NRES.
        path: The parameters before each update, as many as an episode has windows; the last are
            those of the update in question.
        key: A JAX random key.
        workers: The number of independent workers at each window.
    """
    _, unravel = jax.flatten_util.ravel_pytree(path[-1])
    flat = np.stack([jax.flatten_util.ravel_pytree(theta)[0] for theta in path])
    made: dict[str, list[np.ndarray]] = {"fresh": [], "running": [], "corrected": []}
    drifts = []
    for k in range(task.windows):
        key, own = jax.random.split(key)
        keys = jax.random.split(own, workers)
        noise = np.asarray(jax.random.normal(own, (workers, flat.shape[1])), np.float64)
        passed = flat[len(flat) - 1 - k :]
        moved = (flat[-1] - passed[0]).astype(np.float64) / task.sigma

        def last_losses(centres, noise=noise, keys=keys):
            step = (task.sigma * noise).astype(np.float32)
            thetas = [jnp.stack([c + step, c - step]) for c in centres]
            thetas = [jax.vmap(jax.vmap(unravel))(x) for x in thetas]
            return unroll(task, thetas, keys)[0][..., -1] / task.sigma

        count = k + 1
        made["fresh"].append(_pairs(last_losses([flat[-1]] * count), noise))
        made["running"].append(_pairs(last_losses(list(passed)), noise))
        kept = last_losses([passed[0]] * count)
        made["corrected"].append(weighted_pairs(kept, noise, moved))
        drifts.append(np.linalg.norm(moved))
    return Drifted(**{name: np.stack(x) for name, x in made.items()}, drift=np.array(drifts))


def _pairs(losses: Float[np.ndarray, "2 workers"], noise: np.ndarray) -> np.ndarray:
    return ((losses[0] - losses[1]) / 2)[:, None] * noise


def weighted_pairs(
    losses: Float[np.ndarray, "2 workers"],
    noise: Float[np.ndarray, "workers d"],
    moved: Float[np.ndarray, " d"],
) -> Float[np.ndarray, "workers d"]:
    r"""Return the estimates of pairs around parameters that have since moved.

    Args:
        losses: The losses of both members, divided by $\sigma$.
        noise: The noises divided by $\sigma$.
        moved: $\delta / \sigma$.
    """
    total = losses.sum(axis=0)
    baseline = (total.sum() - total) / (2 * (len(total) - 1))
    result = np.zeros_like(noise)
    for sign, loss in zip((1, -1), losses, strict=True):
        weight = np.exp(sign * noise @ moved - moved @ moved / 2)
        result += (weight * (loss - baseline) / 2)[:, None] * (sign * noise - moved)
    return result


@dataclasses.dataclass(frozen=True)
class DriftRow:
    """Bias and variance of an update of N workers, relative to the squared gradient."""

    drift: float
    r"""The distance $\lVert\delta\rVert/\sigma$ that the parameters moved during an episode."""
    bias: float
    """The squared bias of NRES that hysteresis causes."""
    bias_error: float
    """The part of `bias` that noise alone would give, which is subtracted from it."""
    corrected_bias: float
    variance: float
    corrected_variance: float

    @property
    def ratio(self) -> float:
        """The mean square error with importance weights, divided by that without."""
        return (self.corrected_bias + self.corrected_variance) / (self.bias + self.variance)


def compare_drifted(found: Drifted, workers: int) -> DriftRow:
    """Compare the estimates at the end of a path for an update of N evenly spread workers."""
    signal = _square(found.fresh)[0]

    def variance(each):
        return float(each.var(axis=1, ddof=1).sum(axis=1).mean() / workers / signal)

    biases = [_square(each - found.fresh) for each in (found.running, found.corrected)]
    return DriftRow(
        drift=float(found.drift[-1]),
        bias=max(0.0, biases[0][0] / signal),
        bias_error=biases[0][1] / signal,
        corrected_bias=max(0.0, biases[1][0] / signal),
        variance=variance(found.running),
        corrected_variance=variance(found.corrected),
    )


def _square(each: Each) -> tuple[float, float]:
    """Estimate the squared norm of the mean, and the part of it that noise alone would give."""
    mean = each.mean(axis=(0, 1))
    windows, workers = each.shape[:2]
    noise = float(each.var(axis=1, ddof=1).sum() / (workers * windows**2))
    return float(mean @ mean) - noise, noise
