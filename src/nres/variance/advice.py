"""`advise`: which method, window, workers and sigma, for a budget."""

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
from nres.pools.base import Pool
from nres.pools.jax import as_pool
from nres.system import as_theta, parameter_count
from nres.variance.sweep import Row, Sweep, sweep
from nres.workers import Steps

SIGMAS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
# A longer window costs fewer updates: the longest is taken that comes this close to the best.
GOOD_ENOUGH = 0.8
# The loss after a step is a mean over so many episodes.
GAIN_EPISODES = 256


@dataclasses.dataclass(frozen=True)
class Gain:
    """What a step of length sigma along the mean gradient does to the loss, and what noise does."""

    before: float
    after: float
    """The loss before the step and after it."""
    stderr: float
    """Of the difference."""
    smoothed: float
    """The loss with noise of that sigma, without a step."""
    slope: float
    """What the step would take off the loss if it did not bend."""
    alignment: float
    """The squared cosine of the angle between the mean gradient and the expected one."""
    size: int
    """d, the number of parameters."""

    @property
    def net_decrease(self) -> float:
        """The decrease of the loss by the step, less what noise adds; 0 if it may be chance."""
        gain = self.before - self.after
        rise = max(0.0, self.smoothed - self.before)
        return max(0.0, gain - rise) if gain > 2 * self.stderr else 0.0

    @property
    def relative_curvature(self) -> float:
        """The mean curvature over all directions relative to that along the gradient.

        From 1/d to 1: it says how much noise harms an update. It is 1 where all directions are
        alike, 1/d where the loss bends along the gradient alone.
        """
        mean = max(0.0, self.smoothed - self.before) / self.size
        along = self.slope - (self.before - self.after)
        along = (along - (1 - self.alignment) * mean) / self.alignment
        if not mean > 0:
            return 1 / self.size
        return min(1.0, max(1 / self.size, mean / along)) if along > 0 else 1.0


@dataclasses.dataclass(frozen=True)
class Advice:
    """What `advise` recommends, and what it rests on."""

    method: str
    window: int
    workers: int
    sigma: float
    updates: int
    """That the budget of sequential steps allows."""
    effective_updates: float
    """The number of noise-free updates that would do as much."""
    reasons: tuple[str, ...]
    table: Sweep
    """The pilot sweep, with the recommended number of workers."""
    gains: Mapping[float, Gain]
    """What a step along the gradient does, for each sigma."""


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
    r"""Recommend method, W, N and sigma for a budget of unroll steps, from a pilot sweep.

    **Workers.** A budget of S sequential and C total steps means N = C/2S, whatever the window.

    **Window.** With window W there are U = (S - T)/W updates, after up to T steps to bring workers
    to random places of their first episodes (S/T for `FullES`). One along a noisy gradient is
    worth $1 / (1 + h v / \lVert g \rVert^2)$ of one without noise, where
    $h = \frac{\operatorname{tr} H / d}{\hat g^\top H \hat g}$ says how much noise harms: with the
    Hessian H, noise costs by the mean curvature of all directions, and the step by that along the
    gradient. Both are told from what noise and a step do to the loss. For v it does not do to take
    the variance of one estimate: a worker's estimates share their noise through an episode, so
    their errors add up over its $n = T/W$ updates as if each had $n$ times the variance
    $v_{\text{episode}}$ of the episode's mean, which for `NRES` is `FullES`'s. With
    $v = \max(v_W, n\, v_{\text{episode}})$, all updates are worth
    $U / (1 + h v / \lVert g \rVert^2)$ noise-free ones. Shorter windows are worth more until the
    noise takes over; the longest window that comes within a fifth of the best is taken.

    **Sigma.** How far the estimates see is $\sigma$, and what they see is the loss smoothed over
    it, which may be another than the one that was asked for. So for each sigma a step of
    length $\sigma$ is made along the mean gradient, and the loss compared; what the noise itself
    adds to the loss is taken off the gain. The sigma is taken for which the rest times what
    the updates are worth is largest. Gains and gradients that cannot be told from zero count as
    zero, and so does a sigma with which losses are not finite.

    The pilot looks at `theta` alone: closer to an optimum less noise is better, so ask again
    there. And it sees neither what the optimizer will do, nor hysteresis (see `hysteresis`), nor
    the fixed costs of an update.

    ```python
    advice = nres.variance.advise(system, theta, jax.random.key(0), budget=(10**8, 10**5))
    print(advice.method, advice.window, advice.workers, advice.sigma, *advice.reasons, sep="\n")
    ```

    **Arguments:**

    - `system`, `theta`, `key`: as for `measure`; any pool.
    - `budget`: total and sequential steps of a whole training.
    - `sigmas`: scales of noise to try.
    - `samples`: antithetic episodes for each of them.
    - `callback`: called with the fraction that is done, from time to time.

    **Reference:** McCandlish et al., *An empirical model of large-batch training*, 2018, for what
    a noisy update is worth.
    """
    pool, theta, key = as_pool(system), as_theta(theta), as_key(key)
    horizon = pool.horizon
    total, sequential = map(int, budget)
    if sequential < 2 * horizon:
        raise ValueError(
            f"the budget must hold at least two episodes of {horizon} steps one after another, "
            f"got {sequential} sequential steps."
        )
    if total < 2 * sequential:
        raise ValueError(
            f"the budget must hold twice as many total as sequential steps, for one antithetic "
            f"pair; got {total} and {sequential}."
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
            f"at none of the sigmas {', '.join(f'{s:g}' for s in sigmas)} do {samples} episodes "
            "show a gradient that lowers the loss when it is followed, by more than the noise "
            "raises it. Try more samples, and other sigmas; if that does not help, the loss may be "
            "flat here."
        )
    # Whole episodes only where nothing else is as good.
    same = [row for row in table.where(sigma=top.sigma).rows if row.method == top.method]
    good = [row for row in same if worth(row) >= GOOD_ENOUGH * worth(top)]
    best = max(good, key=lambda row: row.window)
    if best.window < horizon:
        # With the same parts as before, so that nothing is compiled anew.
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
    """How many noise-free updates those are worth that so many sequential steps allow.

    **Arguments:**

    - `row`: of a sweep.
    - `sequential`: steps one after another, of the whole training.
    - `horizon`: T.
    - `relative_curvature`: that of `Gain`.
    """
    # Two standard errors, or there is no gradient to follow; nor is there beyond the edge.
    if row.nonfinite or not row.signal > 2 * row.signal_stderr:
        return 0.0
    noise = max(row.variance, row.episode_variance * horizon / row.window)
    return _updates(row.window, sequential, horizon) / (1 + relative_curvature * noise / row.signal)


def _updates(window: int, sequential: int, horizon: int) -> int:
    """Updates in so many sequential steps, those before the first of them included."""
    return (sequential - (horizon if window < horizon else 0)) // window


def candidate_windows(horizon: int, base: int) -> list[int]:
    """Multiples of `base` steps, 1, 2, 5, 10, 20 and so on, and the horizon."""
    steps = (m * 10**e for e in range(len(str(horizon))) for m in (1, 2, 5))
    return [*(base * s for s in steps if base * s < horizon), horizon]


def _gains(
    pool: Pool, theta: PyTree, key: Any, table: Sweep, sigmas: Sequence[float]
) -> dict[float, Gain]:
    # Where the loss is jagged one value says little: all are means over the least of the noises,
    # and with the same key over the same of them.
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
        if squares > 0:  # and a number
            scale = sigma / math.sqrt(squares)
            step = lambda x, g, scale=scale: x - jnp.asarray(scale * g, x.dtype)  # noqa: E731
            after = losses(jax.tree.map(step, theta, gradient))
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
        f"{best.method} with windows of {best.window} steps makes updates worth "
        f"{worth(best):,.3g} without noise: of the windows that come within "
        f"{1 - GOOD_ENOUGH:.0%} of its best, the longest, which makes the fewest updates."
    ]
    for method in ("NRES", "PES", "FullES"):
        rows = same.where(method=method).rows
        if method == best.method or not rows:
            continue
        other = max(rows, key=worth)
        ratio = other.episode_variance / best.episode_variance
        noise = "as much noise" if 0.95 < ratio < 1.05 else f"{ratio:.3g} times the variance"
        reasons.append(
            f"{method} with windows of {other.window} steps: worth {worth(other):,.3g}; it has "
            f"{noise} over an episode."
        )
    of_method = same.where(method=best.method).rows
    if len(of_method) > 1:
        listed = ", ".join(f"{r.window}: {worth(r):,.3g}" for r in of_method)
        reasons.append(f"By the length of windows, {listed}.")
    for sigma, gain in gains.items():
        top = max(table.where(sigma=sigma).rows, key=worth)
        if top.nonfinite:
            count = f"{top.nonfinite} of {table.samples}"
            reasons.append(f"sigma {sigma:g}: {count} episodes with noise were not finite.")
            continue
        if worth(top) == 0:
            verdict = "no gradient can be told from noise."
        elif gain.net_decrease == 0:
            verdict = "the step does not help, or less than the noise harms."
        else:
            verdict = f"for up to {worth(top):,.3g} updates' worth."
        reasons.append(
            f"sigma {sigma:g}: a step of that length takes the loss from {gain.before:.4g} to "
            f"{gain.after:.4g} (± {gain.stderr:.2g}), noise to {gain.smoothed:.4g}: {verdict}"
        )
    return reasons
