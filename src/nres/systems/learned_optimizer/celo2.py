"""`Celo2`: a network per parameter, whose steps are nearly orthogonal matrices."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from nres.checks import positive_number, true_or_false
from nres.systems.learned_optimizer.averages import (
    Averages,
    AveragingOptimizer,
    Decays,
    apply_layers,
    normalised,
)
from nres.systems.learned_optimizer.dense import init_dense
from nres.systems.learned_optimizer.fusing import Layers

MOMENTA, SECOND = (0.9, 0.99, 0.999), 0.95
INPUTS = 30
LARGEST_GRADIENT = 1000.0
EPS = 1e-9
# The rate of biases, which Adam trains, relative to that of matrices.
BIAS_RATE = 20.0
# Coefficients of the polynomial whose iterates approach an orthogonal matrix.
NEWTON_SCHULZ, ITERATIONS = (3.4445, -4.7750, 2.0315), 5


class Celo2(AveragingOptimizer):
    r"""A network of 347 weights that knows neither step nor loss, with steps of root mean square 1.

    Its 30 inputs are those of `AdafactorMLP` without the time, and the gradient clipped and scaled.
    Each is divided by its root mean square over the last two axes; earlier axes are a batch. The
    first output u becomes nearly orthogonal by five Newton-Schulz iterations, and is scaled to root
    mean square 1. A step is $p \leftarrow p - \eta\,(u + \lambda p)$. Tensors with one axis are
    trained by Adam without bias correction, at $20\,\eta$.

    Of the three outputs only the first has an effect; published weights have all three. The user
    brings the rate and its schedule, for optax as `as_optax(theta, lr=schedule)`.

    Raises:
        ValueError: If `lr` is not positive, or `weight_decay` is negative.

    Example:
        ```python
        optimizer = learned_optimizer.Celo2(lr=1e-3)
        theta = optimizer.initial_theta(jax.random.key(0))      # 347 numbers
        ```

    Reference:
        Moudgil et al., *Celo2: towards learned optimization free lunch*, 2026.
    """

    lr: float = eqx.field(static=True, default=0.001)
    r"""The rate $\eta$."""
    weight_decay: float = eqx.field(static=True, default=0.0)
    r"""The factor $\lambda$ of the decay of weights."""
    base: bool = eqx.field(static=True, default=False)
    """True for the variant *Celo2-base*: the network trains all tensors, and no step is made
    orthogonal."""

    def __check_init__(self):
        positive_number("lr", self.lr)
        positive_number("weight_decay", self.weight_decay, zero=True)
        true_or_false("base", self.base)

    def with_unit_rate(self) -> "Celo2":
        return dataclasses.replace(self, lr=1.0)

    def initial_theta(self, key: Key[Array, ""]) -> Layers:
        return init_dense((INPUTS, 8, 8, 3), key)

    def decays(self, theta):
        betas = jnp.asarray(MOMENTA)
        return Decays(betas, jnp.asarray(SECOND), betas)

    def update(self, theta, grads, state, params, t):
        clip = lambda g: jnp.clip(g, -LARGEST_GRADIENT, LARGEST_GRADIENT)  # noqa: E731
        return super().update(theta, jax.tree.map(clip, grads), state, params, t)

    def change(self, theta, g, p, averages, t):
        return -self.lr * (self._direction(theta, g, p, averages) + self.weight_decay * p)

    def _direction(self, theta, g, p, averages: Averages) -> Array:
        if p.ndim < 2 and not self.base:
            return BIAS_RATE * averages.momenta[0] * jax.lax.rsqrt(averages.second + 1e-8)
        inputs = normalised(_inputs(g, p, averages), EPS, _last_two(p))
        # A tensor with one axis has neither rows nor columns, whose inputs are the last.
        first, *others = theta
        first = {**first, "weight": first["weight"][: len(inputs)]}
        u = apply_layers([first, *others], inputs)[0]
        if not self.base:
            u = nearly_orthogonal(u)
        return normalised(u, EPS, _last_two(u))


def _inputs(g: Array, p: Array, averages: Averages) -> Float[Array, "inputs ..."]:
    """Return the inputs of the network before they are scaled, each of the tensor's shape."""
    m, root, scales = averages.momenta, jax.lax.rsqrt(averages.second + 1e-8), averages.scales()
    inputs = [g, jnp.clip(g, -0.1, 0.1), p, *m, averages.second, *(m * root[None]), root]
    inputs += [*(g[None] * scales), g * root]
    rows, columns = averages.rows, averages.columns
    if columns is not None:
        inputs += [*rows, *columns, *jax.lax.rsqrt(rows + 1e-8), *jax.lax.rsqrt(columns + 1e-8)]
        inputs += [*(m * scales)]
    return jnp.stack([jnp.broadcast_to(x, p.shape) for x in inputs])


def _last_two(x: Array) -> tuple[int, ...]:
    return tuple(range(-min(x.ndim, 2), 0))


def nearly_orthogonal(x: Float[Array, "... n m"]) -> Float[Array, "... n m"]:
    """Make the singular values of matrices nearly equal, by five Newton-Schulz iterations."""
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (jnp.sqrt(jnp.sum(x**2, (-2, -1), keepdims=True)) + 1e-8)
    a, b, c = NEWTON_SCHULZ
    for _ in range(ITERATIONS):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return x.mT if tall else x
