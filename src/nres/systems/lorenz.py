"""The Lorenz system: fitting the parameters of a chaotic trajectory."""

import math
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from nres.checks import check_memory, positive_number, whole_number
from nres.evaluation import evaluate
from nres.system import System

_START = (1.2, 1.3, 1.6)
_DT = 0.005
_B = 8 / 3

# Three arrays instead of one array of three numbers, so that each is contiguous in a batch.
Point = tuple[Float[Array, ""], Float[Array, ""], Float[Array, ""]]


class Lorenz(System):
    r"""Recovery of the parameters of a Lorenz system from its observed z-coordinate.

    The state follows Euler steps of size 0.005 from $s_0 = (1.2, 1.3, 1.6)$,

    $$ \dot x = a (y - x), \quad \dot y = x (r - z) - y, \quad \dot z = x y - \tfrac83 z, $$

    with $\theta = (\ln r, \ln a)$ and the loss $L_t = (z_t - z_t^{\text{truth}})^2$ against the
    trajectory of $r = 28, a = 10$. The loss surface is chaotic: backpropagation through 2000 steps
    gives useless gradients.

    Args:
        horizon: T, the number of steps in an episode.
        test_episodes: The number of random initial states over which `metrics` averages.
        test_std: The standard deviation of these initial states. The paper's text says 0.1, and
            its runs used 1.

    Example:
        ```python
        system = nres.systems.Lorenz()
        theta = system.initial_theta()
        nres.evaluate(system, theta, jax.random.key(0)).loss     # the training loss
        system.test_loss(theta, jax.random.key(0))               # over random initial states
        ```

    Reference:
        Li et al., NeurIPS 2023, Section 5.1, *Learning dynamical system parameters*.
    """

    horizon: int = eqx.field(static=True)
    test_episodes: int = eqx.field(static=True)
    test_std: float = eqx.field(static=True)
    observed: Float[Array, " horizon"]
    """The z-coordinate of the true trajectory after each step."""

    truth: ClassVar[tuple[float, float]] = (math.log(28.0), math.log(10.0))
    r"""The true parameters $(\ln r, \ln a)$, which generated the observations."""

    def __init__(self, horizon: int = 2000, test_episodes: int = 2000, test_std: float = 0.1):
        self.horizon = whole_number("horizon", horizon)
        self.test_episodes = whole_number("test_episodes", test_episodes)
        self.test_std = positive_number("test_std", test_std)
        check_memory(4 * self.horizon, f"a trajectory of {self.horizon:,} steps")
        self.observed = _trajectory(jnp.asarray(self.truth), horizon)

    def initial_theta(self, key: Key[Array, ""] | None = None) -> Float[Array, "2"]:
        """Return the starting point of the paper's optimisations; `key` is not used."""
        return jnp.array([3.7, 3.116])

    def init(self, theta: Float[Array, "2"], key: Key[Array, ""]) -> Point:
        return _point(jnp.asarray(_START, theta.dtype))

    def step(self, state, theta, t, key):
        state = lorenz_step(state, theta)
        return state, (state[2] - self.observed[t].astype(theta.dtype)) ** 2

    def metrics(self, theta: Float[Array, "2"], key: Key[Array, ""]) -> dict[str, Float[Array, ""]]:
        """Return the test loss, the loss on the training trajectory, and `theta`."""
        test_loss = self.test_loss(theta, key, episodes=self.test_episodes)
        loss = evaluate(self, theta, key).loss
        return {"test_loss": test_loss, "loss": loss, "ln_r": theta[0], "ln_a": theta[1]}

    @property
    def metrics_steps(self) -> int:  # type: ignore[override]
        """The number of unroll steps in `metrics`, in which the truth runs along with the model."""
        return (2 * self.test_episodes + 1) * self.horizon

    def test_system(self) -> "LorenzTest":
        """Return the same problem with random initial states, on which progress is measured."""
        return LorenzTest(self.horizon, self.test_std)

    def test_loss(
        self, theta: Float[Array, "2"], key: Key[Array, ""], episodes: int = 10_000
    ) -> Float[Array, ""]:
        """Compute the mean loss over random initial states, from which the truth starts too.

        Args:
            theta: The parameters.
            key: A JAX random key.
            episodes: The number of initial states.

        Returns:
            The mean loss per step.
        """
        return evaluate(self.test_system(), theta, key, episodes=episodes).loss


class LorenzTest(System):
    r"""The Lorenz problem from a random initial state $\mathcal N((1.2, 1.3, 1.6), s^2 I)$.

    The true system starts from the same state and runs along.
    """

    horizon: int = eqx.field(static=True, default=2000)
    """T, the number of steps in an episode."""
    std: float = eqx.field(static=True, default=0.1)
    """s, the standard deviation of the initial state."""

    def init(self, theta: Float[Array, "2"], key: Key[Array, ""]) -> tuple[Point, Point]:
        noise = self.std * jax.random.normal(key, (3,), theta.dtype)
        start = jnp.asarray(_START, theta.dtype) + noise
        return _point(start), _point(start)

    def step(self, state, theta, t, key):
        model, truth = state
        model = lorenz_step(model, theta)
        truth = lorenz_step(truth, jnp.asarray(Lorenz.truth, theta.dtype))
        return (model, truth), (model[2] - truth[2]) ** 2


def lorenz_step(state: Point, theta: Float[Array, "2"]) -> Point:
    """Make one Euler step."""
    x, y, z = state
    r, a = jnp.exp(theta)
    return (
        x + a * (y - x) * _DT,
        y + (x * (r - z) - y) * _DT,
        z + (x * y - _B * z) * _DT,
    )


def _point(vector: Float[Array, "3"]) -> Point:
    return vector[0], vector[1], vector[2]


@eqx.filter_jit
def _trajectory(theta: Float[Array, "2"], steps: int) -> Float[Array, " steps"]:
    def step(state, _):
        state = lorenz_step(state, theta)
        return state, state[2]

    return jax.lax.scan(step, _point(jnp.asarray(_START)), length=steps)[1]
