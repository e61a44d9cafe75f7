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
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from nres.checks import positive_number
from nres.estimators.averaging import weigh
from nres.estimators.base import Estimator, as_period, check_period, window_field
from nres.noise import Gaussian, Noise, NoiseState, update_noise
from nres.system import Theta
from nres.tracing import Lifted, lift
from nres.workers import Carry, Contributions, Workers


def _as_sigma(
    sigma: float | Float[Array, "..."] | Callable[[Int[Array, ""]], Any],
) -> Float[Array, "..."] | Lifted:
    """A number as an array, a schedule as a traced function: neither is compiled in."""
    if isinstance(sigma, Lifted) or eqx.is_array(sigma):
        return sigma
    if callable(sigma):
        schedule = lambda update: jnp.asarray(sigma(update), float)  # noqa: E731
        return lift(schedule, jax.ShapeDtypeStruct((), jnp.int32))
    return jnp.asarray(positive_number("sigma", sigma), float)


class Response(eqx.Module):
    """How the losses of a window respond to the noise: worker i contributes $c_i w_i$."""

    coefficient: Float[Array, "workers"]
    weight: PyTree
    """One row like `theta` per worker."""
    loss: Float[Array, "workers"]
    steps: Int[Array, "members workers"]


class EvolutionStrategy(Estimator):
    """The common part of `FullES`, `TES`, `PES`, `GPES` and `NRES`."""

    sigma: Float[Array, "..."] | Lifted = eqx.field(kw_only=True, converter=_as_sigma)
    noise: Noise = eqx.field(kw_only=True, default=Gaussian())
    store_noise: bool = eqx.field(static=True, kw_only=True, default=True)

    period: eqx.AbstractVar[int | Int[Array, ""]]
    """K: a new noise is drawn at every multiple of it."""
    accumulates: eqx.AbstractVar[bool]
    """True if an episode sees several noises, whose scores add up."""
    restarts: eqx.AbstractClassVar[bool]
    """True if every window starts from a state that the unperturbed parameters reached."""

    @property
    def members(self) -> int:
        """Unrolls per worker: those that are perturbed, and one that moves the state if needed."""
        return len(self.noise.contrast) + (self.restarts and self.carries)

    @property
    def carries(self) -> bool:
        """True if anything outlives a window: not if the window is the whole episode."""
        return self.window < self.horizon

    def at(self, update):
        if not isinstance(self.sigma, Lifted):
            return self
        return eqx.tree_at(lambda e: e.sigma, self, self.sigma(update), is_leaf=_is_lifted)

    def rescaled(self, start, scale):
        present = jnp.where(start % self.period == 0, self.sigma, scale)
        return eqx.tree_at(lambda e: e.sigma, self, present)

    def begin(self, theta: Theta, workers: Workers) -> Carry | None:
        if not self.carries:
            return None
        noise, _, thetas = self._perturb(theta, workers, None)
        return Carry(noise, self.unroll(None, thetas, workers, 0).state)

    def run(self, theta, workers, carry, length) -> tuple[Carry | None, Contributions]:
        carry, response = self.respond(theta, workers, carry, length)
        return carry, weigh(response.coefficient, response.weight, response.loss, response.steps)

    def respond(
        self,
        theta: Theta,
        workers: Workers,
        carry: Carry | None,
        length: Int[Array, "workers"] | None,
    ) -> tuple[Carry | None, Response]:
        """Run a window as `run` does, but keep what each worker contributes apart."""
        old, state = (None, None) if carry is None else (carry.noise, carry.pool)
        noise, epsilon, thetas = self._perturb(theta, workers, old)
        window = self.unroll(state, thetas, workers, self.window, length)
        response = _respond(self.noise, noise, epsilon, window.loss, window.steps, self.scale)
        if carry is None:
            return None, response
        state = self.pool.fork(window.state, self.members - 1) if self.restarts else window.state
        return Carry(noise, state), response

    def _perturb(self, theta, workers, noise):
        return _perturb(
            self.noise,
            theta,
            workers,
            noise,
            self.sigma,
            self.period,
            self.horizon,
            store=self.store_noise and self.carries,
            accumulate=self.accumulates,
            unperturbed=self.restarts and self.carries,
        )


def _is_lifted(x: Any) -> bool:
    return isinstance(x, Lifted)


class NRES(EvolutionStrategy):
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

    window: int = window_field()
    restarts: ClassVar[bool] = False

    @property
    def period(self) -> int:
        return self.horizon

    @property
    def accumulates(self) -> bool:
        return False


class PES(EvolutionStrategy):
    r"""Persistent Evolution Strategies: a new noise every window, all of an episode's weighed.

    Unbiased for the loss smoothed by independent noise in every window. Arguments as for `NRES`;
    2W steps per worker and estimate. With `store_noise=False` the sum of an episode's noises is
    still kept.

    **Reference:** Vicol, Metz, Sohl-Dickstein, *Unbiased Gradient Estimation in Unrolled
    Computation Graphs with Persistent Evolution Strategies*, ICML 2021.
    """

    window: int = window_field()
    restarts: ClassVar[bool] = False

    @property
    def period(self) -> int:
        return self.window

    @property
    def accumulates(self) -> bool:
        return self.carries


class GPES(EvolutionStrategy):
    r"""Generalised Persistent Evolution Strategies: a new noise every `period` steps.

    Unbiased for the loss smoothed by independent noise in every stretch of K = `period` steps:
    K = W is `PES`, K ≥ T is `NRES`. K must be a multiple of W and need not divide T. Another K
    does not compile anew. Other arguments as for `NRES`; 2W steps per worker and estimate.

    ```python
    estimator = nres.GPES(system, period=400, workers=200, window=100, sigma=0.04)
    ```

    **Reference:** Li et al., NeurIPS 2023, algorithm [alg:gpes].
    """

    window: int = window_field()
    period: Int[Array, ""] = eqx.field(kw_only=True, converter=as_period)
    restarts: ClassVar[bool] = False

    def __check_init__(self) -> None:
        check_period(self.period, self.window)

    @property
    def accumulates(self) -> bool:
        return True


class TES(EvolutionStrategy):
    r"""Truncated Evolution Strategies: each window on its own, as if its start were given.

    One state per worker is moved by the unperturbed $\theta$; every window perturbs afresh from
    it. Biased: it does not see how $\theta$ acted before the window. Arguments as for `NRES`;
    3W steps per worker and estimate, W of them sequential.

    **Reference:** Metz et al., *Understanding and correcting pathologies in the training of
    learned optimizers*, ICML 2019; algorithm [alg:tes] of Li et al., NeurIPS 2023.
    """

    window: int = window_field()
    restarts: ClassVar[bool] = True

    def __check_init__(self) -> None:
        if not self.pool.can_fork:
            raise ValueError(
                f"TES restarts every window from a copy of a state, and "
                f"{type(self.pool).__name__} cannot copy states. NRES, PES, GPES and FullES can "
                "use it."
            )

    @property
    def period(self) -> int:
        return self.window

    @property
    def accumulates(self) -> bool:
        return False


class FullES(EvolutionStrategy):
    r"""Antithetic evolution strategies on whole episodes: 2T steps per worker and estimate.

    The offline method that `NRES` replaces: unbiased for the same smoothed loss; nothing is
    carried from one estimate to the next. Arguments as for `NRES`, without a window.

    **Reference:** Salimans et al., *Evolution Strategies as a Scalable Alternative to
    Reinforcement Learning*, 2017; algorithm [alg:fulles] of Li et al., NeurIPS 2023.
    """

    restarts: ClassVar[bool] = False

    @property
    def window(self) -> int:
        return self.horizon

    @property
    def period(self) -> int:
        return self.horizon

    @property
    def accumulates(self) -> bool:
        return False


@eqx.filter_jit
def _perturb(
    law: Noise,
    theta: Theta,
    workers: Workers,
    noise: NoiseState | None,
    sigma: Float[Array, "..."],
    period: int | Int[Array, ""],
    horizon: int,
    *,
    store: bool,
    accumulate: bool,
    unperturbed: bool,
) -> tuple[NoiseState, PyTree, PyTree]:
    """Noise for the windows that begin now.

    **Returns:** the noise to carry, the noise of this window, and what each unroll runs with, with
    axes `(members, workers)` in front; the last member runs with `theta` itself if `unperturbed`.
    """
    noise, epsilon = update_noise(
        law,
        noise,
        theta,
        workers.key,
        workers.noise_numbers(horizon, period),
        workers.start,
        sigma,
        period=period,
        store=store,
        accumulate=accumulate,
    )
    thetas = law.perturb(theta, epsilon)
    if unperturbed:
        same = lambda x, t: jnp.concatenate([t, jnp.broadcast_to(x, t[:1].shape)])  # noqa: E731
        thetas = jax.tree.map(same, theta, thetas)
    return noise, epsilon, thetas


@eqx.filter_jit
def _respond(
    law: Noise,
    noise: NoiseState,
    epsilon: PyTree,
    loss: Float[Array, "members workers"],
    steps: Int[Array, "members workers"],
    scale: float,
) -> Response:
    """Weigh the loss differences with the score of the noise."""
    perturbed = loss[: len(law.contrast)]
    coefficient = scale * sum(c * row for c, row in zip(law.contrast, perturbed, strict=True))
    weight = noise.score
    if weight is None:
        factor, weight = law.score(epsilon, noise.sigma)
        coefficient = coefficient * factor.astype(loss.dtype)
    # A schedule that reaches zero leaves nothing to divide by.
    coefficient = jnp.where(noise.sigma > 0, coefficient, jnp.nan)
    return Response(coefficient, weight, perturbed.mean(axis=0) * scale, steps)
