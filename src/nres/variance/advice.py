"""`advise`: a method, window, number of workers and sigma for a budget of steps."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from nres.checks import as_key
from nres.evaluation import evaluate
from nres.execution import choose
from nres.measured import map_learned
from nres.pools.base import Pool
from nres.pools.jax import as_pool
from nres.system import as_theta, check_one_length, parameter_count
from nres.variance.grid import Row, Sweep, sweep
from nres.workers import Steps

SIGMAS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
# Longer windows need fewer updates, so the longest window within this factor of the best is taken.
GOOD_ENOUGH = 0.8
# The number of episodes to average the loss after a step over.
GAIN_EPISODES = 256


@dataclasses.dataclass(frozen=True)
class Gain:
    """The effect on the loss of a step of length sigma along the mean gradient, and of noise."""

    before: float
    """The loss before the step."""
    after: float
    """The loss after the step."""
    stderr: float
    """The standard error of the difference."""
    smoothed: float
    """The loss with noise of that sigma, without a step."""
    slope: float
    """The decrease that the step would give if the loss were linear."""
    alignment: float
    """The squared cosine of the angle between the measured mean gradient and the expected one."""
    size: int
    """d, the number of parameters."""

    @property
    def net_decrease(self) -> float:
        """The step's decrease of the loss minus the noise's increase; 0 if not significant."""
        gain = self.before - self.after
        rise = max(0.0, self.smoothed - self.before)
        return max(0.0, gain - rise) if gain > 2 * self.stderr else 0.0

    @property
    def relative_curvature(self) -> float:
        """The mean curvature over all directions, relative to the curvature along the gradient.

        The larger it is, the more noise reduces the progress of an update. It is 1 if all
        directions are alike, and 1/d if the loss bends only along the gradient.
        """
        mean = max(0.0, self.smoothed - self.before) / self.size
        along = self.slope - (self.before - self.after)
        along = (along - (1 - self.alignment) * mean) / self.alignment
        if not mean > 0:
            return 1 / self.size
        return min(1.0, max(1 / self.size, mean / along)) if along > 0 else 1.0


@dataclasses.dataclass(frozen=True)
class Advice:
    """The recommendation of `advise`, and the measurements behind it."""

    method: str
    """The name of the recommended estimator."""
    window: int
    """W, the recommended window."""
    workers: int
    """N, the recommended number of workers."""
    sigma: float
    """The recommended scale of the noise."""
    updates: int
    """The number of updates that the budget of sequential steps allows."""
    effective_updates: float
    """The number of noise-free updates with the same effect."""
    reasons: tuple[str, ...]
    """The reasons for the recommendation, in sentences."""
    table: Sweep
    """The preliminary measurements, with the recommended number of workers."""
    gains: Mapping[float, Gain]
    """The effect of a step along the gradient, for each sigma."""


def advise(
    system: Any,
    theta: PyTree,
    key: Any,
    *,
    budget: Steps | tuple[int, int],
    sigmas: Sequence[float] = SIGMAS,
    samples: int = 1024,
    callback: Callable[[float], Any] | None = None,
) -> Advice:
    r"""Recommend method, W, N and sigma for a budget of unroll steps, from a preliminary sweep.

    **Workers.** A budget of S sequential and C total steps gives N = C/2S, for any window.

    **Window.** With window W there are U = (S - T)/W updates, because up to T steps bring the
    workers to random positions in their first episodes (`FullES` makes S/T updates). Noise reduces
    the progress of an update by the factor $1 / (1 + h v / \lVert g \rVert^2)$. Here
    $h = \frac{\operatorname{tr} H / d}{\hat g^\top H \hat g}$, with the Hessian H, is the mean
    curvature over all directions divided by the curvature along the gradient. Both curvatures are
    estimated from the effects of noise and of a step on the loss. The
    variance of one estimate is not enough for v: a worker's estimates share their noise through an
    episode, so their errors add up over its $n = T/W$ updates as if each had $n$ times the
    variance $v_{\text{episode}}$ of the episode's mean, which for `NRES` is that of `FullES`. With
    $v = \max(v_W, n\, v_{\text{episode}})$, all updates together are equivalent to
    $U / (1 + h v / \lVert g \rVert^2)$ updates without noise. This number grows as windows become
    shorter, until noise dominates. The longest window within a fifth of the best is recommended.

    **Sigma.** Estimates see the loss smoothed over $\sigma$, which may differ from the loss itself.
    For each sigma, `advise` therefore makes a step of length $\sigma$ along the mean gradient and
    compares the losses; the increase of the loss by the noise itself is subtracted from the gain.
    The recommended sigma maximises the remaining gain times the number of effective updates. Gains
    and gradients that are not significant count as zero, and so does a sigma with which losses are
    not finite.

    `advise` looks only at `theta`. Closer to an optimum less noise is better, so ask again there.
    It sees neither the optimizer, nor hysteresis (see `hysteresis`), nor the fixed costs of
    an update. For settings to train with, use `nres.tune`.

    Args:
        system: An `nres.System`, or any `nres.Pool`.
        theta: The parameters.
        key: A JAX random key.
        budget: The number of total and of sequential steps of the whole training.
        sigmas: The scales of noise to try.
        samples: The number of antithetic episodes for each sigma.
        callback: A function that is called now and then with the fraction of work done.

    Returns:
        The recommended settings, the reasons, and the measurements behind them.

    Raises:
        ValueError: If the budget is too small, or no sigma shows a significant gradient.

    Example:
        ```python
        advice = nres.variance.advise(system, theta, jax.random.key(0), budget=(10**8, 10**5))
        print(advice.method, advice.window, advice.workers, advice.sigma, *advice.reasons, sep="\n")
        ```

    Reference:
        McCandlish et al., *An empirical model of large-batch training*, 2018, for the value of a
        noisy update.
    """
    pool, theta, key = as_pool(system), as_theta(theta), as_key(key)
    check_one_length("advise", pool)
    horizon = pool.horizon
    total, sequential = map(int, budget)
    if sequential < 2 * horizon:
        raise ValueError(
            f"the budget must allow at least two episodes of {horizon} steps in sequence, got "
            f"{sequential} sequential steps."
        )
    if total < 2 * sequential:
        raise ValueError(
            f"the budget must allow at least twice as many total as sequential steps, for one "
            f"antithetic pair; got {total} and {sequential}."
        )
    if not isinstance(sigmas, Sequence) or not sigmas:
        raise ValueError(f"sigmas must be a list with at least one number, got {sigmas!r}.")
    workers = total // (2 * sequential)
    pilot_key, gain_key = jax.random.split(key)
    shortest = choose(pool, 1, math.ceil(horizon / 50))
    windows = candidate_windows(horizon, shortest)
    parts = len(sigmas) + 1
    report = callback or (lambda fraction: None)
    table = sweep(
        pool,
        theta,
        pilot_key,
        sigmas=sigmas,
        windows=windows,
        workers=[workers],
        samples=samples,
        callback=lambda fraction: report(fraction * len(sigmas) / parts),
    )

    gains = _gains(pool, theta, gain_key, table, sigmas)

    def worth(row: Row) -> float:
        return effective_updates(row, sequential, horizon, gains[row.sigma].relative_curvature)

    top = max(table.rows, key=lambda row: worth(row) * gains[row.sigma].net_decrease)
    if worth(top) * gains[top.sigma].net_decrease == 0:
        raise ValueError(
            f"for none of the sigmas {', '.join(f'{s:g}' for s in sigmas)} did {samples} episodes "
            "show a gradient along which a step lowers the loss by more than the noise raises it. "
            "Try more samples and other sigmas; if that does not help, the loss may be flat at "
            "this theta."
        )
    # Whole episodes are recommended only if no shorter window is as good.
    same = [row for row in table.where(sigma=top.sigma).rows if row.method == top.method]
    good = [row for row in same if worth(row) >= GOOD_ENOUGH * worth(top)]
    best = max(good, key=lambda row: row.window)
    if best.window < horizon:
        # With the same parts as before, so that nothing is recompiled.
        persistent = sweep(
            pool,
            theta,
            pilot_key,
            sigmas=[best.sigma],
            windows=sorted({windows[0], best.window}),
            periods=[best.window],
            workers=[workers],
            samples=samples,
            callback=lambda fraction: report((len(sigmas) + fraction) / parts),
        )
        table = Sweep(
            (*table.rows, *persistent.where(method="PES").rows),
            table.samples,
            {**table.gradients, **persistent.gradients},
        )
    return Advice(
        method=best.method,
        window=best.window,
        workers=workers,
        sigma=best.sigma,
        updates=_updates(best.window, sequential, horizon),
        effective_updates=worth(best),
        reasons=tuple(_reasons(best, table, worth, gains)),
        table=table,
        gains=gains,
    )


def effective_updates(row: Row, sequential: int, horizon: int, relative_curvature: float) -> float:
    """Compute the number of noise-free updates with the effect of the updates in a budget.

    Args:
        row: A row of a sweep.
        sequential: The number of sequential steps of the whole training.
        horizon: T, the number of steps in an episode.
        relative_curvature: The `Gain.relative_curvature` at the row's sigma.

    Returns:
        The number of effective updates; 0 if the gradient is not significant or not finite.
    """
    # A gradient below two standard errors, or with non-finite losses, is not worth following.
    if row.nonfinite or not row.signal > 2 * row.signal_stderr:
        return 0.0
    noise = max(row.variance, row.episode_variance * horizon / row.window)
    return _updates(row.window, sequential, horizon) / (1 + relative_curvature * noise / row.signal)


def _updates(window: int, sequential: int, horizon: int) -> int:
    """Count the updates in a number of sequential steps, after those for unlocking."""
    return (sequential - (horizon if window < horizon else 0)) // window


def candidate_windows(horizon: int, base: int) -> list[int]:
    """List the multiples 1, 2, 5, 10, 20, … of `base` steps below the horizon, and the horizon."""
    steps = (m * 10**e for e in range(len(str(horizon))) for m in (1, 2, 5))
    return [*(base * s for s in steps if base * s < horizon), horizon]


def _gains(
    pool: Pool, theta: PyTree, key: Any, table: Sweep, sigmas: Sequence[float]
) -> dict[float, Gain]:
    # On a jagged loss one value says little, so all are means over the smallest noise, with the
    # same key and therefore the same noises.
    least, episodes = min(sigmas), min(table.samples, GAIN_EPISODES)

    def losses(at: PyTree) -> np.ndarray:
        return np.asarray(evaluate(pool, at, key, episodes=episodes, sigma=least).losses, float)

    before, gains = losses(theta), {}
    size = parameter_count(theta)
    for sigma in sigmas:
        row = table.where(sigma=sigma).rows[0]
        gradient = table.gradients[pool.horizon, sigma]
        squares = sum(float(np.sum(np.square(g))) for g in jax.tree.leaves(gradient))
        after = np.full_like(before, math.nan)
        if squares > 0:  # also false for NaN
            scale = sigma / math.sqrt(squares)
            step = lambda x, g, scale=scale: x - jnp.asarray(scale * g, x.dtype)  # noqa: E731
            after = losses(map_learned(step, theta, gradient))
        alignment = min(1.0, row.signal / squares) if row.signal > 0 else math.nan
        gains[sigma] = Gain(
            before=float(before.mean()),
            after=float(after.mean()),
            stderr=float((after - before).std(ddof=1)) / math.sqrt(episodes),
            smoothed=row.loss,
            slope=sigma * math.sqrt(squares) * alignment,
            alignment=alignment,
            size=size,
        )
    return gains


def _reasons(
    best: Row, table: Sweep, worth: Callable[[Row], float], gains: Mapping[float, Gain]
) -> list[str]:
    same = table.where(sigma=best.sigma)
    reasons = [
        f"{best.method} with windows of {best.window} steps: its updates are equivalent to "
        f"{worth(best):,.3g} updates without noise. Of the windows within {1 - GOOD_ENOUGH:.0%} of "
        "the best, this is the longest, which needs the fewest updates."
    ]
    for method in ("NRES", "PES", "FullES"):
        rows = same.where(method=method).rows
        if method == best.method or not rows:
            continue
        other = max(rows, key=worth)
        ratio = other.episode_variance / best.episode_variance
        noise = "the same variance" if 0.95 < ratio < 1.05 else f"{ratio:.3g} times the variance"
        reasons.append(
            f"{method} with windows of {other.window} steps: its updates are equivalent to "
            f"{worth(other):,.3g} updates without noise; it has {noise} over an episode."
        )
    of_method = same.where(method=best.method).rows
    if len(of_method) > 1:
        listed = ", ".join(f"{r.window}: {worth(r):,.3g}" for r in of_method)
        reasons.append(f"Equivalent updates without noise, by window: {listed}.")
    for sigma, gain in gains.items():
        top = max(table.where(sigma=sigma).rows, key=worth)
        if top.nonfinite:
            count = f"{top.nonfinite} of {table.samples}"
            reasons.append(f"sigma {sigma:g}: {count} episodes with noise were not finite.")
            continue
        if worth(top) == 0:
            verdict = "no gradient is distinguishable from noise."
        elif gain.net_decrease == 0:
            verdict = "the step lowers the loss by less than the noise raises it, or not at all."
        else:
            verdict = f"updates are equivalent to up to {worth(top):,.3g} without noise."
        reasons.append(
            f"sigma {sigma:g}: a step of that length changes the loss from {gain.before:.4g} to "
            f"{gain.after:.4g} (± {gain.stderr:.2g}), noise to {gain.smoothed:.4g}; {verdict}"
        )
    return reasons
