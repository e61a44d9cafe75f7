"""Optimizers whose parameters can be learned: a base class, three classical ones and an MLP."""

import abc
import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, Key, PyTree

from nres.checks import positive_number
from nres.system import Theta
from nres.systems.learned_optimizer.dense import initial_weight
from nres.systems.learned_optimizer.dispatch import network_step
from nres.systems.learned_optimizer.network import (
    MEANS,
    ROWS,
    Inputs,
    Network,
    Result,
    layered_step,
)
from nres.systems.learned_optimizer.vectors import Layout

Params: TypeAlias = PyTree[Float[Array, "..."]]


class LearnableOptimizer(eqx.Module):
    """Base class of optimizers that have parameters `theta` of their own.

    A subclass defines the initial `theta`, the accumulators that are carried from step to step,
    and the step itself. Settings that are not learned are fields.

    Example:
        ```python
        class SignDescent(LearnableOptimizer):
            def initial_theta(self, key):
                return {"log_lr": jnp.log(0.01)}

            def init(self, params):
                return ()

            def update(self, theta, grads, state, params, t):
                rate = jnp.exp(theta["log_lr"])
                return jax.tree.map(lambda g: -rate * jnp.sign(g), grads), state
        ```
    """

    @abc.abstractmethod
    def initial_theta(self, key: Key[Array, ""]) -> Theta:
        """Return the parameters to start learning from."""

    @abc.abstractmethod
    def init(self, params: Params) -> PyTree:
        """Return the accumulators before the first step of training `params`."""

    @abc.abstractmethod
    def update(
        self, theta: Theta, grads: Params, state: PyTree, params: Params, t: Int[Array, ""]
    ) -> tuple[Params, PyTree]:
        """Make one step of training.

        Args:
            theta: The optimizer's own parameters.
            grads: The gradient of the model's loss.
            state: The accumulators from `init` or from the last `update`.
            params: The parameters of the model.
            t: The number of steps already made.

        Returns:
            The change to add to `params`, and the new accumulators.
        """

    @property
    def updated_vector(self) -> Callable[..., tuple[Array, PyTree]] | None:
        """A function that updates a model whose parameters are one vector; `None` if there is none.

        Its arguments are those of `update`, and the sizes of the model's tensors. It returns the
        new parameters and accumulators. If `t` is zero, they must not depend on `state`. With it,
        models are vectors: this takes few kernels.
        """
        return None

    def with_unit_rate(self) -> "LearnableOptimizer":
        """Return this optimizer with a fixed learning rate of 1, if it has a fixed one."""
        return self

    def as_optax(
        self, theta: Theta, lr: float | Callable[[Any], Any] | None = None
    ) -> optax.GradientTransformation:
        """Return this optimizer with the given parameters, for use with optax on any model.

        Args:
            theta: The optimizer's parameters.
            lr: The learning rate, or a schedule: a function of the step. For optimizers that learn
                the size of their steps, a factor of it. By default, steps are as in training.

        Returns:
            An optax optimizer, whose `update` needs the model's parameters.

        Example:
            ```python
            optimizer = PerParameterMLP().as_optax(theta)
            state = optimizer.init(params)
            updates, state = optimizer.update(grads, state, params)
            params = optax.apply_updates(params, updates)
            ```
        """

        def init(params):
            return OptaxState(jnp.zeros((), jnp.int32), self.init(params))

        def update(grads, state, params=None):
            if params is None:
                raise ValueError(
                    f"{type(self).__name__} needs the parameters: "
                    "write optimizer.update(grads, state, params)."
                )
            updates, accumulators = self.update(
                theta, grads, state.accumulators, params, state.step
            )
            return updates, OptaxState(optax.safe_increment(state.step), accumulators)

        if lr is None:
            return optax.GradientTransformation(init, update)
        if not callable(lr) and not isinstance(lr, jax.Array):
            lr = positive_number("lr", lr, zero=True)
        scale = optax.scale_by_schedule(lr) if callable(lr) else optax.scale(lr)
        return optax.chain(self.with_unit_rate().as_optax(theta), scale)


class OptaxState(NamedTuple):
    """The state of a learned optimizer in optax."""

    step: Int[Array, ""]
    accumulators: Any


class SGD(LearnableOptimizer):
    r"""Gradient descent, $p \leftarrow p - e^{\theta} g$, with a learned learning rate."""

    lr: float = eqx.field(static=True, default=0.1)
    """The initial learning rate."""

    def initial_theta(self, key: Key[Array, ""]) -> dict[str, Array]:
        return {"log_lr": jnp.asarray(math.log(self.lr))}

    def init(self, params: Params) -> tuple[()]:
        return ()

    def update(self, theta, grads, state, params, t):
        return _scaled(-jnp.exp(theta["log_lr"]), grads), state


class Momentum(LearnableOptimizer):
    r"""Gradient descent with momentum, $m \leftarrow \beta m + g$, $p \leftarrow p - \eta m$.

    The learned parameters are $\ln \eta$ and $\operatorname{logit} \beta$.
    """

    lr: float = eqx.field(static=True, default=0.01)
    r"""The initial $\eta$."""
    decay: float = eqx.field(static=True, default=0.9)
    r"""The initial $\beta$."""

    def initial_theta(self, key: Key[Array, ""]) -> dict[str, Array]:
        return {
            "log_lr": jnp.asarray(math.log(self.lr)),
            "logit_decay": jnp.asarray(_logit(self.decay)),
        }

    def init(self, params: Params) -> Params:
        return jax.tree.map(jnp.zeros_like, params)

    def update(self, theta, grads, state, params, t):
        decay = jax.nn.sigmoid(theta["logit_decay"])
        state = jax.tree.map(lambda m, g: decay.astype(m.dtype) * m + g, state, grads)
        return _scaled(-jnp.exp(theta["log_lr"]), state), state


class Adam(LearnableOptimizer):
    r"""Adam with bias correction.

    The learned parameters are $\ln \eta$ and the logits of $\beta_1, \beta_2$.

    Reference:
        Kingma and Ba, *Adam: a method for stochastic optimization*, ICLR 2015.
    """

    lr: float = eqx.field(static=True, default=0.001)
    r"""The initial $\eta$."""
    decay1: float = eqx.field(static=True, default=0.9)
    r"""The initial $\beta_1$."""
    decay2: float = eqx.field(static=True, default=0.999)
    r"""The initial $\beta_2$."""
    eps: float = eqx.field(static=True, default=1e-8)
    """A constant added to the square root of the second moment; it is not learned."""

    def initial_theta(self, key: Key[Array, ""]) -> dict[str, Array]:
        return {
            "log_lr": jnp.asarray(math.log(self.lr)),
            "logit_decay1": jnp.asarray(_logit(self.decay1)),
            "logit_decay2": jnp.asarray(_logit(self.decay2)),
        }

    def init(self, params: Params) -> tuple[Params, Params]:
        zeros = jax.tree.map(jnp.zeros_like, params)
        return zeros, zeros

    def update(self, theta, grads, state, params, t):
        decay1 = jax.nn.sigmoid(theta["logit_decay1"])
        decay2 = jax.nn.sigmoid(theta["logit_decay2"])
        count = (t + 1).astype(decay1.dtype)
        # From 1 - decay, because a decay near 1 has few digits left in single precision.
        correction1 = -jnp.expm1(count * jnp.log1p(-jax.nn.sigmoid(-theta["logit_decay1"])))
        correction2 = -jnp.expm1(count * jnp.log1p(-jax.nn.sigmoid(-theta["logit_decay2"])))
        rate = jnp.exp(theta["log_lr"]) / correction1

        def average(decay, old, new):
            decay = decay.astype(old.dtype)
            return decay * old + (1 - decay) * new

        first = jax.tree.map(lambda m, g: average(decay1, m, g), state[0], grads)
        second = jax.tree.map(lambda v, g: average(decay2, v, g**2), state[1], grads)

        def step(m, v):
            root = jnp.sqrt(v / correction2.astype(v.dtype)) + self.eps
            return -rate.astype(m.dtype) * m / root

        return jax.tree.map(step, first, second), (first, second)


class PerParameterNetwork(LearnableOptimizer):
    """Base class of optimizers with a small network that is applied to each parameter of a model.

    Raises:
        ValueError: If `width` or `depth` is less than 1.
    """

    width: int = eqx.field(static=True, default=32)
    """The width of the hidden layers, which have ReLU. The defaults have 1,762 parameters;
    `width=128` has 19,330."""
    depth: int = eqx.field(static=True, default=2)
    """The number of hidden layers."""

    def __check_init__(self):
        if self.width < 1 or self.depth < 1:
            raise ValueError(
                f"width and depth must be at least 1, got {self.width} and {self.depth}."
            )

    @abc.abstractmethod
    def arranged(self, weights: Float[Array, " d"]) -> Theta:
        """Return all weights, given in one vector, as the parameters of this optimizer."""

    @abc.abstractmethod
    def layers(self, theta: Theta) -> list[tuple[Array, Array]]:
        """Return the matrix and the bias of each layer."""

    @abc.abstractmethod
    def changes(
        self, theta: Theta, tensors: tuple[int, ...], inputs: Inputs, added: bool = False
    ) -> Result:
        """Apply the network; the arguments are those of `network_step`."""

    @property
    def network(self) -> Network:
        """The shape of the network, and the layout of its weights in a vector."""
        return Network((ROWS + len(TIMES), *[self.width] * self.depth, 2))

    @property
    def updated_vector(self):
        methods = (type(self).init, type(self).update, type(self).changes)
        ours = all(method.__module__ == __name__ for method in methods)  # not a subclass's own
        return self._updated_vector if ours else None

    def initial_theta(self, key: Key[Array, ""]) -> Theta:
        network, weights = self.network, []
        keys = jax.random.split(key, self.depth + 1)
        for k, inputs, outputs in zip(keys, network.sizes, network.sizes[1:], strict=False):
            weights += [initial_weight(k, (inputs * outputs,), inputs), jnp.zeros(outputs)]
        return self.arranged(jnp.concatenate(weights))

    def init(self, params: Params) -> Float[Array, "6 size"]:
        return jnp.zeros((MEANS, sum(leaf.size for leaf in jax.tree.leaves(params))))

    def update(self, theta, grads, state, params, t):
        layout = Layout.of(params)
        grad, param = (
            layout.vector(jax.tree.map(lambda x: x.astype(float), tree)) for tree in (grads, params)
        )
        change, state = self.changes(theta, layout.sizes, _inputs(theta, grad, state, param, t))
        return jax.tree.map(lambda c, p: c.astype(p.dtype), layout.tree(change), params), state

    def _updated_vector(self, theta, grad, state, param, t, tensors):
        inputs = _inputs(theta, grad, state, param, t)
        return self.changes(theta, tensors, inputs, added=True)


def _inputs(theta: Theta, grad: Array, state: Array, param: Array, t: Array) -> Inputs:
    return Inputs(time_inputs(t, jax.tree.leaves(theta)[0].dtype), grad, param, state, t)


class PerParameterMLP(PerParameterNetwork):
    r"""A small network that is applied to each parameter of the model and computes its change.

    For every parameter of the model, its inputs are six running means of the gradient with decays
    0.1, 0.5, 0.9, 0.99, 0.999 and 0.9999, the gradient, and the parameter's value. These eight are
    each divided by $\sqrt{10^{-5} + \text{mean square over the tensor}}$. Further inputs are eleven
    values $\tanh(t/s - 1)$ of the step $t$, for $s = 1, 3, 10, \dots, 100{,}000$. Its outputs
    $a, b$ give the step $p \leftarrow p - 0.001\, a\, e^{0.001 b}$.

    Raises:
        ValueError: If `width` or `depth` is less than 1.

    Reference:
        Metz et al., *Understanding and correcting pathologies in the training of learned
        optimizers*, ICML 2019; Li et al., NeurIPS 2023, Section 5.2.
    """

    # In one vector, estimators and optimizers update the weights with one kernel instead of six.
    def arranged(self, weights: Float[Array, " d"]) -> Float[Array, " d"]:
        return weights

    def layers(self, theta):
        return self.network.layers(theta)

    def changes(self, theta, tensors, inputs, added=False):
        return network_step(self.network, tensors, added, theta, inputs)


class LayeredMLP(PerParameterNetwork):
    """A `PerParameterMLP` whose parameters are a matrix and a bias per layer.

    Noise that depends on matrices, like `nres.noise.LowRank`, sees none in the vector of a
    `PerParameterMLP`. On GPUs it is slower, because the kernels need the vector.
    """

    def arranged(self, weights: Float[Array, " d"]) -> list[dict[str, Array]]:
        return [{"weight": weight, "bias": bias} for weight, bias in self.network.layers(weights)]

    def layers(self, theta):
        return [(layer["weight"], layer["bias"]) for layer in theta]

    def changes(self, theta, tensors, inputs, added=False):
        return layered_step(self.layers(theta), tensors, added, inputs)


TIMES = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1e3, 3e3, 1e4, 3e4, 1e5)


def time_inputs(t: Int[Array, ""], dtype: Any) -> Float[Array, " times"]:
    r"""Return the values $\tanh(t/s - 1)$ that tell a network the step $t$."""
    return jnp.tanh(t.astype(dtype) / jnp.asarray(TIMES, dtype) - 1)


def _scaled(factor: Array, tree: Params) -> Params:
    return jax.tree.map(lambda x: factor.astype(x.dtype) * x, tree)


def _logit(p: float) -> float:
    return math.log(p / (1 - p))
