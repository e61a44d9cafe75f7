"""Policies: what turns observations into actions, for many lanes with their own parameters.

A policy of `nres` works on whole batches of NumPy arrays: every lane has its own parameters, and
a simulator that is not JAX should not wait for a dispatch to it at every step.
"""

import dataclasses
import itertools
import re
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from nres.checks import check_memory, positive_number, whole_number
from nres.system import Theta

ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0),
}


@runtime_checkable
class Policy(Protocol):
    """What a pool needs of a policy."""

    def initial_theta(self, key: Key[Array, ""]) -> Theta:
        """Parameters to start from."""
        ...

    def act(
        self, thetas: PyTree, observations: Float[np.ndarray, "lanes observations"]
    ) -> Float[np.ndarray, "lanes actions"]:
        """One action a lane; every leaf of `thetas` has an axis of lanes in front."""
        ...


@dataclasses.dataclass(frozen=True)
class Linear:
    r"""Actions $a = \theta o$, without bias: `theta` is one matrix.

    **Arguments:**

    - `observations`, `actions`: how many numbers there are.
    - `variance`: `theta` starts from truncated normal numbers of this variance over the number
        of observations; from zero by default.
    """

    observations: int
    actions: int
    variance: float = 0.0

    def initial_theta(self, key: Key[Array, ""]) -> Float[Array, "actions observations"]:
        return _initial(key, self.actions, self.observations, self.variance)

    def act(self, thetas, observations):
        return np.matmul(thetas, observations[:, :, None])[:, :, 0]


@dataclasses.dataclass(frozen=True)
class MLP:
    """A perceptron with hidden layers and biases: `theta` is a list of layers.

    **Arguments:**

    - `sizes`: observations, hidden layers, actions: `(17, 30, 6)` has 726 parameters.
    - `activation`: of the hidden layers, `"tanh"` or `"relu"`.
    - `variance`: weights start from truncated normal numbers of this variance over the number of
        inputs of their layer; biases from zero.
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
            x = np.matmul(layer["weight"], x[:, :, None])[:, :, 0] + layer["bias"]
            if i < len(thetas) - 1:
                x = ACTIVATIONS[self.activation](x)
        return x


class Function:
    """Any `apply(theta, observation)` of JAX, compiled for all lanes at once.

    **Arguments:**

    - `apply`: maps parameters and one observation to one action.
    - `initial`: maps a random key to parameters to start from.
    """

    def __init__(self, apply: Callable[..., Any], initial: Callable[..., Theta]):
        self.apply, self.initial = apply, initial
        self._lanes = jax.jit(jax.vmap(apply))

    def initial_theta(self, key: Key[Array, ""]) -> Theta:
        return self.initial(key)

    def act(self, thetas, observations):
        return np.asarray(self._lanes(thetas, observations), np.float64)


def _initial(key, outputs: int, inputs: int, variance: float) -> Float[Array, "outputs inputs"]:
    if not variance:
        return jnp.zeros((outputs, inputs))
    # A normal distribution cut off at two standard deviations has this one itself.
    scale = (variance / inputs) ** 0.5 / 0.87962566103423978
    return scale * jax.random.truncated_normal(key, -2, 2, (outputs, inputs))


def as_policy(
    policy: "str | Policy", observations: int, actions: int, variance: float | None = None
) -> Policy:
    """A policy as it is, or `"linear"`, `"mlp:64,64"`, `"mlp:64:relu"` made for a simulator."""
    if not isinstance(policy, str):
        return policy
    given = {} if variance is None else {"variance": variance}
    if variance is not None:
        positive_number("variance", variance, zero=True)
    if policy == "linear":
        return Linear(observations, actions, **given)
    if found := re.fullmatch(r"mlp:([0-9]+(?:,[0-9]+)*)(?::(\w+))?", policy):
        hidden = tuple(int(size) for size in found[1].split(","))
        return MLP((observations, *hidden, actions), found[2] or "tanh", **given)
    raise ValueError(
        f"policy must be linear, mlp:64,64 or mlp:64,64:relu (sizes of hidden layers, and an "
        f"activation), or an nres.policies.Policy; got {policy!r}."
    )
