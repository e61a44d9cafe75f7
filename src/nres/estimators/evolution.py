r"""The family of online evolution strategies: one estimator, whose members differ in three flags.

Worker $i$ perturbs $\theta$ by $\pm\epsilon$, unrolls both members over a window of W steps and
contributes

$$ g_i = \frac{n}{2T} \Big(\sum_{t \in \text{window}} L_t^+ - L_t^-\Big) \cdot w, $$

where $n = \lceil T/W \rceil$ is the number of windows in an episode ($n/T = 1/W$ if W divides T)
and the weight $w = \sum_j \epsilon_j / \sigma_j^2$ sums over the noises applied so far in the
episode. A new noise is drawn every K steps. That is GPES with period K. NRES is K = T, PES is
K = W, and FullES is W = K = T. TES restarts every window from a state that $\theta$ itself
reached, so that only the window's own noise counts.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from nres import execution
from nres.checks import check_prefix, positive_arrays, whole_number
from nres.errors import first_line
from nres.estimators.base import LOCAL, Estimator
from nres.measured import has_measured, learned, measured
from nres.noise import (
    AdaptiveSigma,
    Gaussian,
    Noise,
    NoiseState,
    scale_rows,
    update_noise,
    where_worker,
)
from nres.noise.adaptive import Adapted
from nres.noise.factors import Perturbed, is_perturbed, lanes_of
from nres.noise.law import OfWorkers, for_workers
from nres.placement import Placement
from nres.pools.base import Pool
from nres.system import NOT_TRACEABLE, System, Theta, parameter_count
from nres.tracing import Lifted, lift
from nres.workers import EVEN, Carry, Response, Workers

Sigma: TypeAlias = Callable[[Int[Array, ""]], Any] | AdaptiveSigma | PyTree
"""A number, a pytree of numbers or arrays that is a prefix of `theta`, a function from the number
of updates made so far to either, or an `AdaptiveSigma`."""
# The default distribution of noise.
GAUSSIAN = Gaussian()
# What is made of loss differences; the first is the default.
AS_THEY_ARE, SCALED, SIGNS = SHAPINGS = ("none", "scaled", "signs")


def _as_sigma(sigma: Sigma) -> PyTree:
    """Convert numbers to arrays or a schedule to a traced function, so neither recompiles."""
    if isinstance(sigma, Lifted | OfWorkers | AdaptiveSigma | Adapted):
        return sigma
    if not callable(sigma):
        return positive_arrays("sigma", sigma)
    schedule = lambda update: jax.tree.map(  # noqa: E731
        lambda s: jnp.asarray(s, float), sigma(update)
    )
    try:
        return lift(schedule, jax.ShapeDtypeStruct((), jnp.int32))
    except (*NOT_TRACEABLE, TypeError) as error:
        raise ValueError(
            "sigma must be a number, a pytree of numbers, or a function of the number of updates "
            "that JAX can trace and that returns either: use jnp.where or an optax schedule "
            f"({first_line(error)})."
        ) from error


# From this many random numbers on, it pays to find the workers that need new ones. Only noise of
# low rank on an accelerator, or of workers outside JAX, has as many at one time.
MANY_NUMBERS = 2**24


class EvolutionStrategy(Estimator):
    """Base class of `FullES`, `TES`, `PES`, `GPES` and `NRES`."""

    sigma: PyTree
    noise: Noise
    store_noise: bool = eqx.field(static=True)
    shaping: str = eqx.field(static=True)
    measures = True

    restarts: eqx.AbstractClassVar[bool]
    """True if every window starts from a state that the unperturbed parameters reached."""
    renews_every_window: eqx.AbstractClassVar[bool]
    """True if every window draws a new noise, false if one noise serves a whole episode."""
    accumulates: eqx.AbstractClassVar[bool]
    """True if an episode has several noises, whose scores are added up."""

    def __init__(
        self,
        pool: System | Pool,
        *,
        workers: int,
        sigma: Sigma,
        noise: Noise = GAUSSIAN,
        store_noise: bool = True,
        nonfinite: str = "skip",
        placement: Placement = LOCAL,
        shaping: str = AS_THEY_ARE,
    ):
        super().__init__(pool, workers=workers, nonfinite=nonfinite, placement=placement)
        self.sigma = _as_sigma(sigma)
        self.noise = noise
        self.store_noise = store_noise
        if shaping not in SHAPINGS:
            raise ValueError(f"shaping must be one of {', '.join(SHAPINGS)}, got {shaping!r}.")
        if shaping == SCALED and len(noise.contrast) < 2:
            raise ValueError(f"shaping={SCALED!r} needs a law of noise with pairs, not {noise!r}.")
        self.shaping = shaping
        if noise.factored and (self.accumulates or self.adapts):
            why = "an adaptive sigma" if self.adapts else type(self).__name__
            raise ValueError(
                f"{why} needs more of a noise than {noise!r} keeps: use NRES, FullES or TES with a "
                "given sigma."
            )

    @property
    def noise_period(self) -> int | Int[Array, ""]:
        """K: a new noise is drawn at every multiple of K steps."""
        return self.window if self.renews_every_window else self.horizon

    @property
    def members(self) -> int:
        """The number of unrolls per worker: the perturbed ones, plus one if `restarts`."""
        return len(self.noise.contrast) + (self.restarts and self.carries)

    @property
    def carries(self) -> bool:
        """True if workers carry a state, that is, if the window is shorter than the episode."""
        return self.window < self.horizon

    def at(self, update):
        if not isinstance(self.sigma, Lifted):
            return self
        return eqx.tree_at(lambda e: e.sigma, self, self.sigma(update), is_leaf=_is_lifted)

    @property
    def adapts(self) -> bool:
        """True if sigma adapts to the losses."""
        if isinstance(self.sigma, OfWorkers):
            return self.sigma.adapts
        return isinstance(self.sigma, AdaptiveSigma | Adapted)

    def begin_adaptation(self):
        return self.sigma.begin(self.windows) if isinstance(self.sigma, AdaptiveSigma) else None

    def adapted(self, adaptation):
        if adaptation is None:
            return self
        return dataclasses.replace(self, sigma=Adapted(adaptation))

    def adapt(self, adaptation, start, contributions):
        if adaptation is None:
            return None
        loss, finite = contributions.loss, contributions.finite
        count = jnp.maximum(finite.sum(), 1)
        slope = jax.tree.map(lambda s: s / count.astype(s.dtype), contributions.slope)
        return self.sigma.adapt(adaptation, slope).with_losses(start, self.window, loss, finite)

    def rescaled(self, start, scale):
        new = for_workers(self._present, start.size)
        present = where_worker(start % self.noise_period == 0, new, scale)
        return dataclasses.replace(self, sigma=OfWorkers(present, self.adapts))

    @property
    def _present(self) -> PyTree:
        """The sigma of noises that begin now."""
        return self.sigma.now.sigma if isinstance(self.sigma, Adapted) else self.sigma

    def block_size(self, theta):
        # A pool that forms the matrices has all parameters once per lane.
        own = self.noise.size(learned(theta))
        if self.pool.lazy and own < parameter_count(learned(theta)):
            return execution.block_size(own, shared=True)
        return super().block_size(theta)

    def group_size(self, theta):
        return self.noise.group_size(self.workers, parameter_count(theta))

    def noise_numbers(self, workers):
        if self.accumulates:
            return None
        return workers.noise_numbers(self.horizon, self.noise_period)

    def linear_gain(self, theta):
        linear = self.shaping != SIGNS and not self.accumulates
        single = linear and getattr(self._sigma_shapes(), "shape", None) == ()
        return self.noise.gain(learned(theta)) if single else None

    def shaped(self, contributions):
        if self.shaping != SCALED:
            return contributions
        finite = contributions.finite
        odd = jnp.where(finite, jnp.abs(contributions.odd), 0)
        largest = odd.max()
        largest = jnp.where(largest > 0, largest, 1)  # without differences there is nothing to do
        squares = (odd / largest) ** 2  # those of the differences might be too large or too small
        mean = squares.sum() / jnp.maximum(finite.sum(), 1).astype(squares.dtype)
        size = largest * jnp.sqrt(jnp.where(mean > 0, mean, 1))
        grad, norm = jax.tree.map(
            lambda x: x / size.astype(x.dtype), (contributions.grad, contributions.norm)
        )
        return dataclasses.replace(contributions, grad=grad, norm=norm)

    def check(self, theta, seeds=1):
        theta = super().check(theta, seeds)
        check_prefix("sigma", self._sigma_shapes(), learned(theta))
        return theta

    def _sigma_shapes(self) -> PyTree:
        first = self.adapted(self.begin_adaptation()).at(jnp.int32(0))
        return jax.eval_shape(lambda: first._present)

    def begin(self, theta: Theta, workers: Workers) -> Carry | None:
        if not self.carries:
            return None
        noise, _, thetas = self._perturb(theta, workers, None)
        return Carry(noise, self.unroll(None, thetas, workers, 0).state)

    def run(self, theta, workers, carry, length) -> tuple[Carry | None, Response]:
        old, state = (None, None) if carry is None else (carry.noise, carry.pool)
        noise, epsilon, thetas = self._perturb(theta, workers, old)
        window = self.unroll(state, thetas, workers, self.window, length)
        loss, steps = jnp.asarray(window.loss), jnp.asarray(window.steps)
        signs = self.shaping == SIGNS
        response = _respond(self.noise, noise, epsilon, loss, steps, self.scale, signs)
        if window.observed is not None:
            observed = jax.tree.map(lambda x: jnp.asarray(x).sum(axis=0), window.observed)
            response = dataclasses.replace(response, observed=observed)
        if isinstance(self.sigma, Adapted):
            baseline = self.sigma.now.baseline(workers.start, self.window, response.loss)
            slope = scale_rows(response.loss - baseline, noise.excess)
            response = dataclasses.replace(response, slope=slope)
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
            self._present,
            self.noise_period,
            self.horizon,
            few=self._few(theta, workers),
            store=self.store_noise and self.carries,
            accumulate=self.accumulates,
            adapts=self.adapts,
            unperturbed=self.restarts and self.carries,
        )

    def _few(self, theta, workers) -> int | None:
        """Return a number that the workers which begin a noise rarely exceed.

        `None` if it is not known, or if nothing would be saved. These may be a part of all workers.
        """
        count, period = workers.start.size, self.noise_period
        numbers = count * self.noise.size(learned(theta))
        fixed = isinstance(period, int) and self.pool.lengths is None
        if workers.group is not None or not fixed or numbers < MANY_NUMBERS:
            return None
        share = self.window / period
        if self.phases == EVEN:  # workers that begin together are neighbours
            few = math.ceil(self.workers * share) + 1
        else:
            few = math.ceil(count * share + 4 * math.sqrt(count * share))
        return few if 2 * few < count else None


class OnlineStrategy(EvolutionStrategy):
    """Base class of the online strategies: `TES`, `PES`, `GPES` and `NRES`."""

    window: int = eqx.field(static=True)
    phases: str = eqx.field(static=True)

    def __init__(
        self,
        pool: System | Pool,
        *,
        workers: int,
        window: int,
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
            sigma=sigma,
            noise=noise,
            store_noise=store_noise,
            nonfinite=nonfinite,
            placement=placement,
            shaping=shaping,
        )
        self.window = whole_number("window", window)
        self.phases = phases


def _with_unperturbed(x: Array, members: Any) -> Any:
    """Add a last member with the parameters themselves."""
    if is_perturbed(members):
        signs = jnp.concatenate([members.sign, jnp.zeros_like(members.sign[:1])])
        return Perturbed(members.base, members.a, members.b, signs)
    return jnp.concatenate([members, jnp.broadcast_to(x, members[:1].shape)])


def _is_lifted(x: Any) -> bool:
    return isinstance(x, Lifted)


@eqx.filter_jit
def _perturb(
    law: Noise,
    theta: Theta,
    workers: Workers,
    noise: NoiseState | None,
    sigma: PyTree,
    period: int | Int[Array, ""],
    horizon: int,
    *,
    few: int | None,
    store: bool,
    accumulate: bool,
    adapts: bool,
    unperturbed: bool,
) -> tuple[NoiseState, PyTree, PyTree]:
    """Draw or keep the noise of the windows that begin now, and perturb `theta` with it.

    Returns:
        The noise to carry, the noise of this window, and the parameters of each unroll, with axes
        `(members, workers)` in front. If `unperturbed`, the last member has `theta` itself.
    """
    random = learned(theta)
    noise, epsilon = update_noise(
        law,
        noise,
        random,
        workers.key,
        workers.noise_numbers(horizon, period),
        workers.start,
        sigma,
        period=period,
        store=store,
        accumulate=accumulate,
        adapts=adapts,
        group=workers.group,
        few=few,
    )
    thetas = law.perturb(random, epsilon)
    if unperturbed:
        thetas = jax.tree.map(_with_unperturbed, random, thetas)
    if has_measured(theta):
        lanes = lanes_of(thetas)
        every = lambda x: jnp.broadcast_to(x, (*lanes, *x.shape))  # noqa: E731
        parts = jax.tree.map(every, measured(theta))
        thetas = eqx.combine(thetas, parts, is_leaf=is_perturbed)
    return noise, epsilon, thetas


@eqx.filter_jit
def _respond(
    law: Noise,
    noise: NoiseState,
    epsilon: PyTree,
    loss: Float[Array, "members workers"],
    steps: Int[Array, "members workers"],
    scale: float,
    signs: bool,
) -> Response:
    """Multiply the loss differences, or their signs, by the score of the noise."""
    perturbed = loss[: len(law.contrast)]
    coefficient = scale * sum(c * row for c, row in zip(law.contrast, perturbed, strict=True))
    odd = coefficient if len(law.contrast) > 1 else None
    if signs:
        coefficient = jnp.sign(coefficient)
    weight = noise.score
    if weight is None:
        factor, weight = law.score(epsilon, noise.sigma)
        coefficient = coefficient * factor.astype(loss.dtype)
    # A schedule that reaches zero would divide by zero: mark the contribution as not finite.
    for sigma in jax.tree.leaves(noise.sigma):
        usable = (sigma > 0).reshape(coefficient.size, -1).all(axis=1)
        coefficient = jnp.where(usable, coefficient, jnp.nan)
    return Response(coefficient, weight, perturbed.mean(axis=0) * scale, steps, odd)
