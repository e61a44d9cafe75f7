"""Policies: functions from observations to actions, for many lanes with separate parameters.

Every lane of a pool has its own parameters. The policies here compute whole batches: in NumPy for
a simulator outside JAX, which then does not wait for a JAX dispatch at every step, and in JAX for
an environment that JAX traces.
"""

import dataclasses
import itertools
import re
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from nres.arrays import namespace
from nres.checks import check_memory, positive_number, whole_number
from nres.system import Theta

ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "tanh": lambda x: namespace(x).tanh(x),
    "relu": lambda x: namespace(x).maximum(x, 0),
}


@runtime_checkable
class Policy(Protocol):
    """Protocol of a policy that pools can run."""

    def initial_theta(self, key: Key[Array, ""]) -> Theta:
        """Return the parameters to start from.

        Args:
            key: A JAX random key.

        Returns:
            The parameters of one lane.
        """
        ...

    def act(
        self, thetas: PyTree, observations: Float[Any, "lanes observations"]
    ) -> Float[Any, "lanes actions"]:
        """Compute one action per lane.

        Args:
            thetas: The parameters; every leaf has an axis of lanes in front.
            observations: One observation per lane, in NumPy or in JAX.

        Returns:
            One action per lane.
        """
        ...


@runtime_checkable
class RecurrentPolicy(Protocol):
    """Protocol of a policy that remembers values from step to step."""

    @property
    def memory(self) -> int:
        """The number of values that the policy remembers."""
        ...

    def initial_theta(self, key: Key[Array, ""]) -> Theta:
        """Return the parameters to start from, as for `Policy`."""
        ...

    def act(
        self,
        thetas: PyTree,
        observations: Float[Any, "lanes observations"],
        memory: Float[Any, "lanes memory"],
    ) -> tuple[Float[Any, "lanes actions"], Float[Any, "lanes memory"]]:
        """Compute one action per lane, and what each lane remembers.

        Args:
            thetas: The parameters; every leaf has an axis of lanes in front.
            observations: One observation per lane, in NumPy or in JAX.
            memory: What each lane remembers; zero when an episode begins.

        Returns:
            One action per lane, and the memory for the next step.
        """
        ...


AnyPolicy: TypeAlias = Policy | RecurrentPolicy


@dataclasses.dataclass(frozen=True)
class Linear:
    r"""A linear policy $a = \theta o$, without bias; `theta` is one matrix.

    Args:
        observations: The number of components of an observation.
        actions: The number of components of an action.
        variance: `theta` starts from truncated normal numbers whose variance is this value divided
            by the number of observations; 0, the default, starts from zero.
    """

    observations: int
    actions: int
    variance: float = 0.0

    def initial_theta(self, key: Key[Array, ""]) -> Float[Array, "actions observations"]:
        return _initial(key, self.actions, self.observations, self.variance)

    def act(self, thetas, observations):
        return _product(thetas, observations)


@dataclasses.dataclass(frozen=True)
class MLP:
    """A multilayer perceptron with biases; `theta` is a list of layers.

    Args:
        sizes: The sizes of the observation, the hidden layers and the action; for example,
            `(17, 30, 6)` has 726 parameters.
        activation: The activation of the hidden layers, `"tanh"` or `"relu"`.
        variance: Weights start from truncated normal numbers whose variance is this value divided
            by the number of inputs of their layer. Biases start from zero.

    Raises:
        ValueError: If the activation is unknown or a size is not positive.
    """

    sizes: tuple[int, ...]
    activation: str = "tanh"
    variance: float = 1.0

    def __post_init__(self):
        if self.activation not in ACTIVATIONS:
            raise ValueError(
                f"activation must be one of {', '.join(ACTIVATIONS)}, got {self.activation!r}."
            )
        for size in self.sizes:
            whole_number("the size of a layer", size)
        largest = max(a * b for a, b in itertools.pairwise(self.sizes))
        check_memory(4 * largest, f"a policy with layers of {self.sizes}")

    def initial_theta(self, key: Key[Array, ""]) -> list[dict[str, Array]]:
        keys = jax.random.split(key, len(self.sizes) - 1)
        layers = zip(keys, self.sizes, self.sizes[1:], strict=False)
        return [
            {"weight": _initial(k, outputs, inputs, self.variance), "bias": jnp.zeros(outputs)}
            for k, inputs, outputs in layers
        ]

    def act(self, thetas, observations):
        x = observations
        for i, layer in enumerate(thetas):
            x = _product(layer["weight"], x) + layer["bias"]
            if i < len(thetas) - 1:
                x = ACTIVATIONS[self.activation](x)
        return x


@dataclasses.dataclass(frozen=True)
class GRU:
    r"""A recurrent policy: a gated recurrent unit, and a linear map from its memory to actions.

    With observation $o$ and memory $m$, the gates are
    $(u, r) = \mathrm{sigmoid}(W_{ur} o + V_{ur} m + b_{ur})$, the new memory is
    $m' = u m + (1 - u) \tanh(W_n o + r \, V_n m + b_n)$, and the action is $A m' + c$. The memory
    is part of an episode's state, so it passes from one window to the next.

    Args:
        observations: The number of components of an observation.
        actions: The number of components of an action.
        memory: The number of values that the policy remembers.
        variance: Weights start from truncated normal numbers whose variance is this value divided
            by the number of inputs. Biases start from zero.

    Reference:
        Cho et al., *Learning Phrase Representations using RNN Encoder-Decoder for Statistical
        Machine Translation*, EMNLP 2014.
    """

    observations: int
    actions: int
    memory: int
    variance: float = 1.0

    def __post_init__(self):
        whole_number("memory", self.memory)
        inputs = max(self.observations, self.memory)
        check_memory(12 * self.memory * inputs, f"a policy with a memory of {self.memory}")

    def initial_theta(self, key: Key[Array, ""]) -> dict[str, Array]:
        keys, gates = jax.random.split(key, 3), 3 * self.memory
        return {
            "input": _initial(keys[0], gates, self.observations, self.variance),
            "memory": _initial(keys[1], gates, self.memory, self.variance),
            "bias": jnp.zeros(gates),
            "output": _initial(keys[2], self.actions, self.memory, self.variance),
            "output_bias": jnp.zeros(self.actions),
        }

    def act(self, thetas, observations, memory):
        xp, size = namespace(observations), self.memory
        given = _product(thetas["input"], observations) + thetas["bias"]
        kept = _product(thetas["memory"], memory)
        # The logistic function, in the form whose derivative is finite everywhere.
        gates = 0.5 + 0.5 * xp.tanh(0.5 * (given[:, : 2 * size] + kept[:, : 2 * size]))
        update, reset = gates[:, :size], gates[:, size:]
        new = xp.tanh(given[:, 2 * size :] + reset * kept[:, 2 * size :])
        memory = update * memory + (1 - update) * new
        return _product(thetas["output"], memory) + thetas["output_bias"], memory


class Function:
    """A policy made of any JAX function, compiled for all lanes at once.

    Args:
        apply: A function from parameters and one observation to one action.
        initial: A function from a random key to the parameters to start from.

    Example:
        ```python
        policy = nres.policies.Function(
            apply=lambda theta, observation: jnp.tanh(theta @ observation),
            initial=lambda key: jnp.zeros((6, 17)),
        )
        ```
    """

    def __init__(self, apply: Callable[..., Any], initial: Callable[..., Theta]):
        self.apply, self.initial = apply, initial
        self._lanes = jax.jit(jax.vmap(apply))

    def initial_theta(self, key: Key[Array, ""]) -> Theta:
        return self.initial(key)

    def act(self, thetas, observations):
        if namespace(observations) is jnp:
            return self._lanes(thetas, observations)
        # Fewer and fewer lanes act as episodes end, and every number of lanes is compiled. So
        # there are four numbers between two powers of two.
        count = len(observations)
        step = 1 << max(0, (count - 1).bit_length() - 3)
        size = -(-count // step) * step
        if size > count:
            lanes = np.minimum(np.arange(size), count - 1)
            arguments = (thetas, observations)
            thetas, observations = jax.tree.map(lambda x: np.asarray(x)[lanes], arguments)
        return np.asarray(self._lanes(thetas, observations), np.float64)[:count]


def _product(matrices: Any, vectors: Any) -> Any:
    """Multiply each lane's matrix by its vector."""
    return (matrices @ vectors[:, :, None])[:, :, 0]


def _initial(key, outputs: int, inputs: int, variance: float) -> Float[Array, "outputs inputs"]:
    if not variance:
        return jnp.zeros((outputs, inputs))
    # The standard deviation of a standard normal distribution truncated at two.
    scale = (variance / inputs) ** 0.5 / 0.87962566103423978
    return scale * jax.random.truncated_normal(key, -2, 2, (outputs, inputs))


def as_policy(
    policy: str | AnyPolicy, observations: int, actions: int, variance: float | None = None
) -> AnyPolicy:
    """Return a policy, made for the given sizes if it is named by text.

    Args:
        policy: A policy, or text: `"linear"`, `"mlp:64,64"` (the sizes of the hidden layers),
            `"mlp:64:relu"` (with an activation) or `"gru:16"` (the size of the memory).
        observations: The number of components of an observation.
        actions: The number of components of an action.
        variance: The `variance` of the policy; its default if `None`.

    Returns:
        The policy.

    Raises:
        ValueError: If the text names no policy.
        TypeError: If it is neither text nor a policy.
    """
    if not isinstance(policy, str):
        if isinstance(policy, type) or not (
            callable(getattr(policy, "act", None))
            and callable(getattr(policy, "initial_theta", None))
        ):
            raise TypeError(
                "policy must be text, for example 'linear', or an object with act and "
                f"initial_theta, for example an nres.policies.Function; got {policy!r}."
            )
        return policy
    given = {} if variance is None else {"variance": variance}
    if variance is not None:
        positive_number("variance", variance, zero=True)
    if policy == "linear":
        return Linear(observations, actions, **given)
    if found := re.fullmatch(r"mlp:([0-9]+(?:,[0-9]+)*)(?::(\w+))?", policy):
        hidden = tuple(int(size) for size in found[1].split(","))
        return MLP((observations, *hidden, actions), found[2] or "tanh", **given)
    if found := re.fullmatch(r"gru:([0-9]+)", policy):
        return GRU(observations, actions, int(found[1]), **given)
    raise ValueError(
        f"policy must be linear, mlp:64,64 or mlp:64,64:relu (the sizes of the hidden layers, and "
        f"an activation), gru:16 (the size of the memory), or an nres.policies.Policy; got "
        f"{policy!r}."
    )
