"""`RTRL`: exact forward mode, which carries the derivative of the state by every parameter."""

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp

from nres.checks import whole_number
from nres.estimators.ad import Differentiating, for_lanes
from nres.estimators.base import EVEN, LOCAL
from nres.placement import Placement
from nres.pools.base import Pool
from nres.system import System, Theta, parameter_count
from nres.workers import Carry, Response


class RTRL(Differentiating):
    r"""Real-time recurrent learning: exact gradients of every window, in forward mode.

    The Jacobian $J_t = ds_t/d\theta$ is carried along with the state,

    $$ J_{t+1} = \frac{\partial F}{\partial s} J_t + \frac{\partial F}{\partial \theta}, \qquad
       g = \frac{n}{T} \sum_{t \in \text{window}} \frac{dL_t}{d\theta}, $$

    so the estimate has no noise of its own: the mean over the n windows of an episode is the
    gradient that `BPTT` computes. A step costs about d times as much as a plain one, and memory
    grows with d times the state, so it is for few parameters. The arguments are those of `DODGE`,
    without `period` and `noise`.

    Example:
        ```python
        estimator = nres.RTRL(system, window=1, workers=1)
        ```

    Reference:
        Williams, Zipser, *A learning algorithm for continually running fully recurrent neural
        networks*, Neural Computation 1, 1989.
    """

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

    def begin(self, theta, workers):
        thetas = for_lanes(theta, workers.start.size)
        state = self.pool.begin(None, thetas, workers.episode_keys(), workers.start)
        floats, size = eqx.filter(state, eqx.is_inexact_array), parameter_count(theta)
        # The pool's lanes are on the first two axes, and the parameters on the third.
        return Carry(None, (state, jax.tree.map(lambda x: _many(jnp.zeros_like(x), size), floats)))

    def run(self, theta, workers, carry, length):
        keys, start = workers.episode_keys(), workers.start

        def unroll(state, thetas):
            result = self.pool.advance(state, thetas, keys, start, self.window, length)
            return result.state, result.loss, result.steps

        state, jacobian = carry.pool
        inputs = state, for_lanes(theta, start.size)

        def along(tangent, direction):
            tangents = (tangent, for_lanes(direction, start.size))
            result, (tangent, slope, _) = eqx.filter_jvp(unroll, inputs, tangents)
            return result, tangent, slope[0]

        # The results themselves do not depend on the direction, so they are computed once.
        (state, loss, steps), jacobian, slopes = jax.vmap(
            along, in_axes=(2, 0), out_axes=(None, 2, 1)
        )(jacobian, _basis(theta))
        _, unflatten = jax.flatten_util.ravel_pytree(theta)
        rows = jax.vmap(unflatten)(slopes)
        loss = loss[0] * self.scale
        return Carry(None, (state, jacobian)), Response(
            jnp.full_like(loss, self.scale), rows, loss, steps
        )


def _many(x: jax.Array, size: int) -> jax.Array:
    """Repeat an array along a new third axis."""
    return jnp.repeat(x[:, :, None], size, axis=2)


def _basis(theta: Theta) -> Theta:
    """Return the unit vectors of the space of `theta`, on a new first axis."""
    flat, unflatten = jax.flatten_util.ravel_pytree(theta)
    return jax.vmap(unflatten)(jnp.eye(flat.size, dtype=flat.dtype))
