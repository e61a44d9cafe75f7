"""The members of the evolution-strategies family: `NRES`, `PES`, `GPES`, `TES` and `FullES`."""

from typing import ClassVar

from jaxtyping import Array, Int

from nres.checks import as_period, check_period
from nres.estimators.base import LOCAL
from nres.estimators.evolution import (
    AS_THEY_ARE,
    GAUSSIAN,
    EvolutionStrategy,
    OnlineStrategy,
    Sigma,
)
from nres.noise import Noise
from nres.placement import Placement
from nres.pools.base import Pool
from nres.system import System
from nres.workers import EVEN


class NRES(OnlineStrategy):
    r"""Noise-Reuse Evolution Strategies: one noise per episode, reused in all of its windows.

    An unbiased online estimator of the gradient of the smoothed loss
    $\mathbb E_{\epsilon \sim \mathcal N(0, \sigma^2 I)} L(\theta + \epsilon)$, which `FullES`
    estimates too; NRES takes 2W unroll steps per worker and estimate instead of 2T. Among all
    `GPES` estimators it has the least variance, if losses respond linearly to the noise.

    Args:
        pool (System | Pool): An `nres.System`, or any `nres.Pool`.
        workers (int): N, the number of antithetic pairs. The pairs are at different steps of
            their episodes, and their estimates are averaged.
        window (int): W, the number of steps that each worker takes for one estimate; from 1 to
            the horizon T. If W does not divide T, the last window of an episode is shorter.
        sigma (float | PyTree | Callable): The standard deviation of the noise; or, if parameters
            have different scales, a pytree of numbers or arrays for the leaves of `theta`, or for
            whole branches of it; or a function that maps the number of updates made so far to
            either, for example an optax schedule; or an `nres.AdaptiveSigma`. A noise keeps the
            sigma with which it was drawn.
        noise (Noise): The distribution of the noise; Gaussian by default.
        store_noise (bool): True, the default, to keep the noise in memory; false to regenerate it
            from the workers' keys in every window, so that memory does not grow with N·d.
            Gradients are the same.
        nonfinite (str): The policy for a worker whose loss or gradient is not finite. `"skip"`,
            the default, averages over the other workers and counts the ones left out in
            `estimate.info.nonfinite`; `"raise"` raises `nres.NonFiniteError`.
        placement (Placement): The devices or processes that run the workers:
            `nres.placement.Local()` (the default), `Devices(mesh)` or `Ray(actors=...)`.
        phases (str): The windows of an episode at which workers start. `"even"`, the default,
            spreads them evenly over the windows, beginning at a random one: no window has more
            workers than another, so their losses vary less. `"independent"` draws the window of
            every worker, as in the paper. Both are unbiased.
        shaping (str): What is made of the losses. `"none"`, the default, is unbiased. `"scaled"`
            divides the estimate by the root mean square of all pairs' half loss differences, so
            that the learning rate need not fit the scale of the loss; the direction is unbiased up
            to that factor, which is random. `"signs"` replaces each pair's difference by its sign,
            as ranks within the pair would: outliers count no more than others, and the estimate is
            that of another objective, how often one member is better than the other. Ranks among
            all workers would compare windows from different parts of an episode.

    Raises:
        TypeError: If a count is not an integer, or an argument has the wrong type.
        ValueError: If an argument is out of bounds.

    Example:
        ```python
        system = nres.systems.Lorenz()
        estimator = nres.NRES(system, workers=200, window=100, sigma=0.04)
        theta = system.initial_theta()
        state = estimator.init(theta, jax.random.key(0))
        estimate = estimator.estimate(theta, state)
        ```

    Reference:
        Li et al., *Variance-Reduced Gradient Estimation via Noise-Reuse in Online Evolution
        Strategies*, NeurIPS 2023.
    """

    restarts: ClassVar[bool] = False
    accumulates: ClassVar[bool] = False
    renews_every_window: ClassVar[bool] = False
    __init__ = OnlineStrategy.__init__


class PES(OnlineStrategy):
    r"""Persistent Evolution Strategies: a new noise in every window, with accumulated scores.

    Each window's loss difference is weighted with the sum of all noises of the episode so far.
    The estimator is unbiased for the loss smoothed by independent noise in every window. It takes
    2W steps per worker and estimate. The arguments are those of `NRES`. With `store_noise=False`,
    the sum of an episode's noises is still stored.

    Reference:
        Vicol, Metz, Sohl-Dickstein, *Unbiased Gradient Estimation in Unrolled Computation Graphs
        with Persistent Evolution Strategies*, ICML 2021.
    """

    restarts: ClassVar[bool] = False
    accumulates: ClassVar[bool] = True
    renews_every_window: ClassVar[bool] = True
    __init__ = OnlineStrategy.__init__


class GPES(OnlineStrategy):
    r"""Generalised Persistent Evolution Strategies: a new noise every `period` steps.

    The estimator is unbiased for the loss smoothed by independent noise in every stretch of
    K = `period` steps: K = W is `PES`, K ≥ T is `NRES`. It takes 2W steps per worker and estimate.
    The other arguments are those of `NRES`.

    Args:
        period: K, a multiple of W; it need not divide T. Changing K does not recompile.

    Example:
        ```python
        estimator = nres.GPES(system, period=400, workers=200, window=100, sigma=0.04)
        ```

    Reference:
        Li et al., *Variance-Reduced Gradient Estimation via Noise-Reuse in Online Evolution
        Strategies*, NeurIPS 2023.
    """

    period: Int[Array, ""]
    restarts: ClassVar[bool] = False
    accumulates: ClassVar[bool] = True
    renews_every_window: ClassVar[bool] = False

    def __init__(
        self,
        pool: System | Pool,
        *,
        workers: int,
        window: int,
        period: int | Int[Array, ""],
        sigma: Sigma,
        noise: Noise = GAUSSIAN,
        store_noise: bool = True,
        nonfinite: str = "skip",
        placement: Placement = LOCAL,
        phases: str = EVEN,
        shaping: str = AS_THEY_ARE,
    ):
        super().__init__(
            pool,
            workers=workers,
            window=window,
            sigma=sigma,
            noise=noise,
            store_noise=store_noise,
            nonfinite=nonfinite,
            placement=placement,
            phases=phases,
            shaping=shaping,
        )
        self.period = as_period(period)

    def __check_init__(self) -> None:
        check_period(self.period, self.window)

    @property
    def noise_period(self) -> Int[Array, ""]:
        return self.period


class TES(OnlineStrategy):
    r"""Truncated Evolution Strategies: each window separately, with its first state held fixed.

    One state per worker moves with the unperturbed $\theta$; every window starts from a copy of
    that state with new noise. The estimator is biased: it ignores the influence of $\theta$
    before the window. It takes 3W steps per worker and estimate, W of them in sequence. The
    arguments are those of `NRES`.

    Raises:
        ValueError: If the pool cannot copy states, besides the errors of `NRES`.

    Reference:
        Metz et al., *Understanding and correcting pathologies in the training of learned
        optimizers*, ICML 2019.
    """

    restarts: ClassVar[bool] = True
    accumulates: ClassVar[bool] = False
    renews_every_window: ClassVar[bool] = True
    __init__ = OnlineStrategy.__init__

    def __check_init__(self) -> None:
        if not self.pool.can_fork:
            raise ValueError(
                f"TES restarts every window from a copy of a state, but "
                f"{type(self.pool).__name__} cannot copy states. Use NRES, PES, GPES or FullES "
                "instead."
            )


class FullES(EvolutionStrategy):
    r"""Antithetic evolution strategies on whole episodes: 2T steps per worker and estimate.

    This is the offline method that `NRES` replaces. It is unbiased for the same smoothed loss and
    carries nothing from one estimate to the next. The arguments are those of `NRES`, without
    `window`.

    Reference:
        Salimans et al., *Evolution Strategies as a Scalable Alternative to Reinforcement
        Learning*, 2017.
    """

    restarts: ClassVar[bool] = False
    accumulates: ClassVar[bool] = False
    renews_every_window: ClassVar[bool] = False
    __init__ = EvolutionStrategy.__init__

    @property  # type: ignore[misc]
    def window(self) -> int:  # type: ignore[override]
        return self.horizon
