"""A perceptron that classifies images: its loss and its gradient."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from nres.systems.learned_optimizer.fusing import Batch, Layers
from nres.systems.learned_optimizer.losses import mean_loss


def initial_weight(key: Key[Array, ""], shape: tuple[int, ...], inputs: int) -> Array:
    """Draw truncated normal numbers, divided by the square root of the number of inputs."""
    return jax.random.truncated_normal(key, -2, 2, shape) / inputs**0.5


def init_dense(sizes: tuple[int, ...], key: Key[Array, ""]) -> Layers:
    """Draw initial weights; biases are zero."""
    keys = jax.random.split(key, len(sizes) - 1)
    return [
        {
            "weight": initial_weight(k, (inputs, outputs), inputs),
            "bias": jnp.zeros(outputs),
        }
        for k, inputs, outputs in zip(keys, sizes, sizes[1:], strict=False)
    ]


def apply_dense(
    params: Layers,
    pixels: Float[Array, "batch ..."],
    activation: Callable[[Array], Array] = jax.nn.gelu,
) -> Float[Array, "batch classes"]:
    """Compute logits, with an activation between the layers."""
    x = pixels.reshape(pixels.shape[0], -1)
    for i, layer in enumerate(params):
        x = x @ layer["weight"] + layer["bias"][None]
        if i < len(params) - 1:
            x = activation(x)
    return x


def plain_loss(what: str, params: Layers, batch: Batch) -> Float[Array, ""]:
    """Compute `dense_loss` in plain JAX, as the reference for the kernel."""
    return mean_loss(apply_dense, what, params, batch)


def plain_gradient(params: Layers, batch: Batch) -> Layers:
    """Compute `dense_gradient` in plain JAX, as the reference for the kernel."""
    return jax.grad(functools.partial(plain_loss, "cross-entropy"))(params, batch)


def fusable(params: Layers, batch: Batch) -> bool:
    """Return true if one program of a kernel can hold the model and the batch."""
    images = batch[0].shape[0]
    return (
        all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(params))
        and max(size for layer in params for size in layer["weight"].shape) <= 128
        and images >= 16
        and images & (images - 1) == 0
        and images * sum(layer["weight"].shape[0] for layer in params) <= 2**15
    )
