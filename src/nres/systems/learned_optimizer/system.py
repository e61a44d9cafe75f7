"""The system of a learned optimizer: a model that the optimizer trains."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax.tree_util import GetAttrKey
from jaxtyping import Array, Float, Int, Key, PyTree

from nres.checks import check_memory, whole_number
from nres.system import System, Theta
from nres.systems.learned_optimizer.optimizers import LearnableOptimizer, PerParameterMLP
from nres.systems.learned_optimizer.tasks import Params, Task, fashion_mnist_task, index_table

SEQUENCES = ("fixed", "random")


class Training(NamedTuple):
    """A model in training."""

    params: Params
    """The parameters of the model."""
    accumulators: PyTree
    """The state of the model's optimizer."""


def _with_stored_names(training: Training) -> tuple[tuple[tuple[GetAttrKey, Any], ...], None]:
    # Checkpoints identify arrays by these names, so the names of the first version are kept.
    return tuple(zip(map(GetAttrKey, ("params", "memory")), training, strict=True)), None


jax.tree_util.register_pytree_with_keys(
    Training, _with_stored_names, lambda _, children: Training(*children)
)


class LearnedOptimizerSystem(System):
    r"""A model that an optimizer with parameters $\theta$ trains for `horizon` steps.

    One step takes a batch, computes the gradient of the task's loss, lets the optimizer change the
    model, and computes the outer loss of the *changed* model on another batch. That loss is $L_t$.

    Args:
        task: The model to train and its data; by default, the paper's perceptron on Fashion-MNIST.
        optimizer: The optimizer to learn; `PerParameterMLP()` by default.
        horizon: T, the number of steps for which a model is trained.
        sequence: `"fixed"` uses the same initial model and sequence of batches in all episodes;
            `"random"` draws new ones in every episode.
        key: The random key of a fixed sequence; `jax.random.key(0)` by default.

    Raises:
        ValueError: If `sequence` is neither of these, or the horizon is not positive.

    Example:
        ```python
        from nres.systems import learned_optimizer

        system = learned_optimizer.LearnedOptimizerSystem()     # Fashion-MNIST, T = 1000
        theta = system.initial_theta(jax.random.key(0))         # 1,762 numbers
        estimator = nres.NRES(system, workers=100, window=1, sigma=0.01)
        ```

    Reference:
        Li et al., NeurIPS 2023, Section 5.2, *Meta-training learned optimizers*.
    """

    task: Task
    optimizer: LearnableOptimizer
    horizon: int = eqx.field(static=True)
    start: Params | None
    """The initial model of a fixed sequence."""
    table: Int[Array, "horizon 2 batch"] | None
    """The examples on which each step of a fixed sequence trains and evaluates."""

    def __init__(
        self,
        task: Task | None = None,
        optimizer: LearnableOptimizer | None = None,
        *,
        horizon: int = 1000,
        sequence: str = "fixed",
        key: Any = None,
    ):
        if sequence not in SEQUENCES:
            raise ValueError(f'sequence must be "fixed" or "random", got {sequence!r}.')
        self.task = fashion_mnist_task() if task is None else task
        self.optimizer = PerParameterMLP() if optimizer is None else optimizer
        self.horizon = whole_number("horizon", horizon)
        self.start = self.table = None
        if sequence == "fixed":
            model_key, data_key = jax.random.split(jax.random.key(0) if key is None else key)
            self.start = jax.jit(self.task.init)(model_key)
            check_memory(8 * self.horizon * self.task.batch, f"batches of {self.horizon:,} steps")
            table = index_table(data_key, horizon, self.task.sizes, self.task.batch)
            self.table = jnp.asarray(table)

    def initial_theta(self, key: Key[Array, ""]) -> Theta:
        """Return initial parameters of the optimizer."""
        return self.optimizer.initial_theta(key)

    def init(self, theta: Theta, key: Key[Array, ""]) -> Training:
        params = self.task.init(key) if self.start is None else self.start
        return Training(params, self.optimizer.init(params))

    def step(self, state, theta, t, key):
        train, evaluated_on = self._batches(t, key)
        grads = self.task.gradient(state.params, train)
        updates, accumulators = self.optimizer.update(
            theta, grads, state.accumulators, state.params, t
        )
        params = optax.apply_updates(state.params, updates)
        return Training(params, accumulators), self.task.outer_loss(params, evaluated_on)

    def _batches(self, t, key):
        data = (self.task.train, self.task.evaluated_on)
        if self.table is not None:
            indices = list(self.table[t])
        else:
            keys = jax.random.split(key)
            indices = [
                jax.random.randint(k, (self.task.batch,), 0, size, jnp.int32)
                for k, size in zip(keys, self.task.sizes, strict=True)
            ]
        return [jax.tree.map(lambda x, i=i: x[i], d) for d, i in zip(data, indices, strict=True)]

    def losses(self, theta: Theta, key: Key[Array, ""]) -> Float[Array, " horizon"]:
        """Compute the model's learning curve: the outer loss of every step of one episode.

        Args:
            theta: The parameters of the optimizer.
            key: A JAX random key.

        Returns:
            One loss per step.
        """
        return _losses(self, theta, key)

    def metrics(self, theta: Theta, key: Key[Array, ""]) -> dict[str, Float[Array, ""]]:
        """Compute the mean loss of an episode, and the mean loss of its last tenth."""
        losses = self.losses(theta, key)
        return {"loss": losses.mean(), "final_loss": losses[-max(1, self.horizon // 10) :].mean()}

    @property
    def metrics_steps(self) -> int:  # type: ignore[override]
        """The number of unroll steps in `metrics`, which is one episode."""
        return self.horizon


@eqx.filter_jit
def _losses(system: LearnedOptimizerSystem, theta, key):
    def step(state, t):
        return system.step(state, theta, t, jax.random.fold_in(key, t + 1))

    state = system.init(theta, jax.random.fold_in(key, 0))
    return jax.lax.scan(step, state, jnp.arange(system.horizon, dtype=jnp.int32))[1]
