"""Networks of three layers that learned optimizers apply to every parameter of a model."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from nres.systems.learned_optimizer.dense import initial_weight


def initial_layers(key: Key[Array, ""], sizes: tuple[int, ...]) -> dict[str, Array]:
    """Draw the weights of a network, named `w0`, `b0`, `w1` and so on; biases are zero."""
    layers = {}
    for i, (k, inputs, outputs) in enumerate(
        zip(jax.random.split(key, len(sizes) - 1), sizes, sizes[1:], strict=False)
    ):
        layers[f"w{i}"] = initial_weight(k, (inputs, outputs), inputs)
        layers[f"b{i}"] = jnp.zeros(outputs)
    return layers


def apply_layers(
    theta: dict[str, Array], x: Float[Array, "... inputs"]
) -> Float[Array, "... outputs"]:
    """Apply a network of three layers with ReLU between them."""
    rows = x.reshape(-1, x.shape[-1])
    for i in range(3):
        weight, bias = (theta[f"{name}{i}"].astype(x.dtype) for name in "wb")
        rows = rows @ weight + bias[None]
        rows = jax.nn.relu(rows) if i < 2 else rows
    return rows.reshape(*x.shape[:-1], -1)
