r"""The online evolution-strategies family: one estimator, whose members differ in a few facts.

Worker $i$ perturbs $\theta$ by $\pm\epsilon$, unrolls both members over a window of W steps and
contributes

$$ g_i = \frac{n}{2T} \Big(\sum_{t \in \text{window}} L_t^+ - L_t^-\Big) \cdot w, $$

where $n = \lceil T/W \rceil$ is the number of windows in an episode ($n/T = 1/W$ if W divides T)
and the weight $w = \sum_j \epsilon_j / \sigma_j^2$ sums over the noises applied so far in the
episode. A new noise comes every K steps. That is GPES with period K; NRES is K = T, PES is K = W,
FullES is W = K = T, and TES restarts every window from a state moved by $\theta$ itself, so that
only the window's own noise counts.
"""

from collections.abc import Callable
from typing import Any, NotRequired, TypedDict, Unpack

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from nres.checks import positive_number, whole_number
from nres.estimators.averaging import weigh
from nres.estimators.base import Estimator, check_period, check_settings
from nres.estimators.blocks import Carry
from nres.estimators.remote import begin_remote, run_remote
from nres.estimators.values import Contributions, Workers
from nres.noise import Noise, update_noise
from nres.pools.base import Pool, Window
from nres.pools.jax import advance, as_pool
from nres.pools.ray import RayPool
from nres.system import System, Theta, horizon_of

Sigma = float | Callable[[Int[Array, ""]], Any]


class Options(TypedDict):
    """What every member of the family takes; `NRES` documents it."""

    workers: int
    sigma: Sigma
    noise: NotRequired[str]
    nonfinite: NotRequired[str]


class EvolutionStrategy(Estimator):
    """The common part of `FullES`, `TES`, `PES`, `GPES` and `NRES`."""

    pool: Pool
    horizon: int = eqx.field(static=True)
    workers: int = eqx.field(static=True)
    window: int = eqx.field(static=True)
    period: int = eqx.field(static=True)
    """K: a new noise is drawn at every multiple of it."""
    restarts: bool = eqx.field(static=True)
    """Whether every window starts from a state that the unperturbed parameters reached."""
    members: int = eqx.field(static=True)
    """Unrolls a worker: an antithetic pair, and one that moves the state if `restarts`."""
    sigma: Sigma = eqx.field(static=True)
    noise: str = eqx.field(static=True)
    nonfinite: str = eqx.field(static=True)

    def __init__(
        self,
        system: System | Pool,
        *,
        workers: int,
        window: int,
        period: int,
        restarts: bool,
        sigma: Sigma,
        noise: str = "keep",
        nonfinite: str = "skip",
    ):
        self.pool = as_pool(system)
        self.horizon = horizon_of(self.pool)
        workers, window = check_settings(self.pool, workers, window, nonfinite)
        sigma = sigma if callable(sigma) else positive_number("sigma", sigma)
        if isinstance(self.pool, RayPool) and self.pool.allow_stale and window == self.horizon:
            raise ValueError(
                "with allow_stale, windows must be shorter than episodes: what is late would have "
                "to be carried to the next estimate, and nothing is where a window is an episode."
            )
        if noise not in ("keep", "regenerate"):
            raise ValueError(f'noise must be "keep" or "regenerate", got {noise!r}.')
        self.workers = workers
        self.window = window
        self.period = whole_number("period", period, 0)
        self.restarts = restarts
        self.members = 3 if restarts and self.carries else 2
        self.sigma = sigma
        self.noise = noise
        self.nonfinite = nonfinite

    @property
    def carries(self) -> bool:
        """Whether anything outlives a window: not if the window is the whole episode."""
        return self.window < self.horizon

    @property
    def accumulates(self) -> bool:
        """Whether an episode sees several noises, whose scores add up."""
        return self.period < self.horizon and not self.restarts

    def _begin(self, theta: Theta, workers: Workers) -> Carry | None:
        if not self.carries:
            return None
        if isinstance(self.pool, RayPool):
            return begin_remote(self, theta, workers)
        noise, _, thetas = self._perturb(theta, workers, None, self.sigma_at(jnp.int32(0)))
        window = self._advance(None, thetas, workers, 0, jnp.zeros_like(workers.start))
        return Carry(noise, window.state)

    def _advance(self, state, thetas, workers, window, length) -> Window:
        keys, start = workers.episode_keys(), workers.start
        return advance(self.pool, state, thetas, keys, start, window, length)

    def _run(self, theta, update, workers, carry, length):
        if isinstance(self.pool, RayPool):
            return run_remote(self, theta, update, workers, carry, length)
        old_noise = None if carry is None else carry.noise
        noise, epsilon, thetas = self._perturb(theta, workers, old_noise, self.sigma_at(update))
        state = None if carry is None else carry.pool
        window = self._advance(state, thetas, workers, self.window, length)
        loss, steps = jnp.asarray(window.loss), jnp.asarray(window.steps)
        contributions = reduce(noise, epsilon, loss, steps, scale=self.scale)
        if carry is None:
            return None, contributions
        state = self.pool.fork(window.state, 2) if self.restarts else window.state
        return Carry(noise, state), contributions

    def sigma_at(self, update: Int[Array, ""]) -> Float[Array, ""]:
        """The sigma of noises that are drawn in this update."""
        return jnp.asarray(self.sigma(update) if callable(self.sigma) else self.sigma, float)

    @property
    def scale(self) -> float:
        """What the losses of a window are weighed with: n/T."""
        return self.windows / self.horizon

    def _perturb(self, theta, workers, noise, sigma):
        return perturb(
            theta,
            workers,
            noise,
            sigma,
            horizon=self.horizon,
            period=self.period,
            members=self.members,
            keep=self.noise == "keep" and self.carries,
            accumulate=self.accumulates,
        )


class NRES(EvolutionStrategy):
    r"""Noise-Reuse Evolution Strategies: one noise an episode, used in all its windows.

    An unbiased online estimator of the gradient of the smoothed loss
    $\mathbb E_{\epsilon \sim \mathcal N(0, \sigma^2 I)} L(\theta + \epsilon)$, the same that
    `FullES` estimates, at 2W unroll steps a worker instead of 2T. Among all `GPES` it has the
    least variance (where losses respond linearly to the noise).

    ```python
    system = nres.systems.Lorenz()
    estimator = nres.NRES(system, workers=200, window=100, sigma=0.04)
    theta = system.initial_theta()
    state = estimator.init(theta, jax.random.key(0))
    estimate = estimator.estimate(theta, state)
    ```

    **Arguments:**

    - `system`: a `nres.System`, or any `nres.Pool`.
    - `workers`: N, the number of antithetic pairs. They sit at independent steps of their
        episodes, and their estimates are averaged.
    - `window`: W, the steps each worker takes for one estimate; from 1 to the horizon T. If W
        does not divide T, the last window of an episode is shorter.
    - `sigma`: the standard deviation of the noise, or a function from the number of updates made
        to it (any optax schedule). A noise keeps the sigma it was drawn with.
    - `noise`: `"keep"` noise in memory, or `"regenerate"` it from the workers' keys, so that
        memory does not grow with N·d. Gradients are the same.
    - `nonfinite`: what to do about a worker whose loss or gradient is not finite: `"skip"` it,
        averaging over the others (`estimate.info.nonfinite` counts), or `"raise"`
        `nres.NonFiniteError`.

    **Reference:** Li et al., *Variance-Reduced Gradient Estimation via Noise-Reuse in Online
    Evolution Strategies*, NeurIPS 2023.
    """

    def __init__(self, system: System | Pool, *, window: int, **options: Unpack[Options]):
        pool = as_pool(system)
        super().__init__(pool, window=window, period=horizon_of(pool), restarts=False, **options)


class PES(EvolutionStrategy):
    r"""Persistent Evolution Strategies: a new noise every window, all of an episode's weighed.

    Unbiased for the loss smoothed by independent noise in every window. Arguments as for `NRES`;
    2W steps a worker and estimate. With `noise="regenerate"` the sum of an episode's noises is
    still kept.

    **Reference:** Vicol, Metz, Sohl-Dickstein, *Unbiased Gradient Estimation in Unrolled
    Computation Graphs with Persistent Evolution Strategies*, ICML 2021.
    """

    def __init__(self, system: System | Pool, *, window: int, **options: Unpack[Options]):
        super().__init__(system, window=window, period=window, restarts=False, **options)


class GPES(EvolutionStrategy):
    r"""Generalised Persistent Evolution Strategies: a new noise every `period` steps.

    Unbiased for the loss smoothed by independent noise in every stretch of K = `period` steps:
    K = W is `PES`, K ≥ T is `NRES`. K must be a multiple of W and need not divide T. Other
    arguments as for `NRES`; 2W steps a worker and estimate.

    ```python
    estimator = nres.GPES(system, period=400, workers=200, window=100, sigma=0.04)
    ```

    **Reference:** Li et al., NeurIPS 2023, algorithm [alg:gpes].
    """

    def __init__(
        self, system: System | Pool, *, window: int, period: int, **options: Unpack[Options]
    ):
        super().__init__(system, window=window, period=period, restarts=False, **options)
        check_period(period, window)


class TES(EvolutionStrategy):
    r"""Truncated Evolution Strategies: each window on its own, as if its start were given.

    One state a worker is moved by the unperturbed $\theta$; every window perturbs afresh from
    it. Biased: it does not see how $\theta$ acted before the window. Arguments as for `NRES`;
    3W steps a worker and estimate, W of them sequential.

    **Reference:** Metz et al., *Understanding and correcting pathologies in the training of
    learned optimizers*, ICML 2019; algorithm [alg:tes] of Li et al., NeurIPS 2023.
    """

    def __init__(self, system: System | Pool, *, window: int, **options: Unpack[Options]):
        super().__init__(system, window=window, period=window, restarts=True, **options)
        if not self.pool.can_fork:
            raise ValueError(
                f"TES restarts every window from a copy of a state, and "
                f"{type(self.pool).__name__} cannot copy states. NRES, PES, GPES and FullES can "
                "use it."
            )


class FullES(EvolutionStrategy):
    r"""Antithetic evolution strategies on whole episodes: 2T steps a worker and estimate.

    The offline method that `NRES` replaces: unbiased for the same smoothed loss; nothing is
    carried from one estimate to the next. Arguments as for `NRES`, without a window.

    **Reference:** Salimans et al., *Evolution Strategies as a Scalable Alternative to
    Reinforcement Learning*, 2017; algorithm [alg:fulles] of Li et al., NeurIPS 2023.
    """

    def __init__(self, system: System | Pool, **options: Unpack[Options]):
        pool = as_pool(system)
        horizon = horizon_of(pool)
        super().__init__(pool, window=horizon, period=horizon, restarts=False, **options)


@eqx.filter_jit
def perturb(
    theta: Theta,
    workers: Workers,
    noise: Noise | None,
    sigma: Float[Array, "..."],
    *,
    horizon: int,
    period: int,
    members: int,
    keep: bool,
    accumulate: bool,
) -> tuple[Noise, PyTree, PyTree]:
    """Noise for the windows that begin now.

    **Returns:** the noise to carry, the noise of this window, and what each unroll runs with, with
    axes `(members, workers)` in front.
    """
    noise, epsilon = update_noise(
        noise,
        theta,
        workers.key,
        workers.noise_numbers(horizon, period),
        workers.start,
        sigma,
        period=period,
        keep=keep,
        accumulate=accumulate,
    )

    def spread(x, e):
        x = jnp.broadcast_to(x, e.shape)
        return jnp.stack([x + e, x - e] + [x] * (members - 2))

    return noise, epsilon, jax.tree.map(spread, theta, epsilon)


@eqx.filter_jit
def reduce(
    noise: Noise,
    epsilon: PyTree,
    loss: Float[Array, "members workers"],
    steps: Int[Array, "members workers"],
    *,
    scale: float,
) -> Contributions:
    """Weigh the loss differences into a gradient."""
    coefficient = (loss[0] - loss[1]) * (scale / 2)
    if noise.score is None:
        coefficient = coefficient / noise.sigma.astype(loss.dtype) ** 2
    # A schedule that reaches zero leaves nothing to divide by.
    coefficient = jnp.where(noise.sigma > 0, coefficient, jnp.nan)
    weight = epsilon if noise.score is None else noise.score
    return weigh(coefficient, weight, (loss[0] + loss[1]) * (scale / 2), steps)
