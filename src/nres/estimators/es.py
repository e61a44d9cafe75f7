"""The members of the evolution-strategies family: `NRES`, `PES`, `GPES`, `TES` and `FullES`."""

from typing import ClassVar

from jaxtyping import Array, Int

from nres.estimators.base import LOCAL, as_period, check_period
from nres.estimators.evolution import GAUSSIAN, EvolutionStrategy, OnlineStrategy, Sigma
from nres.noise import Noise
from nres.placement import Placement
from nres.pools.base import Pool
from nres.system import System


class NRES(OnlineStrategy):
    r"""Noise-Reuse Evolution Strategies: one noise per episode, used in all its windows.

    An unbiased online estimator of the gradient of the smoothed loss
    $\mathbb E_{\epsilon \sim \mathcal N(0, \sigma^2 I)} L(\theta + \epsilon)$, the same that
    `FullES` estimates, at 2W unroll steps per worker instead of 2T. Among all `GPES` it has the
    least variance (where losses respond linearly to the noise).

    ```python
    system = nres.systems.Lorenz()
    estimator = nres.NRES(system, workers=200, window=100, sigma=0.04)
    theta = system.initial_theta()
    state = estimator.init(theta, jax.random.key(0))
    estimate = estimator.estimate(theta, state)
    ```

    **Arguments:**

    - `pool`: an `nres.System`, or any `nres.Pool`.
    - `workers`: N, the number of antithetic pairs. They sit at independent steps of their
        episodes, and their estimates are averaged.
    - `window`: W, the steps each worker takes for one estimate; from 1 to the horizon T. If W
        does not divide T, the last window of an episode is shorter.
    - `sigma`: the standard deviation of the noise, or a function from the number of updates made
        to it (any optax schedule). A noise keeps the sigma it was drawn with.
    - `noise`: the law of the noise, an `nres.Noise`.
    - `store_noise`: keep the noise in memory, or draw it again from the workers' keys in every
        window, so that memory does not grow with N·d. Gradients are the same.
    - `nonfinite`: what to do about a worker whose loss or gradient is not finite: `"skip"` it,
        averaging over the others (`estimate.info.nonfinite` counts), or `"raise"`
        `nres.NonFiniteError`.
    - `placement`: where the workers live: `nres.placement.Local()`, `Devices(mesh)` or
        `Ray(actors=...)`.

    **Reference:** Li et al., *Variance-Reduced Gradient Estimation via Noise-Reuse in Online
    Evolution Strategies*, NeurIPS 2023.
    """

    restarts: ClassVar[bool] = False
    accumulates: ClassVar[bool] = False
    renews_every_window: ClassVar[bool] = False
    __init__ = OnlineStrategy.__init__


class PES(OnlineStrategy):
    r"""Persistent Evolution Strategies: a new noise every window, all of an episode's weighed.

    Unbiased for the loss smoothed by independent noise in every window. Arguments as for `NRES`;
    2W steps per worker and estimate. With `store_noise=False` the sum of an episode's noises is
    still kept.

    **Reference:** Vicol, Metz, Sohl-Dickstein, *Unbiased Gradient Estimation in Unrolled
    Computation Graphs with Persistent Evolution Strategies*, ICML 2021.
    """

    restarts: ClassVar[bool] = False
    accumulates: ClassVar[bool] = True
    renews_every_window: ClassVar[bool] = True
    __init__ = OnlineStrategy.__init__


class GPES(OnlineStrategy):
    r"""Generalised Persistent Evolution Strategies: a new noise every `period` steps.

    Unbiased for the loss smoothed by independent noise in every stretch of K = `period` steps:
    K = W is `PES`, K ≥ T is `NRES`. K must be a multiple of W and need not divide T. Another K
    does not compile anew. Other arguments as for `NRES`; 2W steps per worker and estimate.

    ```python
    estimator = nres.GPES(system, period=400, workers=200, window=100, sigma=0.04)
    ```

    **Reference:** Li et al., NeurIPS 2023, algorithm [alg:gpes].
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
        )
        self.period = as_period(period)

    def __check_init__(self) -> None:
        check_period(self.period, self.window)

    @property
    def noise_period(self) -> Int[Array, ""]:
        return self.period


class TES(OnlineStrategy):
    r"""Truncated Evolution Strategies: each window on its own, as if its start were given.

    One state per worker is moved by the unperturbed $\theta$; every window perturbs afresh from
    it. Biased: it does not see how $\theta$ acted before the window. Arguments as for `NRES`;
    3W steps per worker and estimate, W of them sequential.

    **Reference:** Metz et al., *Understanding and correcting pathologies in the training of
    learned optimizers*, ICML 2019; algorithm [alg:tes] of Li et al., NeurIPS 2023.
    """

    restarts: ClassVar[bool] = True
    accumulates: ClassVar[bool] = False
    renews_every_window: ClassVar[bool] = True
    __init__ = OnlineStrategy.__init__

    def __check_init__(self) -> None:
        if not self.pool.can_fork:
            raise ValueError(
                f"TES restarts every window from a copy of a state, and "
                f"{type(self.pool).__name__} cannot copy states. NRES, PES, GPES and FullES can "
                "use it."
            )


class FullES(EvolutionStrategy):
    r"""Antithetic evolution strategies on whole episodes: 2T steps per worker and estimate.

    The offline method that `NRES` replaces: unbiased for the same smoothed loss; nothing is
    carried from one estimate to the next. Arguments as for `NRES`, without a window.

    **Reference:** Salimans et al., *Evolution Strategies as a Scalable Alternative to
    Reinforcement Learning*, 2017; algorithm [alg:fulles] of Li et al., NeurIPS 2023.
    """

    restarts: ClassVar[bool] = False
    accumulates: ClassVar[bool] = False
    renews_every_window: ClassVar[bool] = False
    __init__ = EvolutionStrategy.__init__

    @property  # type: ignore[misc]
    def window(self) -> int:  # type: ignore[override]
        return self.horizon
