"""`predict`: the variance of an estimator by the theorems of the paper."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree

from nres.checks import as_key, check_fits, check_period
from nres.estimators.ad import run_widened, widened
from nres.estimators.nonfinite import NonFiniteError
from nres.execution import block_size
from nres.measured import all_learned
from nres.noise import Gaussian
from nres.pools.jax import as_pool
from nres.system import Theta, as_theta, check_one_length, parameter_count
from nres.variance.episodes import gpes, unroll
from nres.workers import worker_keys

# The maximal number of windows whose losses are pulled back at a time.
ROWS = 128


@dataclasses.dataclass(frozen=True)
class Prediction:
    r"""The predicted $\operatorname{tr Cov}$ of one worker's estimates; divide by N."""

    variance: float | Float[np.ndarray, " periods"]
    """The variance of `GPES` with the given period; an array if several periods were given."""
    stderr: float | Float[np.ndarray, " periods"]
    """The standard error of `variance`, from the spread over episodes; NaN for one episode."""
    nres: float
    """The variance of `NRES`."""
    fulles: float
    """The variance of `FullES`, which takes as many steps as T/W estimates of `NRES`."""
    signal: float
    r"""$\lVert \mathbb E g \rVert^2$, the squared norm of the gradient itself."""
    direction: float
    r"""The alignment of the windows' gradients:
    $\frac{d+1}{d+2} \lVert \sum_k g_k \rVert^2 / \sum_k \lVert g_k \rVert^2$, with $g_k$ the
    gradient of window k. If it is at least 1, the mean of T/W estimates of `NRES` has no more
    variance than one estimate of `FullES`, which costs as much (Theorem 7 of the paper)."""
    linearity: float
    """The fraction of the losses' response to noise that is linear, as the theorem assumes: from 0
    to 1, up to sampling error. It is 1 by assumption if derivatives are used."""


def predict(
    system: Any,
    theta: PyTree,
    key: Any = None,
    *,
    period: int | Sequence[int],
    window: int,
    episodes: int = 1,
    sigma: float | None = None,
    samples: int = 512,
) -> Prediction:
    r"""Predict the total variance of `GPES`, `NRES` and `FullES` by Theorem 4 of the paper.

    Let $a_{k,j}$ be the derivative of the mean loss in window k with respect to $\theta$ as it is
    applied in the j-th stretch of K steps, and $n_k$ the number of stretches up to window k. If
    loss differences respond linearly to the noise, one worker's estimate has

    $$ \operatorname{tr Cov} = \frac1n \sum_{k=1}^{n} \Big( d\, n_k \sum_{j} \lVert a_{k,j}
       \rVert^2 + 2\, \Big\lVert \sum_j a_{k,j} \Big\rVert^2 \Big)
       - \Big\lVert \frac1n \sum_{k,j} a_{k,j} \Big\rVert^2. $$

    This is the paper's formula with its sum over pairs written out, for windows of any length
    (Corollary 6). It is smallest for K = T, which is `NRES`.

    By default, automatic differentiation computes the $a_{k,j}$ in one backward pass over the
    windows, with a cotangent for each later window's loss. That takes about $T^2/2W$ pulled-back
    steps, and memory for the states between windows.

    **Limits of the prediction.** Noise of scale $\sigma$ sees the loss smoothed over $\sigma$. If
    the loss bends within that distance, as it does on chaotic trajectories, its derivative says
    little about the response to noise. On Lorenz at $\sigma = 0.04$, derivatives predict many times
    the measured variance; for small $\sigma$ both agree. With `sigma`, the smoothed
    $\lVert a_{k,j} \rVert^2$ are estimated from antithetic episodes instead, without
    differentiation and on any pool, and `linearity` says how much of the response they explain. If
    that is far below 1, trust `measure`.

    Args:
        system: A `nres.System`; with `sigma`, also any `nres.Pool`.
        theta: The parameters.
        key: A JAX random key; `jax.random.key(0)` by default.
        period: K, a multiple of the window; several periods share most of the work.
        window: W, the number of steps per estimate.
        episodes: The number of episodes to average over. One is enough if the system has no
            randomness of its own; otherwise its variance counts too, and needs many episodes.
        sigma: The scale at which to smooth; `None` uses derivatives.
        samples: With `sigma`, the noises per episode; takes several `samples` × d arrays.

    Example:
        ```python
        prediction = nres.variance.predict(system, theta, period=[100, 500, 2000], window=100)
        prediction.variance, prediction.nres, prediction.fulles, prediction.direction >= 1
        ```

    Reference:
        Li et al., NeurIPS 2023, Theorem 4 and Corollary 6.
    """
    pool, theta = as_pool(system), all_learned("predict", as_theta(theta))
    key = as_key(jax.random.key(0) if key is None else key)
    periods = (period,) if isinstance(period, int) else tuple(period)
    check_one_length("predict", pool)
    check_fits(window, pool.horizon)
    for each in periods:
        if each < pool.horizon:
            check_period(each, window)
    if episodes < 1:
        raise ValueError(f"episodes must be at least 1, got {episodes}.")
    pool.check(theta)
    if sigma is not None and not (sigma > 0 and samples > 1):
        raise ValueError(f"sigma must be positive and samples at least 2: got {sigma}, {samples}.")
    # The last period is NRES.
    every = (*(p for p in dict.fromkeys(periods) if p < pool.horizon), pool.horizon)
    parts = []
    for i in range(episodes):
        episode = jax.random.fold_in(key, i)
        if sigma is None:
            if not pool.traceable:
                raise TypeError(
                    f"{type(pool).__name__} cannot be differentiated: give `sigma` to predict from "
                    "episodes with noise instead."
                )
            parts.append(_differentiate(pool, theta, episode, every, window))
        else:
            parts.append(_smooth(pool, theta, episode, every, window, sigma, samples))
    for part in parts:
        if not np.isfinite([*part.second, part.signal]).all():
            raise NonFiniteError(
                "a loss or a derivative was not finite, so there is nothing to predict from. Try "
                "smaller noise, a bounded loss or, instead of derivatives, `sigma`."
            )
    order = [every.index(min(p, pool.horizon)) for p in periods]
    return _combine(parts, order[0] if isinstance(period, int) else order)


@dataclasses.dataclass(frozen=True)
class _Episode:
    """The moments of one worker's estimates, given the randomness of one episode."""

    size: int
    windows: int
    second: Float[np.ndarray, " periods"]
    """Mean squared norms by the theorem, for each period; the last is `NRES`."""
    mean: Float[np.ndarray, " d"]
    signal: float
    """An unbiased estimate of the squared norm of the mean."""
    aligned: float
    """The mean squared norm of the windows' gradients."""
    linearity: float


def _combine(parts: list[_Episode], which: int | list[int]) -> Prediction:
    size, windows = parts[0].size, parts[0].windows
    signal = within = float(np.mean([part.signal for part in parts]))
    if len(parts) > 1:
        means = np.array([part.mean for part in parts])
        total, count = means.sum(axis=0), len(parts)
        signal = float((total @ total - np.sum(means**2)) / (count * (count - 1)))
    seconds = np.array([part.second for part in parts])
    variance = seconds.mean(axis=0) - signal
    stderr = np.full_like(variance, np.nan)
    if len(parts) > 1:
        # The influence of one episode, which enters both factors of the product of means.
        influence = seconds - 2 * (means @ means.mean(axis=0))[:, None]
        stderr = influence.std(axis=0, ddof=1) / math.sqrt(len(parts))
    aligned = float(np.mean([part.aligned for part in parts]))
    return Prediction(
        variance=float(variance[which]) if isinstance(which, int) else variance[which],
        stderr=float(stderr[which]) if isinstance(which, int) else stderr[which],
        nres=float(variance[-1]),
        fulles=(size + 2) * within - signal,
        signal=signal,
        direction=(size + 1) / (size + 2) * windows * within / aligned if aligned else np.nan,
        linearity=float(np.mean([part.linearity for part in parts])),
    )


def _second(size: int, stretches: np.ndarray, squares: np.ndarray, whole: np.ndarray) -> float:
    """Return the theorem's mean over windows, from sums of squares and squares of sums."""
    return float(np.mean(size * stretches * squares + 2 * whole))


def _stretches(pool: Any, period: int, window: int) -> np.ndarray:
    """Count the stretches of a period up to each window, including its own."""
    return np.arange(0, pool.horizon, window) // period + 1


# Derivatives


def _differentiate(
    pool: Any, theta: Theta, key: Key[Array, ""], periods: tuple[int, ...], window: int
) -> _Episode:
    windows = math.ceil(pool.horizon / window)
    # In at least single precision, as all sums in the library.
    flat, _ = jax.flatten_util.ravel_pytree(widened(theta))
    rows = min(ROWS, windows, block_size(flat.size))
    lanes = _boundaries(pool, theta, key, window)
    every = jnp.asarray([min(period, pool.horizon) for period in periods], jnp.int32)
    squares, mean, whole = [], np.zeros(flat.size), []
    for first in range(0, windows, rows):
        at = jnp.asarray(first, jnp.int32)
        s, g = jax.device_get(_pull_back(pool, theta, key, lanes, at, every, window, rows))
        kept = min(rows, windows - first)
        squares.append(s[:, :kept].astype(np.float64))
        gradients = g[:kept].astype(np.float64)
        mean += gradients.sum(axis=0)
        whole.append(np.sum(gradients**2, axis=1))
    scale = windows / pool.horizon
    all_squares = np.concatenate(squares, axis=1) * scale**2
    all_whole = np.concatenate(whole) * scale**2
    mean *= scale / windows
    second = [
        _second(flat.size, _stretches(pool, period, window), s, all_whole)
        for period, s in zip(periods, all_squares, strict=True)
    ]
    aligned = float(np.mean(all_whole))
    return _Episode(
        flat.size, windows, np.array(second), mean, float(mean @ mean), aligned, linearity=1.0
    )


@eqx.filter_jit
def _boundaries(pool: Any, theta: Theta, key: Key[Array, ""], window: int) -> PyTree:
    """Return the states at which the windows of an unperturbed episode begin."""
    thetas = jax.tree.map(lambda x: x[None, None], theta)

    def one_window(lane, first):
        length = jnp.minimum(window, pool.horizon - first)
        out = pool.run(lane, thetas, key[None], first[None], window, length[None])
        return out.state, lane

    first = jnp.arange(0, pool.horizon, window, dtype=jnp.int32)
    start = pool.begin(None, thetas, key[None], first[:1])
    return jax.lax.scan(one_window, start, first)[1]


@eqx.filter_jit
def _pull_back(
    pool: Any,
    theta: Theta,
    key: Key[Array, ""],
    lanes: PyTree,
    first: Int[Array, ""],
    periods: Int[Array, " periods"],
    window: int,
    rows: int,
) -> tuple[Float[Array, "periods rows"], Float[Array, "rows d"]]:
    """Compute the gradients of the losses of the windows from `first` on, by stretch.

    Returns:
        For each period and window, the sum over stretches of the squared norm of the stretch's
        part; and each window's whole gradient.
    """
    flat, unravel = jax.flatten_util.ravel_pytree(widened(theta))
    windows = math.ceil(pool.horizon / window)
    last = jnp.minimum(first + rows, windows) - 1

    def spread(flat):
        return jax.tree.map(lambda x: x[None, None], unravel(flat))

    def one_window(i, loop):
        cotangents, part, squares = loop
        k = last - i
        lane = jax.tree.map(lambda x: x[k], lanes)
        floating, fixed = eqx.partition(lane, eqx.is_inexact_array)

        def run(flat, floating):
            start = k * window
            length = jnp.minimum(window, pool.horizon - start)
            lane = eqx.combine(floating, fixed)
            out = run_widened(
                pool, theta, lane, spread(flat), key[None], start[None], window, length[None]
            )
            return out.loss[0, 0], eqx.filter(out.state, eqx.is_inexact_array)

        (loss, _), pull = jax.vjp(run, flat, floating)
        own = (first + jnp.arange(rows, dtype=k.dtype) == k).astype(loss.dtype)
        gradient, cotangents = jax.vmap(pull)((own, cotangents))
        part = part + gradient[None]
        # At the beginning of a stretch its part is complete. The first stretch still lacks the
        # initial state, so it waits.
        done = ((k * window % periods == 0) & (k > 0))[:, None]
        squares = squares + jnp.where(done, jnp.sum(part**2, axis=-1), 0)
        return cotangents, jnp.where(done[..., None], 0, part), squares

    template = eqx.filter(lanes, eqx.is_inexact_array)
    cotangents = jax.tree.map(lambda x: jnp.zeros((rows, *x.shape[1:]), x.dtype), template)
    part = jnp.zeros((periods.shape[0], rows, flat.size), flat.dtype)
    loop = (cotangents, part, jnp.zeros(part.shape[:2], flat.dtype))
    cotangents, part, squares = jax.lax.fori_loop(0, last + 1, one_window, loop)

    def begin(flat):
        own = jax.tree.map(lambda x, like: x.astype(like.dtype), spread(flat), theta)
        lane = pool.begin(None, own, key[None], jnp.zeros(1, jnp.int32))
        return eqx.filter(lane, eqx.is_inexact_array)

    _, pull = jax.vjp(begin, flat)
    part = part + jax.vmap(pull)(cotangents)[0][None]
    return squares + jnp.sum(part**2, axis=-1), part[-1]


# Smoothed estimates


def _smooth(
    pool: Any,
    theta: Theta,
    key: Key[Array, ""],
    periods: tuple[int, ...],
    window: int,
    sigma: float,
    samples: int,
) -> _Episode:
    """Estimate from samples of one episode, so that they differ only in their noise."""
    size = parameter_count(theta)
    windows = math.ceil(pool.horizon / window)
    scale = windows / pool.horizon
    scale_of_noise = jnp.asarray(sigma, float)  # an array, so that it is not compiled in
    second, result = [], None
    for i, period in enumerate(min(period, pool.horizon) for period in periods):
        noise_keys = worker_keys(jax.random.fold_in(key, i), samples)
        shared = jnp.broadcast_to(key, samples)
        estimator = gpes(pool, period=period, sigma=sigma, window=window, workers=samples)
        episodes = unroll(estimator, theta, noise_keys, shared)
        squares, whole, mean, signal = jax.device_get(
            _correlate(theta, noise_keys, episodes.difference, scale_of_noise, period // window)
        )
        stretches = _stretches(pool, period, window)
        second.append(_second(size, stretches, squares * scale**2, whole * scale**2))
        response = float(np.sum(np.mean(np.square(episodes.difference), axis=0))) / sigma**2
        # The last period is the horizon, from which everything else follows.
        result = (
            mean.astype(np.float64) / pool.horizon,
            float(signal) / pool.horizon**2,
            float(np.mean(whole)) * scale**2,
            float(np.sum(squares)) / response if response else math.nan,
        )
    assert result is not None
    return _Episode(size, windows, np.array(second), *result)


@eqx.filter_jit
def _correlate(
    theta: Theta,
    keys: Key[Array, " samples"],
    difference: Float[Array, "samples windows"],
    sigma: Float[Array, ""],
    per_stretch: int,
) -> tuple[Array, ...]:
    r"""Estimate squared norms of smoothed derivatives from pairs of different samples.

    $\mathbb E[D_k \epsilon_j] = \sigma^2 a_{k,j}$, so for two samples the product
    $D_k D'_k \epsilon_j^\top \epsilon'_j / \sigma^4$ has the mean $\lVert a_{k,j} \rVert^2$. A
    matrix of inner products of noises suffices, and no vector is kept for each window.
    """
    count, windows = difference.shape
    dtype = difference.dtype
    per_stretch = min(per_stretch, windows)
    number = math.ceil(windows / per_stretch)
    padded = jnp.pad(difference, ((0, 0), (0, number * per_stretch - windows)))
    parts = padded.reshape(count, number, per_stretch).swapaxes(0, 1)
    pairs = count * (count - 1)
    product = lambda a, b: jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)  # noqa: E731

    def of_pairs(matrix, d):
        """Average `d[s] matrix[s, s'] d[s']` over all pairs, for each column of `d`."""
        own = jnp.einsum("s,sk->k", jnp.diagonal(matrix), d**2)
        return (jnp.sum(d * product(matrix, d), axis=0) - own) / pairs

    def one_stretch(loop, j):
        inner, score, mean = loop
        noise = Gaussian().draw(keys, jnp.full(count, j), jnp.full(count, sigma), theta)
        rows = jax.vmap(lambda tree: jax.flatten_util.ravel_pytree(tree)[0])(noise)
        rows = rows.astype(dtype) / sigma.astype(dtype) ** 2
        inner = inner + product(rows, rows.T)
        score = score + rows
        d = parts[j]
        mean = mean + d.sum(axis=1)[:, None] * score
        return (inner, score, mean), (of_pairs(inner, d), of_pairs(product(score, score.T), d))

    zeros = jnp.zeros((count, parameter_count(theta)), dtype)
    start = (jnp.zeros((count, count), dtype), zeros, zeros)
    (_, _, mean), (squares, whole) = jax.lax.scan(
        one_stretch, start, jnp.arange(number, dtype=jnp.int32)
    )
    total = mean.sum(axis=0)
    signal = (jnp.sum(total**2) - jnp.sum(mean**2)) / pairs
    return squares.ravel()[:windows], whole.ravel()[:windows], total / count, signal
