r"""Whole antithetic episodes at one $\theta$, which determine the variance of `GPES`.

The workers of a `GPES` estimator start together and run in step. Of each window, only the loss
difference $D_k = \frac12 \sum_t (L_t^+ - L_t^-)$ and the norm of the accumulated score
$\xi_k = \sum_j \epsilon_j / \sigma^2$ are kept: the worker's estimate in that window is
$\frac nT D_k \xi_k$. A longer window has the sum of its parts' differences and the same score, so
one pass gives the variance for every window W that divides K. Period and sigma are not compiled
in, so a sweep over them is one program.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from nres.estimators.es import GPES
from nres.execution import compiled, needed_lengths, repeat
from nres.pools.base import Pool
from nres.system import Theta, parameter_count
from nres.variance.measured import split
from nres.variance.statistics import Moments
from nres.workers import Response, Workers, worker_keys


class Episodes(eqx.Module):
    """The recorded quantities of a batch of antithetic episodes."""

    difference: Float[Array, "workers windows"]
    """Half the difference of the members' losses, summed over each window."""
    score: Float[Array, "workers windows"]
    """The squared norm of the score in each window."""
    grad: Float[Array, "workers d"]
    """The mean over windows of each worker's estimates."""
    loss: Float[Array, " workers"]
    """The mean loss per step of each worker's members."""
    steps: Int[Array, " workers"]
    """The number of steps really taken by both members."""


@dataclasses.dataclass(frozen=True)
class WindowMoments:
    """Mean and variance of `GPES` with one period and sigma, for several windows."""

    period: int
    sigma: float
    windows: tuple[int, ...]
    moments: Moments
    """The moments, with one version per window, and a last one for the mean over an episode."""
    loss: float
    """The smoothed loss; NaN, like everything else, if almost no loss is finite."""
    steps: float
    """The average number of steps in an episode of a pair."""
    samples: int
    """The number of pairs that were run."""
    nonfinite: int
    """The number of workers left out because a loss was not finite."""


def window_moments(
    pool: Pool,
    theta: Theta,
    key: Key[Array, ""],
    *,
    period: int,
    sigma: float,
    windows: Sequence[int],
    base: int,
    samples: int,
    callback: Callable[[float], Any] | None = None,
) -> WindowMoments:
    """Run antithetic episodes in batches; every window must be a multiple of `base` steps."""
    batch, batches = split(samples, theta, pool)
    estimator = gpes(pool, period=period, sigma=sigma, window=base, workers=batch)
    moments, losses, nonfinite, steps = Moments(), [], 0, 0
    for i in range(batches):
        keys = worker_keys(jax.random.fold_in(key, i), batch)
        episodes = jax.device_get(unroll(estimator, theta, keys, keys))
        finite = np.isfinite(episodes.difference).all(axis=1) & np.isfinite(episodes.loss)
        nonfinite += batch - int(finite.sum())
        steps += int(episodes.steps.sum(dtype=np.int64))
        if finite.any():
            kept = jax.tree.map(lambda x, finite=finite: x[finite].astype(np.float64), episodes)
            second = [_second(kept, math.ceil(w / base), pool.horizon) for w in windows]
            episode = float(np.mean(np.sum(kept.grad**2, axis=1)))
            moments.add(kept.grad.mean(axis=0), np.array([*second, episode]))
            losses.append(kept.loss.mean())
        if callback is not None:
            callback((i + 1) / batches)
    count = batch * batches
    if len(losses) < 4:  # too few for any statistics
        moments, losses = Moments(), [math.nan]
        for _ in range(4):
            size = parameter_count(theta)
            moments.add(np.full(size, math.nan), np.full(len(windows) + 1, math.nan))
    return WindowMoments(
        period,
        sigma,
        tuple(windows),
        moments,
        float(np.mean(losses)),
        steps / count,
        count,
        nonfinite,
    )


def _second(episodes: Episodes, parts: int, horizon: int) -> float:
    """Return the mean squared norm of estimates from windows that consist of `parts` parts."""
    starts = np.arange(0, episodes.difference.shape[1], parts)
    total = np.add.reduceat(episodes.difference, starts, axis=1)
    return float(np.mean((total * len(starts) / horizon) ** 2 * episodes.score[:, starts]))


def gpes(pool: Pool, *, period: int, sigma: float, window: int, workers: int) -> GPES:
    """Make a `GPES`; periods beyond the horizon become a multiple of the window beyond it."""
    if period >= pool.horizon:
        period = math.ceil(pool.horizon / window) * window
    return GPES(pool, period=period, sigma=sigma, window=window, workers=workers)


class _Together(Workers):
    """Workers that are all at the same step of episodes with given keys."""

    given: Key[Array, " workers"] = eqx.field(kw_only=True)

    def episode_keys(self) -> Key[Array, " workers"]:
        return self.given


@compiled
def unroll(
    estimator: GPES,
    theta: Theta,
    noise_keys: Key[Array, " workers"],
    episode_keys: Key[Array, " workers"],
) -> Episodes:
    """Run an antithetic episode of each worker, all in step.

    Args:
        estimator: The estimator whose windows are run.
        theta: The parameters.
        noise_keys: The keys of the workers' noise.
        episode_keys: The keys of their episodes, which may be the same for all workers.
    """
    count, windows = noise_keys.shape[0], estimator.windows
    dtype = jnp.result_type(float)
    zeros = jnp.zeros(count, jnp.int32)

    def workers_at(start):
        return _Together(noise_keys, zeros, start, given=episode_keys)

    def one_window(k, loop):
        carry, result = loop
        start = jnp.full(count, k * estimator.window, jnp.int32)
        length = jnp.minimum(estimator.window, estimator.horizon - start)
        given = needed_lengths(estimator, length)
        carry, response = estimator.run(theta, workers_at(start), carry, given)
        return carry, _keep(result, response, k, windows, estimator.horizon)

    blank = Episodes(
        jnp.zeros((count, windows), dtype),
        jnp.zeros((count, windows), dtype),
        jnp.zeros((count, parameter_count(theta)), dtype),
        jnp.zeros(count, dtype),
        zeros,
    )
    loop = (estimator.begin(theta, workers_at(zeros)), blank)
    return repeat(estimator, windows, one_window, loop)[-1]


@eqx.filter_jit
def _keep(result: Episodes, response: Response, k: Any, windows: int, horizon: int) -> Episodes:
    """Add one window to the result."""
    dtype = result.loss.dtype
    # The coefficient of a window already has the factor n/T.
    difference = response.coefficient.astype(dtype) * (horizon / windows)
    rows = jax.vmap(lambda tree: jax.flatten_util.ravel_pytree(tree)[0])(response.rows)
    rows = rows.astype(dtype)
    return Episodes(
        result.difference.at[:, k].set(difference),
        result.score.at[:, k].set(jnp.sum(rows**2, axis=1)),
        result.grad + (difference / horizon)[:, None] * rows,
        result.loss + response.loss.astype(dtype) / windows,
        result.steps + response.steps.sum(axis=0, dtype=jnp.int32),
    )
