"""A learning-rate schedule of two numbers, for gradient descent on a toy function."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from nres.checks import whole_number
from nres.evaluation import evaluate
from nres.system import System


class ToySchedule(System):
    r"""Gradient descent on a function of two variables, with a schedule of two parameters.

    From $x = (1, 1)$, each step makes $x \leftarrow x - \eta_t \nabla f(x)$ with

    $$ f(x) = \sqrt{x_0^2 + 5} - \sqrt 5 + \sin^2(x_1)\, e^{-5 x_0^2} + \tfrac14 |x_1 - 100|,
       \qquad \eta_t = (1 - t/T)\, e^{\theta_0} + (t/T)\, e^{\theta_1}, $$

    and costs $f$ at the new x. A large rate at the beginning crosses the ripples, which looks bad
    for many steps; methods that see only a few steps therefore keep the rate small.

    Example:
        ```python
        system = nres.systems.ToySchedule()
        estimator = nres.NRES(system, workers=50, window=10, sigma=0.3)
        ```

    Reference:
        Vicol, Metz, Sohl-Dickstein, *Unbiased Gradient Estimation in Unrolled Computation Graphs
        with Persistent Evolution Strategies*, ICML 2021.
    """

    horizon: int = 100
    """T, the number of steps in an episode."""

    def __check_init__(self):
        whole_number("horizon", self.horizon)

    def initial_theta(self, key: Key[Array, ""] | None = None) -> Float[Array, "2"]:
        """Return the starting point of the experiments; `key` is not used."""
        return jnp.array([-4.0, -4.0])

    def init(self, theta: Float[Array, "2"], key: Key[Array, ""]) -> Float[Array, "2"]:
        return jnp.ones(2, theta.dtype)

    def step(self, state, theta, t, key):
        share = t.astype(theta.dtype) / self.horizon
        rate = (1 - share) * jnp.exp(theta[0]) + share * jnp.exp(theta[1])
        state = state - rate * jax.grad(_height)(state)
        return state, _height(state)

    def metrics(self, theta: Float[Array, "2"], key: Key[Array, ""]) -> dict[str, Array]:
        """Return the sum of the losses of an episode, and the logarithms of both rates."""
        total = _mean_loss(self, theta, key) * self.horizon
        return {"total_loss": total, "log_rate_0": theta[0], "log_rate_1": theta[1]}

    @property
    def metrics_steps(self) -> int:  # type: ignore[override]
        """The number of unroll steps in `metrics`."""
        return self.horizon


# Without the decorator, each evaluation would trace the system again.
@eqx.filter_jit
def _mean_loss(
    system: ToySchedule, theta: Float[Array, "2"], key: Key[Array, ""]
) -> Float[Array, ""]:
    return evaluate(system, theta, key).loss


def _height(x: Float[Array, "2"]) -> Float[Array, ""]:
    ripples = jnp.sin(x[1]) ** 2 * jnp.exp(-5 * x[0] ** 2)
    return jnp.sqrt(x[0] ** 2 + 5) - jnp.sqrt(5.0) + ripples + 0.25 * jnp.abs(x[1] - 100)
