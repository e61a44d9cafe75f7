"""A system whose gradients are known exactly: linear dynamics, quadratic losses."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from nres.system import System


class Quadratic(System):
    r"""Linear dynamics in state and parameters with quadratic losses, all in closed form.

    $$ s_0 = s_{\text{init}} + C\theta, \qquad s_{t+1} = A s_t + B\theta + \rho\,\eta_t, \qquad
       L_t = \tfrac12 s_t^\top Q s_t + q^\top s_t, $$

    with $\eta_t$ standard normal. Smoothing a quadratic with noise of mean zero changes its value
    but not its gradient, so every unbiased estimator has the mean `exact_gradient(theta)`. The
    fields are the matrices and vectors of these equations; `start` is $s_{\text{init}}$.

    Example:
        ```python
        key = jax.random.key(0)
        system = nres.systems.Quadratic.random(key, horizon=12, states=3, parameters=4)
        system.exact_gradient(jnp.ones(4))
        ```
    """

    A: Float[Array, "states states"]
    B: Float[Array, "states parameters"]
    C: Float[Array, "states parameters"]
    Q: Float[Array, "states states"]
    q: Float[Array, " states"]
    start: Float[Array, " states"]
    horizon: int = eqx.field(static=True)
    disturbance: float = eqx.field(static=True, default=0.0)
    r"""$\rho$, the scale of the random disturbance in every step."""

    @classmethod
    def random(
        cls,
        key: Key[Array, ""],
        *,
        horizon: int,
        states: int,
        parameters: int,
        disturbance: float = 0.0,
    ) -> "Quadratic":
        """Make a system with random, stable dynamics.

        Args:
            key: A JAX random key.
            horizon: T, the number of steps in an episode.
            states: The number of components of the state.
            parameters: The number of parameters.
            disturbance: The scale of the random disturbance in every step.

        Returns:
            The system.
        """
        k = jax.random.split(key, 6)
        rotation, _ = jnp.linalg.qr(jax.random.normal(k[0], (states, states)))
        root = jax.random.normal(k[3], (states, states))
        return cls(
            A=0.95 * rotation,
            B=jax.random.normal(k[1], (states, parameters)) / horizon**0.5,
            C=jax.random.normal(k[2], (states, parameters)),
            Q=root @ root.T / states,
            q=jax.random.normal(k[4], (states,)),
            start=jax.random.normal(k[5], (states,)),
            horizon=horizon,
            disturbance=disturbance,
        )

    def init(
        self, theta: Float[Array, " parameters"], key: Key[Array, ""]
    ) -> Float[Array, " states"]:
        return self.start + self.C @ theta

    def step(self, state, theta, t, key):
        state = self.A @ state + self.B @ theta
        if self.disturbance:
            state = state + self.disturbance * jax.random.normal(key, state.shape, state.dtype)
        return state, 0.5 * state @ self.Q @ state + self.q @ state

    def exact_gradient(self, theta: Float[Array, " parameters"]) -> Float[Array, " parameters"]:
        r"""Compute the gradient of $\mathbb E[\frac1T \sum_t L_t]$."""
        return self.application_gradients(theta).sum(axis=(0, 1)) / self.horizon

    def application_gradients(
        self, theta: Float[Array, " parameters"]
    ) -> Float[Array, "horizon horizon parameters"]:
        r"""Compute $g^t_i = \partial\,\mathbb E L_t / \partial\theta_i$, at `[t - 1, i - 1]`.

        $\theta_i$ is the parameter as the i-th step applies it; the initial state counts as part of
        the first step. The result is zero for $i > t$.
        """
        gradients = []
        state = self.start + self.C @ theta
        # jacobians[i - 1] is the derivative of the state with respect to the i-th application.
        jacobians = jnp.zeros((self.horizon, *self.B.shape), self.B.dtype).at[0].set(self.C)
        for t in range(self.horizon):
            state = self.A @ state + self.B @ theta
            jacobians = jnp.einsum("ij,tjk->tik", self.A, jacobians).at[t].add(self.B)
            gradients.append(jnp.einsum("tik,i->tk", jacobians, self.Q @ state + self.q))
        return jnp.stack(gradients)
