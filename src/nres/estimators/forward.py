r"""Forward-mode estimators: derivatives travel with the state, so memory does not grow with T."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from nres.checks import as_period, check_period, whole_number
from nres.estimators.ad import Differentiating, for_lanes
from nres.estimators.base import LOCAL
from nres.estimators.evolution import GAUSSIAN
from nres.noise import Noise, draw_signs, scale_rows, update_noise
from nres.placement import Placement
from nres.pools.base import Pool
from nres.system import System, at_least_single, parameter_count
from nres.workers import EVEN, Carry, Response


class ForwardMode(Differentiating):
    """Base class of `DODGE`, `RTRL` and `UORO`, whose derivatives go on from window to window."""

    window: int = eqx.field(static=True)
    phases: str = eqx.field(static=True)

    def __init__(
        self,
        pool: System | Pool,
        *,
        workers: int,
        window: int,
        nonfinite: str = "skip",
        placement: Placement = LOCAL,
        phases: str = EVEN,
    ):
        super().__init__(pool, workers=workers, nonfinite=nonfinite, placement=placement)
        self.window = whole_number("window", window)
        self.phases = phases


class DODGE(ForwardMode):
    r"""Forward mode along one random direction per episode: the limit of `NRES` for small noise.

    With $v \sim \mathcal N(0, I)$, the tangent $\frac{ds_t}{d\theta} v$ is carried along with the
    state. A window, of which an episode has $n$, contributes

    $$ g = \frac{n}{T} \sum_{t \in \text{window}} \Big(\frac{dL_t}{d\theta} v\Big) \cdot v. $$

    The estimator is unbiased for the gradient that `BPTT` computes: that of the loss itself,
    without smoothing. It takes W steps per worker and estimate, each of which costs two to three
    times as much as a plain step.

    Args:
        pool: An `nres.System` whose `init` and `step` can be differentiated.
        workers: N, the number of unrolls, which are at independent steps of their episodes.
        window: W, the number of steps that each worker takes for one estimate.
        period: K, the number of steps after which a new direction is drawn; a multiple of W. The
            tangent and the weight then sum over the directions of the episode, which is the limit
            of `GPES` for small noise. By default, one direction serves a whole episode, which has
            the least variance.
        noise: The distribution of the directions, an `nres.Noise` with covariance $\sigma^2 I$.
        nonfinite: The policy for non-finite contributions, as for `NRES`.
        placement: The devices or processes that run the workers, as for `NRES`.

    Raises:
        TypeError: If the pool is a black box, which cannot be differentiated.
        ValueError: If an argument is out of bounds.

    Example:
        ```python
        estimator = nres.DODGE(system, window=100, workers=200)
        ```

    Reference:
        Silver et al., *Learning by Directional Gradient Descent*, ICLR 2022.
    """

    period: Int[Array, ""] | None
    noise: Noise

    def __init__(
        self,
        pool: System | Pool,
        *,
        workers: int,
        window: int,
        period: int | Int[Array, ""] | None = None,
        noise: Noise = GAUSSIAN,
        nonfinite: str = "skip",
        placement: Placement = LOCAL,
        phases: str = EVEN,
    ):
        super().__init__(
            pool,
            workers=workers,
            window=window,
            nonfinite=nonfinite,
            placement=placement,
            phases=phases,
        )
        self.period = None if period is None else as_period(period)
        self.noise = noise

    def __check_init__(self) -> None:
        if self.period is not None:
            check_period(self.period, self.window)
        if self.noise.factored:
            raise ValueError(f"DODGE needs directions in full, which {self.noise!r} does not draw.")

    def begin(self, theta, workers):
        thetas = for_lanes(theta, workers.start.size)
        state = self.pool.begin(None, thetas, workers.episode_keys(), workers.start)
        return Carry(self._direction(theta, workers, None)[0], (state, _zeros(state)))

    def group_size(self, theta):
        return self.noise.group_size(self.workers, parameter_count(theta))

    def _direction(self, theta, workers, old):
        period = self.horizon if self.period is None else self.period
        return update_noise(
            self.noise,
            old,
            theta,
            workers.key,
            workers.noise_numbers(self.horizon, period),
            workers.start,
            jnp.ones(()),
            period=period,
            store=True,
            accumulate=self.period is not None,
            group=workers.group,
        )

    def run(self, theta, workers, carry, length):
        noise, direction = self._direction(theta, workers, carry.noise)
        keys, start = workers.episode_keys(), workers.start

        def unroll(state, thetas):
            result = self.pool.advance(state, thetas, keys, start, self.window, length)
            return result.state, result.loss, result.steps

        state, tangent = carry.pool
        tangents = (tangent, jax.tree.map(lambda v: v[None], direction))
        (state, loss, steps), (tangent, slope, _) = eqx.filter_jvp(
            unroll, (state, for_lanes(theta, start.size)), tangents
        )
        weight = direction if noise.score is None else noise.score
        response = Response(slope[0] * self.scale, weight, loss[0] * self.scale, steps)
        return Carry(noise, (state, tangent)), response


class UORO(ForwardMode):
    r"""Unbiased online recurrent optimization: $ds_t/d\theta$ as a random matrix of rank one.

    The product $\tilde s\,\tilde\theta^\top$ has the mean $ds_t/d\theta$. With independent random
    signs $\nu$, a step $s' = F(s, \theta)$ maps it to

    $$ \tilde s' = \rho_0 \frac{\partial F}{\partial s} \tilde s + \rho_1 \nu, \qquad
       \tilde\theta' = \frac{\tilde\theta}{\rho_0}
           + \frac{1}{\rho_1} \nu^\top \frac{\partial F}{\partial\theta}, $$

    where $\rho_0, \rho_1$ make the two factors of each product equally long; a product with a zero
    factor is dropped. The step contributes

    $$ \Big(\frac{\partial L_t}{\partial s} \tilde s\Big)\,\tilde\theta
       + \frac{\partial L_t}{\partial\theta}, $$

    which is unbiased for the gradient that `BPTT` computes. It takes W steps per worker and
    estimate. Parts of the state that are not floating-point, for example counters or keys, are
    carried unchanged. Complex states raise a `ValueError`. The arguments are those of `DODGE`,
    without `period` and `noise`.

    Example:
        ```python
        estimator = nres.UORO(system, window=100, workers=200)
        ```

    Reference:
        Tallec and Ollivier, *Unbiased Online Recurrent Optimization*, ICLR 2018.
    """

    __init__ = ForwardMode.__init__

    def begin(self, theta, workers):
        thetas = for_lanes(theta, workers.start.size)
        state = self.pool.begin(None, thetas, workers.episode_keys(), workers.start)
        if any(jnp.iscomplexobj(x) for x in jax.tree.leaves(_zeros(state))):
            raise ValueError("UORO needs real states: store real and imaginary parts separately.")
        return Carry(None, (state, _zeros(state), _zeros(thetas)))

    def run(self, theta, workers, carry, length):
        thetas = for_lanes(theta, workers.start.size)
        keys, start = workers.episode_keys(), workers.start
        # The indices of an episode's signs: one for the initial state, and one for every step.
        numbers = workers.episode * (self.horizon + 1)

        def begin(state, thetas):
            return self.pool.begin(state, thetas, keys, start), jnp.zeros((1, start.size)), None

        def step(carry, i):
            one = None if length is None else (i < length).astype(start.dtype)

            def function(state, thetas):
                result = self.pool.run(state, thetas, keys, start + i, 1, one)
                return result.state, result.loss, result.steps

            product, rows = carry
            signs = functools.partial(draw_signs, workers.key, numbers + start + i + 1)
            product, row, loss, steps = _transition(function, product, thetas, signs)
            return (product, jax.tree.map(jnp.add, rows, row)), (loss, steps)

        signs = functools.partial(draw_signs, workers.key, numbers)
        product, rows, *_ = _transition(begin, carry.pool, thetas, signs)
        offsets = jnp.arange(self.window, dtype=start.dtype)
        (product, rows), (loss, steps) = jax.lax.scan(step, (product, rows), offsets)
        loss, steps = loss[:, 0].sum(axis=0) * self.scale, steps.sum(axis=0, dtype=steps.dtype)
        rows = jax.tree.map(lambda x: x[0], rows)
        return Carry(None, product), Response(jnp.full_like(loss, self.scale), rows, loss, steps)


def _transition(function, carry, thetas, signs):
    """Apply `function(state, thetas)` to a state and its rank-one product.

    Returns:
        The state with its product, the gradient of the loss, the loss, and the function's other
        results.
    """
    state, s, th = carry
    floats, others = eqx.partition(state, eqx.is_inexact_array)

    def split(floats, thetas):
        state, loss, *aux = function(eqx.combine(floats, others), thetas)
        floats, rest = eqx.partition(state, eqx.is_inexact_array)
        return (floats, loss), (rest, *aux)

    _, (moved, slope), _ = jax.jvp(lambda f: split(f, thetas), (floats,), (s,), has_aux=True)
    (floats, loss), pull, (rest, *aux) = jax.vjp(lambda t: split(floats, t), thetas, has_aux=True)
    nu = signs(jax.tree.map(lambda x: x[0, 0], floats))
    nu = jax.tree.map(lambda x: x[None], nu)
    (pulled,) = pull((nu, jnp.zeros_like(loss)))
    (direct,) = pull((_zeros(floats), jnp.ones_like(loss)))
    row = jax.tree.map(
        lambda x, d: _unless(slope == 0, x) + d.astype(x.dtype),
        jax.vmap(scale_rows)(slope, th),
        direct,
    )
    s, th = jax.tree.map(jnp.add, _balance(moved, th), _balance(nu, pulled))
    return (eqx.combine(floats, rest), s, th), row, loss, *aux


def _balance(s: PyTree, th: PyTree) -> tuple[PyTree, PyTree]:
    """Return the same product with factors of equal length; zeros if one of them is zero."""
    b = _length(th)
    a = _length(s) if jax.tree.leaves(s) else jnp.zeros_like(b)  # the state has no real numbers
    dtype = at_least_single(a.dtype, b.dtype)
    a, b = a.astype(dtype), b.astype(dtype)
    empty = (a == 0) | (b == 0)
    ratio = jnp.sqrt(jnp.where(empty, 1, b) / jnp.where(empty, 1, a))

    def scale(factor, tree):
        def scale_leaf(x):
            return _unless(empty, jnp.expand_dims(factor, range(2, x.ndim)).astype(x.dtype) * x)

        return jax.tree.map(scale_leaf, tree)

    return scale(ratio, s), scale(1 / ratio, th)


def _unless(condition: Bool[Array, "members workers"], x: Array) -> Array:
    """Set some lanes to zero, even if values of an old episode there are not finite."""
    return jnp.where(jnp.expand_dims(condition, range(2, x.ndim)), 0, x)


def _length(tree: PyTree) -> Float[Array, "members workers"]:
    """Return the Euclidean norm in each lane, without overflow in the squares."""
    leaves = [x.reshape(*x.shape[:2], -1) for x in jax.tree.leaves(tree)]
    leaves = [x.astype(at_least_single(x.dtype)) for x in leaves if x.size]
    largest = functools.reduce(jnp.maximum, [jnp.abs(x).max(axis=2) for x in leaves])
    scale = jnp.where(largest > 0, largest, 1)
    squares = [jnp.sum((x / scale[..., None]) ** 2, axis=2) for x in leaves]
    return largest * jnp.sqrt(functools.reduce(jnp.add, squares))


def _zeros(tree: PyTree) -> PyTree:
    """Return zeros for the floating-point parts of a pytree, `None` for the others."""
    return jax.tree.map(jnp.zeros_like, eqx.filter(tree, eqx.is_inexact_array))
