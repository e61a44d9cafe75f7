"""`AdafactorMLP`: a small network per parameter, with the averages of Adafactor as inputs."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from nres.checks import positive_number, whole_number
from nres.systems.learned_optimizer.averages import (
    Averages,
    AveragingOptimizer,
    Decays,
    apply_layers,
    normalised,
)
from nres.systems.learned_optimizer.dense import init_dense
from nres.systems.learned_optimizer.optimizers import TIMES, time_inputs

MOMENTA, SECOND = (0.9, 0.99, 0.999), 0.999
INPUTS = 28


class AdafactorMLP(AveragingOptimizer):
    r"""A small network per parameter, with running averages as Adafactor has them, and its decays.

    Its inputs are the gradient g, the parameter p, three momenta m, the second moment v,
    $m/\sqrt v$, $1/\sqrt v$, and for three decays the gradient and the momenta scaled by factored
    second moments, the factors themselves and their inverse roots: 28 numbers, each divided by its
    root mean square over the tensor. Further inputs are eleven values $\tanh(t/s - 1)$ of the step.
    The outputs a, b give the step $p \leftarrow p - k\, a\, e^{0.001 b}$.

    `theta` also holds one number $\vartheta$ per decay, which is
    $1 - (1 - \beta_0)\, e^{10 \vartheta}$ and starts at $\beta_0$.

    Raises:
        ValueError: If `width` or `step` is not positive.

    Example:
        ```python
        system = learned_optimizer.LearnedOptimizerSystem(
            optimizer=learned_optimizer.AdafactorMLP(), sequence="random"
        )
        ```

    Reference:
        Metz et al., *Practical tradeoffs between memory, compute, and performance in learned
        optimizers*, CoLLAs 2022 (`small_fc_lopt`).
    """

    width: int = eqx.field(static=True, default=4)
    """The width of the two hidden layers; 4 has 197 parameters in all, and 32 has 2,409."""
    step: float = eqx.field(static=True, default=0.001)
    """The factor k of every step."""

    def __check_init__(self):
        whole_number("width", self.width)
        positive_number("step", self.step)

    def initial_theta(self, key: Key[Array, ""]) -> dict[str, Any]:
        sizes = (INPUTS + len(TIMES), self.width, self.width, 2)
        decays = {
            name: jnp.zeros(n) for name, n in (("momenta", 3), ("second", 1), ("factored", 3))
        }
        return {"layers": init_dense(sizes, key), **decays}

    def decays(self, theta):
        return Decays(
            _decay(theta["momenta"], MOMENTA),
            jnp.clip(_decay(theta["second"], (SECOND,)), 0, 1)[0],
            jnp.clip(_decay(theta["factored"], MOMENTA), 0, 1),
        )

    def change(self, theta, g, p, averages, t):
        inputs = _inputs(g, p, averages)
        inputs = normalised(inputs, 1e-5, tuple(range(1, inputs.ndim)))
        first, *others = theta["layers"]
        # The time contributes the same to the first layer for every parameter.
        weight, time = jnp.split(first["weight"], [INPUTS])
        first = {"weight": weight, "bias": first["bias"] + time_inputs(t, time.dtype) @ time}
        direction, magnitude = apply_layers([first, *others], inputs)
        return -self.step * direction * jnp.exp(0.001 * magnitude)


def _decay(theta: Array, first: tuple[float, ...]) -> Array:
    return 1 - (1 - jnp.asarray(first, theta.dtype)) * jnp.exp(10 * theta)


def _inputs(g: Array, p: Array, averages: Averages) -> Float[Array, "inputs ..."]:
    """Return the inputs that are not of the time, each of the tensor's shape, before scaling."""
    m, root = averages.momenta, jax.lax.rsqrt(averages.second + 1e-6)
    scales, rows = averages.scales(), averages.rows
    # A tensor with one axis has one kind of second moment, and it takes both places.
    columns = rows if averages.columns is None else averages.columns
    scaled = m * (jax.lax.rsqrt(rows + 1e-6) if averages.columns is None else scales)
    groups: list[Any] = [
        (g, p, *m, averages.second, *(m * root[None]), root, *(g[None] * scales), *rows, *columns),
        (*jax.lax.rsqrt(rows + 1e-8), *jax.lax.rsqrt(columns + 1e-8), *scaled),
    ]
    return jnp.stack([jnp.broadcast_to(x, p.shape) for group in groups for x in group])
