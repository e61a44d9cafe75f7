"""Influence balancing: parameters whose effect at once is the opposite of their lasting effect."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from nres.checks import whole_number
from nres.systems.quadratic import Quadratic

_STATES, _POSITIVE = 23, 10


class InfluenceBalancing(Quadratic):
    r"""A linear recurrence on which truncated gradients point in the wrong direction.

    The state $s \in \mathbb R^{23}$ starts at ones and follows $s_{t+1} = A s_t + \theta v$, where
    A has 0.5 on its diagonal and on the first superdiagonal, and v is +1 in the first 10 entries
    and −1 in the others. The loss is $\frac12 (s_t[0] - 1)^2$. At once, $\theta$ raises $s[0]$; in
    the long run it lowers it to $-6\,\theta$. So the best $\theta$ is close to −1/6, and an
    estimator that ignores the influence of earlier steps moves away from it.

    Args:
        horizon: T, the number of steps in an episode.

    Example:
        ```python
        system = nres.systems.InfluenceBalancing()
        theta = system.initial_theta()
        system.exact_gradient(theta), system.final_loss(theta)
        ```

    Reference:
        Tallec, Ollivier, *Unbiasing truncated backpropagation through time*, 2017; with the numbers
        of Vicol, Metz, Sohl-Dickstein, ICML 2021.
    """

    def __init__(self, horizon: int = 1000):
        n = _STATES
        self.A = 0.5 * (jnp.eye(n) + jnp.eye(n, k=1))
        self.B = jnp.where(jnp.arange(n) < _POSITIVE, 1.0, -1.0)[:, None]
        self.C = jnp.zeros((n, 1))
        self.Q = jnp.zeros((n, n)).at[0, 0].set(1.0)
        self.q = jnp.zeros(n).at[0].set(-1.0)
        self.start = jnp.ones(n)
        self.horizon = whole_number("horizon", horizon)
        self.disturbance = 0.0

    def initial_theta(self, key: Key[Array, ""] | None = None) -> Float[Array, "1"]:
        """Return the starting point of the experiments; `key` is not used."""
        return jnp.array([0.5])

    def step(self, state, theta, t, key):
        state, loss = super().step(state, theta, t, key)
        return state, loss + 0.5

    def final_loss(self, theta: Float[Array, "1"], steps: int = 500) -> Float[Array, ""]:
        """Compute the loss after so many steps from the initial state.

        Args:
            theta: The parameter.
            steps: The number of steps.
        """
        return _final_loss(self, theta, steps)

    def metrics(self, theta: Float[Array, "1"], key: Key[Array, ""]) -> dict[str, Array]:
        """Return the loss after 500 steps, and `theta`."""
        return {"final_loss": self.final_loss(theta), "theta": theta[0]}

    metrics_steps = 500


@eqx.filter_jit
def _final_loss(
    system: InfluenceBalancing, theta: Float[Array, "1"], steps: int
) -> Float[Array, ""]:
    def body(t, state):
        return system.A @ state + system.B @ theta

    state = jax.lax.fori_loop(0, steps, body, system.start)
    return 0.5 * (state[0] - 1) ** 2
