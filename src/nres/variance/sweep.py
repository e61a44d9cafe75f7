"""`sweep`: variance against period, window, sigma and workers."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import PyTree

from nres.checks import as_key, positive_number, whole_number
from nres.estimators.base import check_fits, check_period
from nres.pools.base import Pool
from nres.pools.jax import as_pool
from nres.system import as_theta
from nres.variance.episodes import window_moments
from nres.variance.measured import check_samples, like


@dataclasses.dataclass(frozen=True)
class Row:
    """One choice of settings, and what comes of it."""

    period: int
    window: int
    sigma: float
    workers: int
    method: str
    """Its name in the paper: NRES if a noise serves the episode, FullES if a window does, too,
    PES if it serves a window, GPES otherwise."""
    variance: float
    r"""$\operatorname{tr Cov}$ of one estimate, of all workers together."""
    low: float
    high: float
    """The confidence interval of `variance`."""
    episode_variance: float
    """The same of the mean of all estimates that the workers make in one episode: the noise that
    is left where the parameters hardly change meanwhile. It does not depend on the window."""
    signal: float
    """The squared norm of the gradient, without bias: noise may make it negative."""
    signal_stderr: float
    """Its standard error."""
    loss: float
    """The smoothed loss."""
    total_steps: int
    sequential_steps: int
    """What one estimate costs in a running pool, on average."""
    nonfinite: int
    """Episodes left out because a loss in them was not finite. Where hardly any were, everything
    that is measured is not a number."""

    @property
    def snr(self) -> float:
        """Signal-to-noise ratio of one estimate."""
        return self.signal / self.variance if self.variance > 0 else np.inf

    @property
    def work(self) -> float:
        """Variance times total steps: less of it is better at equal compute."""
        return self.variance * self.total_steps


@dataclasses.dataclass(frozen=True)
class Sweep:
    """A table, one row for each choice."""

    rows: tuple[Row, ...]
    samples: int
    """Episodes behind each row."""
    gradients: Mapping[tuple[int, float], PyTree]
    """The mean gradient for each period and sigma."""

    def column(self, name: str) -> np.ndarray:
        """All values of one column, or of a property of rows."""
        return np.array([getattr(row, name) for row in self.rows])

    def where(self, **fixed: Any) -> "Sweep":
        """The rows that have these values."""
        rows = [r for r in self.rows if all(getattr(r, k) == v for k, v in fixed.items())]
        return Sweep(tuple(rows), self.samples, self.gradients)

    def to_json(self) -> list[dict[str, Any]]:
        """The rows as plain values."""
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
    r"""The variance of `GPES` for all these settings at fixed parameters, without hysteresis.

    Every combination of period and sigma costs one pass over `samples` antithetic episodes; all
    windows that divide the period, and all numbers of workers, follow from it. Nothing is compiled
    anew from one combination to the next. Combinations that make no estimator (a period that is
    not a multiple of the window) are left out.

    ```python
    table = nres.variance.sweep(
        system, theta, jax.random.key(0), sigmas=[0.01, 0.04], windows=[20, 100, 2000]
    )
    table.where(sigma=0.04).column("variance")
    ```

    **Arguments:**

    - `system`, `theta`, `key`: as for `measure`; any pool.
    - `sigmas`: scales of noise.
    - `windows`: W; the horizon itself stands for `FullES`.
    - `periods`: K; the horizon alone by default, which is `NRES`.
    - `workers`: N.
    - `samples`, `level`, `callback`: as for `measure`, `samples` for each combination.
    """
    pool, theta, key = as_pool(system), as_theta(theta), as_key(key)
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
    # The horizon itself is made of whatever parts there are.
    base = math.gcd(*[w for w in windows if w < horizon]) or horizon
    rows: list[Row] = []
    gradients = {}
    for i, sigma in enumerate(sigmas):
        for j, (period, fitting) in enumerate(plan.items()):
            part = i * len(plan) + j

            def report(fraction, part=part):
                if callback is not None:
                    callback((part + fraction) / (len(sigmas) * len(plan)))

            # The same key everywhere: rows share their noise, so they differ in what they say.
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
    """What `GPES` with such a period and window is called."""
    if period >= pool.horizon:
        return "FullES" if window == pool.horizon else "NRES"
    return "PES" if period == window else "GPES"
