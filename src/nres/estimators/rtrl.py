"""`RTRL`: exact forward mode, which carries the derivative of the state by every parameter."""

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp

from nres.estimators.ad import for_lanes
from nres.estimators.forward import ForwardMode
from nres.system import parameter_count
from nres.workers import Carry, Response


class RTRL(ForwardMode):
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

    __init__ = ForwardMode.__init__

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

        flat, unflatten = jax.flatten_util.ravel_pytree(theta)
        like_theta = jax.vmap(unflatten)
        basis = like_theta(jnp.eye(flat.size, dtype=flat.dtype))
        # The results themselves do not depend on the direction, so they are computed once.
        (state, loss, steps), jacobian, slopes = jax.vmap(
            along, in_axes=(2, 0), out_axes=(None, 2, 1)
        )(jacobian, basis)
        loss = loss[0] * self.scale
        return Carry(None, (state, jacobian)), Response(
            jnp.full_like(loss, self.scale), like_theta(slopes), loss, steps
        )


def _many(x: jax.Array, size: int) -> jax.Array:
    """Repeat an array along a new third axis."""
    return jnp.repeat(x[:, :, None], size, axis=2)
