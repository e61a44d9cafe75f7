"""Optimizers whose parameters can be learned: a base class, three classical ones and an MLP."""

import abc
import math
from typing import Any, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, Key, PyTree

from nres.system import Theta
from nres.systems.learned_optimizer.dense import initial_weight
from nres.systems.learned_optimizer.dispatch import network_step
from nres.systems.learned_optimizer.network import MEANS, ROWS, Inputs, Network

Params: TypeAlias = PyTree[Float[Array, "..."]]


class LearnableOptimizer(eqx.Module):
    """Base class of optimizers that have parameters `theta` of their own.

    A subclass defines the initial `theta`, the accumulators that are carried from step to step,
    and the step itself. Settings that are not learned are fields.

    ```python
    class SignDescent(LearnableOptimizer):
        def initial_theta(self, key):
            return {"log_lr": jnp.log(0.01)}

        def init(self, params):
            return ()

        def update(self, theta, grads, state, params, t):
            return jax.tree.map(lambda g: -jnp.exp(theta["log_lr"]) * jnp.sign(g), grads), state
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
        """Make one step.

        **Arguments:**

        - `theta`: the optimizer's own parameters.
        - `grads`, `params`: of the model that is trained.
        - `state`: the accumulators that `init` or the last `update` returned.
        - `t`: the number of steps already made.

        **Returns:** the change to add to `params`, and the new accumulators.
        """

    def as_optax(self, theta: Theta) -> optax.GradientTransformation:
        """Return this optimizer with these parameters, for use with optax on any model.

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

        return optax.GradientTransformation(init, update)


class OptaxState(NamedTuple):
    """The state of a learned optimizer in optax."""

    step: Int[Array, ""]
    accumulators: Any


class SGD(LearnableOptimizer):
    r"""Gradient descent, $p \leftarrow p - e^{\theta} g$: the learning rate is learned.

    **Arguments:**

    - `lr`: the learning rate to start from.
    """

    lr: float = eqx.field(static=True, default=0.1)

    def initial_theta(self, key: Key[Array, ""]) -> dict[str, Array]:
        return {"log_lr": jnp.asarray(math.log(self.lr))}

    def init(self, params: Params) -> tuple[()]:
        return ()

    def update(self, theta, grads, state, params, t):
        return _scaled(-jnp.exp(theta["log_lr"]), grads), state


class Momentum(LearnableOptimizer):
    r"""Gradient descent with momentum, $m \leftarrow \beta m + g$, $p \leftarrow p - \eta m$.

    Learned are $\ln \eta$ and $\operatorname{logit} \beta$.

    **Arguments:**

    - `lr`, `decay`: $\eta$ and $\beta$ to start from.
    """

    lr: float = eqx.field(static=True, default=0.01)
    decay: float = eqx.field(static=True, default=0.9)

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
    r"""Adam with bias correction; learned are $\ln \eta$ and the logits of $\beta_1, \beta_2$.

    **Arguments:**

    - `lr`, `decay1`, `decay2`: $\eta, \beta_1, \beta_2$ to start from.
    - `eps`: added to the root of the second moment; not learned.
    """

    lr: float = eqx.field(static=True, default=0.001)
    decay1: float = eqx.field(static=True, default=0.9)
    decay2: float = eqx.field(static=True, default=0.999)
    eps: float = eqx.field(static=True, default=1e-8)

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
        # From one minus the decay: of a decay near one little would be left in single precision.
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


class PerParameterMLP(LearnableOptimizer):
    r"""A small network that sees one parameter at a time and says how to change it.

    Its inputs are, for every parameter of the model: six running means of the gradient with
    decays 0.1, 0.5, 0.9, 0.99, 0.999, 0.9999, the gradient and the parameter's value, these eight
    each divided by $\sqrt{10^{-5} + \text{mean square over the tensor}}$; and eleven
    $\tanh(t/s - 1)$ of the step $t$, for $s = 1, 3, 10, \dots, 100{,}000$. Its outputs $a, b$
    make the step $p \leftarrow p - 0.001\, a\, e^{0.001 b}$.

    **Arguments:**

    - `width`, `depth`: of its hidden layers, with ReLU. The defaults have 1,762 parameters;
        `width=128` has 19,330.

    **Reference:** Metz et al., *Understanding and correcting pathologies in the training of
    learned optimizers*, ICML 2019; section [exp:lopt] of Li et al., NeurIPS 2023.
    """

    width: int = eqx.field(static=True, default=32)
    depth: int = eqx.field(static=True, default=2)

    def __check_init__(self):
        if self.width < 1 or self.depth < 1:
            raise ValueError(
                f"width and depth must be at least 1, got {self.width} and {self.depth}."
            )

    @property
    def network(self) -> Network:
        """The shape of the network, and how its weights lie in `theta`."""
        return Network((ROWS + len(_TIMES), *[self.width] * self.depth, 2))

    def initial_theta(self, key: Key[Array, ""]) -> Float[Array, " d"]:
        network, theta = self.network, []
        keys = jax.random.split(key, self.depth + 1)
        for k, inputs, outputs in zip(keys, network.sizes, network.sizes[1:], strict=False):
            theta += [initial_weight(k, (inputs * outputs,), inputs), jnp.zeros(outputs)]
        # One vector: what estimators and optimizers do to it is then one kernel, not six.
        return jnp.concatenate(theta)

    def init(self, params: Params) -> Float[Array, "6 size"]:
        return jnp.zeros((MEANS, sum(leaf.size for leaf in jax.tree.leaves(params))))

    def update(self, theta, grads, state, params, t):
        leaves, structure = jax.tree.flatten(params)
        tensors = tuple(leaf.size for leaf in leaves)
        time = jnp.tanh(t.astype(theta.dtype) / jnp.asarray(_TIMES, theta.dtype) - 1)
        inputs = Inputs(time, _joined(jax.tree.leaves(grads)), _joined(leaves), state)
        change, state = network_step(self.network, tensors, theta, inputs)
        parts = jnp.split(change, np.cumsum(tensors)[:-1])
        updates = [
            part.reshape(leaf.shape).astype(leaf.dtype)
            for part, leaf in zip(parts, leaves, strict=True)
        ]
        return jax.tree.unflatten(structure, updates), state


_TIMES = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1e3, 3e3, 1e4, 3e4, 1e5)


def _joined(leaves: list[Array]) -> Float[Array, " size"]:
    return jnp.concatenate([leaf.reshape(-1).astype(float) for leaf in leaves])


def _scaled(factor: Array, tree: Params) -> Params:
    return jax.tree.map(lambda x: factor.astype(x.dtype) * x, tree)


def _logit(p: float) -> float:
    return math.log(p / (1 - p))
