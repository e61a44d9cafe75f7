r"""Whole antithetic episodes at one $\theta$: all that the variance of `GPES` depends on.

Workers start together and run in step, with a new noise every K steps. Of each window
only the loss difference $D_k = \frac12 \sum_t (L_t^+ - L_t^-)$ and the norm of the accumulated
score $\xi_k = \sum_j \epsilon_j / \sigma^2$ are kept: the worker's estimate in that window would be
$\frac nT D_k \xi_k$. Longer windows have the sum of their parts' differences and the same score,
so one pass tells the variance for every window W that divides K. Period and sigma are not
compiled in: a sweep over them is one program.
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
from jaxtyping import Array, Float, Int, Key, PyTree

from nres.estimators.values import worker_keys
from nres.noise import draw
from nres.pools.base import Pool
from nres.pools.jax import JaxPool, advance
from nres.system import Theta, parameter_count
from nres.variance.measured import split
from nres.variance.statistics import Moments


class Episodes(eqx.Module):
    """What is kept of a batch of antithetic episodes."""

    difference: Float[Array, "workers windows"]
    """Half the difference of the members' losses, summed over each window."""
    score: Float[Array, "workers windows"]
    """The squared norm of the score in each window."""
    grad: Float[Array, "workers d"]
    """The mean over windows of each worker's estimates."""
    loss: Float[Array, "workers"]
    """The mean loss per step of each worker's members."""
    steps: Int[Array, "workers"]
    """Steps really taken, by both members."""


@dataclasses.dataclass(frozen=True)
class Pilot:
    """Mean and variance of `GPES` with one period and sigma, for several windows."""

    period: int
    sigma: float
    windows: tuple[int, ...]
    moments: Moments
    """With one version for each window, and one for the mean over a whole episode."""
    loss: float
    """The smoothed loss; not a number, like everything else, where hardly any loss is finite."""
    steps: float
    """Steps that an episode of a pair takes, on average."""
    samples: int
    """Pairs that were run."""
    nonfinite: int
    """Workers that were left out because a loss was not finite."""


def pilot(
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
) -> Pilot:
    """Run so many antithetic episodes in batches; every window is a multiple of `base` steps."""
    batch, batches = split(samples, theta, pool)
    moments, losses, nonfinite, steps = Moments(), [], 0, 0
    for i in range(batches):
        keys = worker_keys(jax.random.fold_in(key, i), batch)
        episodes = jax.device_get(unroll(pool, theta, keys, keys, sigma, period, base))
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
    if len(losses) < 4:  # too few to tell anything from
        moments, losses = Moments(), [math.nan]
        for _ in range(4):
            size = parameter_count(theta)
            moments.add(np.full(size, math.nan), np.full(len(windows) + 1, math.nan))
    return Pilot(
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
    """The mean squared norm of estimates from windows that are made of so many parts."""
    starts = np.arange(0, episodes.difference.shape[1], parts)
    total = np.add.reduceat(episodes.difference, starts, axis=1)
    return float(np.mean((total * len(starts) / horizon) ** 2 * episodes.score[:, starts]))


def unroll(
    pool: Pool,
    theta: Theta,
    noise_keys: Key[Array, "workers"],
    episode_keys: Key[Array, "workers"],
    sigma: float,
    period: int,
    window: int,
) -> Episodes:
    """An antithetic episode of each worker, in windows of so many steps."""
    run = _unroll_compiled if isinstance(pool, JaxPool) else _unroll
    # As arrays, so that no value of them is compiled in.
    scale, every = jnp.asarray(sigma, float), jnp.asarray(min(period, pool.horizon), jnp.int32)
    return run(pool, theta, noise_keys, episode_keys, scale, every, window)


def _unroll(pool, theta, noise_keys, episode_keys, sigma, period, window: int) -> Episodes:
    count, horizon = noise_keys.shape[0], pool.horizon
    windows = math.ceil(horizon / window)
    dtype = jnp.result_type(float)

    def one_window(k, loop):
        noise, score, state, result = loop
        first = jnp.asarray(k * window, jnp.int32)
        noise, score, thetas = _perturb(theta, noise, score, noise_keys, sigma, first, period)
        start = jnp.full(count, first)
        length = jnp.minimum(window, horizon - start) if horizon % window else None
        out = advance(pool, state, thetas, episode_keys, start, window, length)
        loss, steps = jnp.asarray(out.loss), jnp.asarray(out.steps)
        return noise, score, out.state, _keep(result, score, loss, steps, k, horizon)

    zeros = jax.tree.map(lambda x: jnp.zeros((count, *x.shape), x.dtype), theta)
    start = jnp.zeros(count, jnp.int32)
    alike = _spread(theta, jax.tree.map(lambda x: jnp.stack([x, x]), zeros))
    state = advance(pool, None, alike, episode_keys, start, 0, start).state
    blank = Episodes(
        jnp.zeros((count, windows), dtype),
        jnp.zeros((count, windows), dtype),
        jnp.zeros((count, parameter_count(theta)), dtype),
        jnp.zeros(count, dtype),
        jnp.zeros(count, jnp.int32),
    )
    loop = (zeros, jax.tree.map(lambda x: x.astype(dtype), zeros), state, blank)
    if isinstance(pool, JaxPool):
        return jax.lax.fori_loop(0, windows, one_window, loop)[-1]
    for k in range(windows):
        loop = one_window(k, loop)
    return loop[-1]


_unroll_compiled = eqx.filter_jit(_unroll)


@jax.jit
def _perturb(
    theta: Theta,
    noise: PyTree,
    score: PyTree,
    keys: Key[Array, "workers"],
    sigma: Float[Array, ""],
    start: Int[Array, ""],
    period: Int[Array, ""],
) -> tuple[PyTree, PyTree, PyTree]:
    """The noise in use from this step on, the score, and the parameters of both members."""

    def renew():
        number = jnp.full(keys.shape[0], start // period)
        new = draw(keys, number, jnp.full(keys.shape[0], sigma), theta)
        add = lambda s, e: s + e.astype(s.dtype) / sigma.astype(s.dtype) ** 2  # noqa: E731
        return new, jax.tree.map(add, score, new)

    noise, score = jax.lax.cond(start % period == 0, renew, lambda: (noise, score))
    return noise, score, _spread(theta, jax.tree.map(lambda e: jnp.stack([e, -e]), noise))


def _spread(theta: Theta, changes: PyTree) -> PyTree:
    return jax.tree.map(lambda x, c: jnp.broadcast_to(x, c.shape) + c, theta, changes)


@jax.jit
def _keep(
    result: Episodes, score: PyTree, loss: Array, steps: Array, k: Any, horizon: Any
) -> Episodes:
    """The result with one more window in it."""
    dtype = result.loss.dtype
    loss = loss.astype(dtype)
    difference = (loss[0] - loss[1]) / 2
    rows = jax.vmap(lambda tree: jax.flatten_util.ravel_pytree(tree)[0])(score)
    return Episodes(
        result.difference.at[:, k].set(difference),
        result.score.at[:, k].set(jnp.sum(rows**2, axis=1)),
        result.grad + (difference / horizon)[:, None] * rows,
        result.loss + (loss[0] + loss[1]) / (2 * horizon),
        result.steps + (steps[0] + steps[1]).astype(jnp.int32),
    )
