"""The network of a learned optimizer, which is applied to every parameter of a model.

This module is in plain JAX. The two kernels for GPUs in `kernels.network` keep activations out of
memory.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

DECAYS = (0.1, 0.5, 0.9, 0.99, 0.999, 0.9999)
MEANS = len(DECAYS)
ROWS = MEANS + 2


class Network(NamedTuple):
    """The shape of a network with its weights in one vector: each layer's matrix, then its bias."""

    sizes: tuple[int, ...]
    """The sizes of the inputs, the hidden layers and the outputs."""

    @property
    def size(self) -> int:
        """The number of weights."""
        return sum(n * (m + 1) for m, n in zip(self.sizes, self.sizes[1:], strict=False))

    def offsets(self) -> list[tuple[int, int]]:
        """List the offsets of each layer's matrix and bias."""
        starts, at = [], 0
        for inputs, outputs in zip(self.sizes, self.sizes[1:], strict=False):
            starts.append((at, at + inputs * outputs))
            at += (inputs + 1) * outputs
        return starts

    def layers(self, theta: Float[Array, " d"]) -> list[tuple[Array, Array]]:
        """Split a vector of weights into matrices and biases."""
        return [
            (
                theta[matrix:bias].reshape(inputs, outputs),
                theta[bias : bias + outputs],
            )
            for (matrix, bias), inputs, outputs in zip(
                self.offsets(), self.sizes, self.sizes[1:], strict=False
            )
        ]


class Inputs(NamedTuple):
    """Inputs of the network, for every parameter of a model."""

    time: Float[Array, " times"]
    """Features of the step number, which all parameters share."""
    grad: Float[Array, " size"]
    """The gradient with respect to all tensors of the model, concatenated."""
    param: Float[Array, " size"]
    """The parameters of the model, concatenated."""
    means: Float[Array, "6 size"]
    """The running means of the gradient, up to the last step; at the first step they are zero,
    whatever is here."""
    t: Int[Array, ""]
    """The number of steps already made."""


Result = tuple[Float[Array, " size"], Float[Array, "6 size"]]


def plain_step(
    network: Network,
    tensors: tuple[int, ...],
    added: bool,
    theta: Float[Array, " d"],
    inputs: Inputs,
) -> Result:
    """Compute `network_step` in plain JAX, as the reference for the kernels."""
    return layered_step(network.layers(theta), tensors, added, inputs)


def layered_step(
    layers: list[tuple[Array, Array]], tensors: tuple[int, ...], added: bool, inputs: Inputs
) -> Result:
    """Compute `network_step` from a matrix and a bias per layer."""
    dtype = inputs.means.dtype
    decays = jnp.asarray(DECAYS, dtype)[:, None]
    # Subtract before rounding: in single precision, 1 - 0.9999 would lose most of its digits.
    rest = jnp.asarray([1 - decay for decay in DECAYS], dtype)[:, None]
    before = jnp.where(inputs.t == 0, 0, inputs.means)
    means = decays * before + rest * inputs.grad[None]
    rows = jnp.concatenate([means, inputs.grad[None], inputs.param[None]])
    parts = jnp.split(rows, np.cumsum(tensors)[:-1], axis=1)
    scaled = [x * jax.lax.rsqrt(1e-5 + jnp.mean(x**2, axis=1, keepdims=True)) for x in parts]
    (first, bias), *others = layers
    # The time contributes the same to the first layer for every parameter.
    layers = [(first[:ROWS], bias + inputs.time @ first[ROWS:]), *others]
    x = jnp.concatenate(scaled, axis=1).T
    for i, (weight, bias) in enumerate(layers):
        x = x @ weight + bias[None]
        if i < len(layers) - 1:
            x = jnp.maximum(x, 0)
    change = parameter_change(x[:, 0], x[:, 1])
    return inputs.param + change if added else change, means


def parameter_change(direction: Array, magnitude: Array) -> Array:
    """Turn the two outputs of the network into the change of a parameter."""
    return -0.001 * direction * jnp.exp(0.001 * magnitude)


def fusable(network: Network, theta: Array, inputs: Inputs) -> bool:
    """Return true if the kernels apply: single precision, hidden widths that are powers of two."""
    arrays = (theta, inputs.time, inputs.grad, inputs.param, inputs.means)
    times, *hidden = network.sizes[0] - ROWS, *network.sizes[1:-1]
    return (
        not jax.config.jax_enable_x64  # type: ignore[attr-defined]
        and all(array.dtype == jnp.float32 for array in arrays)
        and times <= 16
        and len(hidden) > 0
        and all(16 <= width <= 128 and width & (width - 1) == 0 for width in hidden)
    )
