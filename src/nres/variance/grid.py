"""`sweep`: the variance as a function of period, window, sigma and number of workers."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import PyTree

from nres.checks import as_key, check_fits, check_period, positive_number, whole_number
from nres.pools.base import Pool
from nres.pools.jax import as_pool
from nres.system import as_theta, check_one_length
from nres.variance.episodes import window_moments
from nres.variance.measured import check_samples, like


@dataclasses.dataclass(frozen=True)
class Row:
    """One combination of settings, with its variance and cost."""

    period: int
    """K, the number of steps for which a noise is kept."""
    window: int
    """W, the number of steps per estimate."""
    sigma: float
    """The scale of the noise."""
    workers: int
    """N, the number of workers."""
    method: str
    """The name of this `GPES` in the paper: FullES if a window is a whole episode, NRES if a noise
    serves a whole episode, PES if it serves one window, GPES otherwise."""
    variance: float
    r"""$\operatorname{tr Cov}$ of one estimate, which is the mean over all workers."""
    low: float
    """The lower end of the confidence interval of `variance`."""
    high: float
    """The upper end of the confidence interval of `variance`."""
    episode_variance: float
    """The variance of the mean of all estimates that the workers make in one episode. This noise
    remains if the parameters hardly change during an episode. It does not depend on the window."""
    signal: float
    """An unbiased estimate of the gradient's squared norm; noise may make it negative."""
    signal_stderr: float
    """The standard error of `signal`."""
    loss: float
    """The smoothed loss."""
    total_steps: int
    """The average number of unroll steps of one estimate in a running pool."""
    sequential_steps: int
    """The number of these steps that follow one another."""
    nonfinite: int
    """The number of episodes left out because a loss in them was not finite. If almost all were
    left out, all measured values are NaN."""

    @property
    def snr(self) -> float:
        """The signal-to-noise ratio of one estimate."""
        return self.signal / self.variance if self.variance > 0 else np.inf

    @property
    def work(self) -> float:
        """Variance times total steps: at equal compute, the estimator with less is better."""
        return self.variance * self.total_steps


@dataclasses.dataclass(frozen=True)
class Sweep:
    """The result of `sweep`: a table with one row per combination of settings."""

    rows: tuple[Row, ...]
    """The rows."""
    samples: int
    """The number of episodes behind each row."""
    gradients: Mapping[tuple[int, float], PyTree]
    """The mean gradient for each period and sigma."""

    def column(self, name: str) -> np.ndarray:
        """Return all values of one column, or of a property of rows."""
        return np.array([getattr(row, name) for row in self.rows])

    def where(self, **fixed: Any) -> "Sweep":
        """Return the rows that have the given values, for example `where(sigma=0.04)`."""
        rows = [r for r in self.rows if all(getattr(r, k) == v for k, v in fixed.items())]
        return Sweep(tuple(rows), self.samples, self.gradients)

    def to_json(self) -> list[dict[str, Any]]:
        """Return the rows as dictionaries of plain values."""
        return [dataclasses.asdict(row) for row in self.rows]


def sweep(
    system: Any,
    theta: PyTree,
    key: Any,
    *,
    sigmas: Sequence[float],
    windows: Sequence[int],
    periods: Sequence[int] | None = None,
    workers: Sequence[int] = (1,),
    samples: int = 4096,
    level: float = 0.95,
    callback: Callable[[float], Any] | None = None,
) -> Sweep:
    r"""Measure the variance of `GPES` at fixed parameters for a grid of settings.

    There is no hysteresis, as in `measure`. Every combination of period and sigma takes one pass
    over `samples` antithetic episodes; the results for all windows that divide the period, and for
    all numbers of workers, follow from it. All combinations share one compilation. Combinations
    that are no estimator (a period that is not a multiple of the window) are left out.

    Args:
        system: An `nres.System`, or any `nres.Pool`.
        theta: The parameters.
        key: A JAX random key.
        sigmas: The scales of the noise.
        windows: The windows W; the horizon itself gives `FullES`.
        periods: The periods K; by default only the horizon, which is `NRES`.
        workers: The numbers of workers N.
        samples: The number of antithetic episodes per combination; at least 8.
        level: The level of the confidence intervals.
        callback: A function that is called now and then with the fraction of work done.

    Returns:
        A table with one row per combination.

    Raises:
        ValueError: If a list is empty or a value is out of bounds.

    Example:
        ```python
        table = nres.variance.sweep(
            system, theta, jax.random.key(0), sigmas=[0.01, 0.04], windows=[20, 100, 2000]
        )
        table.where(sigma=0.04).column("variance")
        ```
    """
    pool, theta, key = as_pool(system), as_theta(theta), as_key(key)
    check_one_length("sweep", pool)
    horizon = pool.horizon
    check_samples(samples, level)
    for name, values in {"sigmas": sigmas, "windows": windows, "workers": workers}.items():
        if not isinstance(values, Sequence) or not values:
            raise ValueError(f"{name} must be a list with at least one number, got {values!r}.")
    for window in windows:
        check_fits(window, horizon)
    for count in workers:
        whole_number("workers", count)
    sigmas = [positive_number("sigma", sigma) for sigma in sigmas]
    if periods is not None and not (isinstance(periods, Sequence) and periods):
        raise ValueError(f"periods must be a list with at least one number, got {periods!r}.")
    chosen = (horizon,) if periods is None else periods
    periods = [min(whole_number("periods", period), horizon) for period in chosen]
    plan = {p: [w for w in windows if p >= horizon or p % w == 0] for p in dict.fromkeys(periods)}
    for period, fitting in plan.items():
        if not fitting:
            check_period(period, windows[0])
    pool.check(theta)
    # The horizon can consist of parts of any length.
    base = math.gcd(*[w for w in windows if w < horizon]) or horizon
    rows: list[Row] = []
    gradients = {}
    for i, sigma in enumerate(sigmas):
        for j, (period, fitting) in enumerate(plan.items()):
            part = i * len(plan) + j

            def report(fraction, part=part):
                if callback is not None:
                    callback((part + fraction) / (len(sigmas) * len(plan)))

            # The same key everywhere: rows share their noise, so only their settings differ.
            result = window_moments(
                pool,
                theta,
                key,
                period=period,
                sigma=sigma,
                windows=fitting,
                base=base,
                samples=samples,
                callback=report,
            )
            gradients[period, sigma] = like(theta, result.moments.mean.mean)
            variance, (low, high) = result.moments.variance, result.moments.interval(level)
            rows += [
                Row(
                    period=period,
                    window=window,
                    sigma=sigma,
                    workers=n,
                    method=method_name(pool, period, window),
                    variance=float(variance[k]) / n,
                    low=float(low[k]) / n,
                    high=float(high[k]) / n,
                    episode_variance=float(variance[-1]) / n,
                    signal=result.moments.mean.signal,
                    signal_stderr=result.moments.signal_stderr,
                    loss=result.loss,
                    total_steps=round(n * result.steps / math.ceil(horizon / window)),
                    sequential_steps=window,
                    nonfinite=result.nonfinite,
                )
                for k, window in enumerate(fitting)
                for n in workers
            ]
    return Sweep(tuple(rows), result.samples, gradients)


def method_name(pool: Pool, period: int, window: int) -> str:
    """Return the name of `GPES` with this period and window."""
    if period >= pool.horizon:
        return "FullES" if window == pool.horizon else "NRES"
    return "PES" if period == window else "GPES"
