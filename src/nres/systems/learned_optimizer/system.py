"""The system of a learned optimizer: a model that the optimizer trains."""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax.tree_util import GetAttrKey
from jaxtyping import Array, Float, Int, Key, PyTree

from nres.checks import check_memory, positive_number, whole_number
from nres.lengths import Lengths
from nres.system import System, Theta, selected
from nres.systems.learned_optimizer.optimizers import LearnableOptimizer, PerParameterMLP
from nres.systems.learned_optimizer.tasks import Params, Task, fashion_mnist_task, index_table
from nres.systems.learned_optimizer.vectors import Layout, on_vectors

SEQUENCES, OUTER = ("fixed", "random"), ("after", "before")
# Numbers for the randomness of an episode's data set and scale.
PART, SCALE = 2**32 - 1, 2**32 - 2


class Training(NamedTuple):
    """A model in training."""

    params: Params
    """The parameters of the model."""
    accumulators: PyTree
    """The state of the model's optimizer."""
    drawn: "Drawn"
    """The properties in which this episode differs from others."""


class Drawn(NamedTuple):
    """The properties of one episode. A property is `None` if it is the same in all episodes."""

    part: Int[Array, ""] | None
    """The number of its data set."""
    scale: Float[Array, ""] | None
    """c, if the model has the parameters c·p."""


def _with_stored_names(training: Training) -> tuple[tuple[tuple[GetAttrKey, Any], ...], None]:
    # Checkpoints identify arrays by these names, so the names of the first version are kept.
    return tuple(zip(map(GetAttrKey, ("params", "memory", "drawn")), training, strict=True)), None


jax.tree_util.register_pytree_with_keys(
    Training, _with_stored_names, lambda _, children: Training(*children)
)


class LearnedOptimizerSystem(System):
    r"""A model that an optimizer with parameters $\theta$ trains for `horizon` steps.

    One step takes a batch, computes the gradient of the task's loss, lets the optimizer change the
    model, and computes the outer loss of the *changed* model on another batch. That loss is $L_t$.

    With `sequence="random"` it is a distribution of tasks: every episode draws its initial model
    and its batches, and, where options say so, its data set, its scale and its length.

    Args:
        task: The model to train and its data; by default, the paper's perceptron on Fashion-MNIST.
            If the task has several data sets, every episode draws one.
        optimizer: The optimizer to learn; `PerParameterMLP()` by default.
        horizon: T, the number of steps for which a model is trained, 1000 by default; or a
            distribution of it, for example `nres.lengths.LogUniform(100, 2000)`.
        sequence: `"fixed"` uses the same initial model and sequence of batches in all episodes;
            `"random"` draws new ones in every episode.
        key: The random key of a fixed sequence; `jax.random.key(0)` by default.
        scales: The smallest and the largest c, whose logarithm every episode draws uniformly, to
            learn an optimizer that does not depend on the scale of parameters: the model is
            p₀/c at first, and its loss is that of c·p. By default, c is 1.
        outer: `"after"`, the loss of the changed model, as above; or `"before"`, the loss of the
            model before the step, on the batch that it trains on.
        cap: The largest loss: losses above it, or not finite, count as this number, and gradients
            that are not finite as zero. By default, nothing is capped.
        test_episodes: The number of episodes over which `metrics` averages.

    Raises:
        ValueError: If an option is none of these, or out of bounds.

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
    lengths: Lengths | None = eqx.field(static=True)
    scales: tuple[float, float] | None = eqx.field(static=True)
    outer: str = eqx.field(static=True)
    cap: float | None = eqx.field(static=True)
    test_episodes: int = eqx.field(static=True)
    start: Params | None
    """The initial model of a fixed sequence."""
    table: Int[Array, "horizon 2 batch"] | None
    """The examples on which each step of a fixed sequence trains and evaluates."""

    def __init__(
        self,
        task: Task | None = None,
        optimizer: LearnableOptimizer | None = None,
        *,
        horizon: int | Lengths = 1000,
        sequence: str = "fixed",
        key: Any = None,
        scales: tuple[float, float] | None = None,
        outer: str = "after",
        cap: float | None = None,
        test_episodes: int = 1,
    ):
        if sequence not in SEQUENCES:
            raise ValueError(f'sequence must be "fixed" or "random", got {sequence!r}.')
        if outer not in OUTER:
            raise ValueError(f'outer must be "after" or "before", got {outer!r}.')
        self.task = fashion_mnist_task() if task is None else task
        self.optimizer = PerParameterMLP() if optimizer is None else optimizer
        self.lengths = horizon if isinstance(horizon, Lengths) else None
        self.horizon = whole_number("horizon", self.lengths.most if self.lengths else horizon)
        self.scales = None if scales is None else _range("scales", scales)
        self.outer, self.cap = outer, None if cap is None else positive_number("cap", cap)
        self.test_episodes = whole_number("test_episodes", test_episodes)
        varied = self.lengths is not None or scales is not None or len(self.task.parts) > 1
        if varied and sequence == "fixed":
            raise ValueError(
                "several data sets, scales and a distribution of horizons differ by episode: they "
                'need sequence="random".'
            )
        self.start = self.table = None
        if sequence == "fixed":
            model_key, data_key = jax.random.split(jax.random.key(0) if key is None else key)
            self.start = jax.jit(self.task.init)(model_key)
            check_memory(8 * self.horizon * self.task.batch, f"batches of {self.horizon:,} steps")
            table = index_table(data_key, self.horizon, self.task.sizes, self.task.batch)
            self.table = jnp.asarray(table)

    def initial_theta(self, key: Key[Array, ""]) -> Theta:
        """Return initial parameters of the optimizer."""
        return self.optimizer.initial_theta(key)

    def init(self, theta: Theta, key: Key[Array, ""]) -> Training:
        params = self.task.init(key) if self.start is None else self.start
        if (layout := self.layout) is not None:
            params = layout.vector(params)
        part = scale = None
        if (count := len(self.task.parts)) > 1:
            part = jax.random.randint(jax.random.fold_in(key, PART), (), 0, count, jnp.int32)
        if self.scales is not None:
            bounds = [math.log(bound) for bound in self.scales]
            drawn = jax.random.uniform(jax.random.fold_in(key, SCALE), (), float, *bounds)
            scale = jnp.exp(drawn)
            params = _times(1 / scale, params)
        return Training(params, self.optimizer.init(params), Drawn(part, scale))

    def begun(self, begins, fresh, old):
        methods = type(self).init, type(self).step
        usual = LearnedOptimizerSystem.init, LearnedOptimizerSystem.step
        if self.layout is None or methods != usual:
            return selected(begins, fresh, old)
        # `updated_vector` does not read the accumulators, most of the state, at the first step.
        params, drawn = selected(begins, (fresh.params, fresh.drawn), (old.params, old.drawn))
        return Training(params, old.accumulators, drawn)

    def step(self, state, theta, t, key):
        params, accumulators, drawn = state
        gradient, outer_loss, update = self._functions()
        train, evaluated_on = self._batches(t, key, drawn.part)
        model = _times(drawn.scale, params)
        grads = _times(drawn.scale, gradient(model, train))
        if self.cap is not None:
            grads = jax.tree.map(lambda g: jnp.where(jnp.isfinite(g), g, 0), grads)
        params, accumulators = update(theta, grads, accumulators, params, t)
        if self.outer == "before":
            loss = outer_loss(model, train)
        else:
            loss = outer_loss(_times(drawn.scale, params), evaluated_on)
        if self.cap is not None:
            loss = jnp.where(loss < self.cap, loss, jnp.asarray(self.cap, loss.dtype))
        return Training(params, accumulators, drawn), loss

    # The model is one vector if the optimizer can update that: every array costs a kernel or two.

    @property
    def layout(self) -> Layout | None:
        """The order of the model's parameters, if they are one vector."""
        if self.optimizer.updated_vector is None:
            return None
        like = jax.eval_shape(lambda: self.task.init(jax.random.key(0)))
        alike = all(leaf.dtype == jnp.result_type(float) for leaf in jax.tree.leaves(like))
        return Layout.of(like) if alike else None

    def _functions(self) -> tuple[Callable, Callable, Callable]:
        """Return the gradient, the outer loss and the update of a model in the form it has."""
        task, layout, updated_vector = self.task, self.layout, self.optimizer.updated_vector
        if layout is None or updated_vector is None:
            return task.gradient, task.outer_loss, self._updated
        return (
            on_vectors(task.gradient, layout, is_gradient=True),
            on_vectors(task.outer_loss, layout, is_gradient=False),
            functools.partial(updated_vector, tensors=layout.sizes),
        )

    def _updated(self, theta, grads, accumulators, params, t):
        """Return the new parameters of a model that is not a vector, and the accumulators."""
        change, accumulators = self.optimizer.update(theta, grads, accumulators, params, t)
        return optax.apply_updates(params, change), accumulators

    def _batches(self, t, key, part):
        data = (self.task.train, self.task.evaluated_on)
        indices = self.task.draw(key, part) if self.table is None else list(self.table[t])
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
        """Compute the mean loss of whole episodes, and the mean loss of their last tenth.

        If lengths are drawn, all of these episodes take the longest: `nres.evaluate` computes the
        mean over lengths, which is what is learned.
        """
        if self.test_episodes == 1:
            losses = self.losses(theta, key)
        else:
            keys = jax.random.split(key, self.test_episodes)
            losses = _many_losses(self, theta, keys).mean(axis=0)
        return {"loss": losses.mean(), "final_loss": losses[-max(1, self.horizon // 10) :].mean()}

    @property
    def metrics_steps(self) -> int:  # type: ignore[override]
        """The number of unroll steps in `metrics`, whose episodes all last the whole horizon."""
        return self.test_episodes * self.horizon


def _range(name: str, given: Any) -> tuple[float, float]:
    """Return two positive numbers in order, or raise an error."""
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise TypeError(f"{name} must be two numbers, got {given!r}.")
    least, most = (positive_number(name, each) for each in given)
    if least > most:
        raise ValueError(f"{name} must be two numbers in order, got {given!r}.")
    return least, most


def _times(scale: Float[Array, ""] | None, tree: Params) -> Params:
    """Multiply every leaf by a number; `None` means 1."""
    return tree if scale is None else jax.tree.map(lambda x: scale.astype(x.dtype) * x, tree)


@eqx.filter_jit
def _many_losses(system: LearnedOptimizerSystem, theta, keys):
    return jax.vmap(lambda key: _losses(system, theta, key))(keys)


@eqx.filter_jit
def _losses(system: LearnedOptimizerSystem, theta, key):
    def step(state, t):
        return system.step(state, theta, t, jax.random.fold_in(key, t + 1))

    state = system.init(theta, jax.random.fold_in(key, 0))
    return jax.lax.scan(step, state, jnp.arange(system.horizon, dtype=jnp.int32))[1]
