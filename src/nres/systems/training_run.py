"""The hyperparameters of a training run as parameters."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, Key, PyTree

from nres.checks import check_batch, positive_number, whole_number
from nres.evaluation import evaluate
from nres.system import System, Theta, as_theta


class TrainingRun(System):
    r"""A training run of `horizon` steps whose hyperparameters are the parameters $\theta$.

    Each step draws a batch, computes the gradient of `loss`, lets the optimizer that `optimizer`
    makes of $\theta$ change the model, and costs the `outer_loss` of the changed model on a batch
    of other data. So a gradient estimator tunes learning rates, schedules, momenta, penalties or
    masks of a model during its training. Positive numbers are best given as their logarithms:
    then noise and steps are relative.

    Args:
        init: A function from a random key to the model's parameters.
        loss: A function `loss(params, batch, theta)` to the scalar that is minimised. It may use
            $\theta$, for example the strength of a penalty.
        optimizer: A function from $\theta$ to an optax optimizer.
        theta: The hyperparameters to start from, or a function from a random key to them.
        train: The training data, a pytree of arrays with one example in each row.
        validation: The data for the outer loss, in the same form.
        horizon: T, the number of training steps.
        batch: The number of examples per batch, drawn with replacement; `None` takes all of them.
        outer_loss: A function like `loss` to the loss of the hyperparameters; `loss` by default.
        cap: The largest outer loss of a step, which also replaces values that are not finite, so
            that a training run that diverges is a bad one and not a missing one.
        test_runs: The number of whole training runs in `metrics`.

    Raises:
        TypeError: If a whole number is none.
        ValueError: If a number is out of bounds, or the arrays of the data differ in length.

    Example:
        ```python
        def optimizer(theta):
            rate = lambda t: jnp.exp(theta["log_rate"]) / (1 + t / 1000)
            return optax.sgd(rate, momentum=jax.nn.sigmoid(theta["momentum"]))

        system = nres.systems.TrainingRun(
            init, loss, optimizer, {"log_rate": -5.0, "momentum": 0.0},
            train=(x, y), validation=(x_new, y_new), horizon=1000, batch=100,
        )
        ```
    """

    init_model: Callable[[Key[Array, ""]], PyTree] = eqx.field(static=True)
    loss: Callable[[PyTree, PyTree, Theta], Float[Array, ""]] = eqx.field(static=True)
    optimizer: Callable[[Theta], optax.GradientTransformation] = eqx.field(static=True)
    outer_loss: Callable[[PyTree, PyTree, Theta], Float[Array, ""]] = eqx.field(static=True)
    start: Callable[[Key[Array, ""]], PyTree] | None = eqx.field(static=True)
    theta: Theta | None
    train: PyTree
    validation: PyTree
    horizon: int = eqx.field(static=True)
    batch: int | None = eqx.field(static=True)
    cap: float | None = eqx.field(static=True)
    test_runs: int = eqx.field(static=True)

    def __init__(
        self,
        init: Callable[[Any], PyTree],
        loss: Callable[[PyTree, PyTree, Theta], Any],
        optimizer: Callable[[Theta], optax.GradientTransformation],
        theta: PyTree,
        *,
        train: PyTree,
        validation: PyTree,
        horizon: int,
        batch: int | None = None,
        outer_loss: Callable[[PyTree, PyTree, Theta], Any] | None = None,
        cap: float | int | None = None,
        test_runs: int = 10,
    ):
        self.init_model, self.loss, self.optimizer = init, loss, optimizer
        self.outer_loss = loss if outer_loss is None else outer_loss
        # A module that can be called is a pytree of parameters, too.
        drawn = callable(theta) and not isinstance(theta, eqx.Module)
        self.start, self.theta = (theta, None) if drawn else (None, as_theta(theta))
        self.train, self.validation = (jax.tree.map(jnp.asarray, x) for x in (train, validation))
        self.horizon = whole_number("horizon", horizon)
        self.batch = batch
        self.cap = None if cap is None else positive_number("cap", cap)
        self.test_runs = whole_number("test_runs", test_runs)
        check_batch(batch, train=self.train, validation=self.validation)

    def initial_theta(self, key: Key[Array, ""] | None = None) -> Theta:
        """Return the hyperparameters to start from.

        Args:
            key: A JAX random key, if they are drawn at random.

        Raises:
            ValueError: If they are drawn at random, and there is no key.
        """
        if self.start is None:
            return self.theta
        if key is None:
            raise ValueError("initial_theta draws these hyperparameters at random: give it a key.")
        return as_theta(self.start(key))

    def init(self, theta: Theta, key: Key[Array, ""]) -> tuple[PyTree, PyTree]:
        params = self.init_model(key)
        return params, self.optimizer(theta).init(params)

    def step(self, state, theta, t, key):
        params, memory = state
        first, second = jax.random.split(key)
        gradient = jax.grad(self.loss)(params, self._drawn(self.train, first), theta)
        change, memory = self.optimizer(theta).update(gradient, memory, params)
        params = optax.apply_updates(params, change)
        loss = self.outer_loss(params, self._drawn(self.validation, second), theta)
        if self.cap is not None:
            loss = jnp.where(jnp.isfinite(loss), jnp.minimum(loss, self.cap), self.cap)
        return (params, memory), loss

    def _drawn(self, data: PyTree, key: Key[Array, ""]) -> PyTree:
        """Draw a batch, or return all data."""
        if self.batch is None:
            return data
        size = jax.tree.leaves(data)[0].shape[0]
        rows: Int[Array, " batch"] = jax.random.randint(key, (self.batch,), 0, size, jnp.int32)
        return jax.tree.map(lambda x: x[rows], data)

    def metrics(self, theta: Theta, key: Key[Array, ""]) -> dict[str, Array]:
        """Return the mean outer loss of `test_runs` training runs, and hyperparameters with names.

        Args:
            theta: The hyperparameters; if they are a dictionary, its scalars are returned as well.
            key: A JAX random key.
        """
        loss = _mean_loss(self, theta, key)
        named = theta.items() if isinstance(theta, dict) else ()
        return {"loss": loss} | {name: x for name, x in named if jnp.ndim(x) == 0}

    @property
    def metrics_steps(self) -> int:  # type: ignore[override]
        """The number of unroll steps in `metrics`."""
        return self.test_runs * self.horizon

    def losses(self, theta: Theta, key: Key[Array, ""]) -> Float[Array, " horizon"]:
        """Compute the outer loss of every step of one training run.

        Args:
            theta: The hyperparameters.
            key: A JAX random key.

        Returns:
            One loss per step.
        """
        return _losses(self, theta, key)


# Without the decorator, each evaluation would trace the system again.
@eqx.filter_jit
def _mean_loss(system: TrainingRun, theta: Theta, key: Key[Array, ""]) -> Float[Array, ""]:
    return evaluate(system, theta, key, episodes=system.test_runs).loss


@eqx.filter_jit
def _losses(system: TrainingRun, theta: Theta, key: Key[Array, ""]) -> Float[Array, " horizon"]:
    start, steps = jax.random.split(key)

    def step(state, t):
        return system.step(state, theta, t, jax.random.fold_in(steps, t))

    return jax.lax.scan(step, system.init(theta, start), jnp.arange(system.horizon))[1]
