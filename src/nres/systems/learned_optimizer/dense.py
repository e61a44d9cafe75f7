"""A perceptron that classifies images: its loss and its gradient."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from nres.systems.learned_optimizer.fusing import Batch, Layers
from nres.systems.learned_optimizer.losses import mean_loss
from nres.systems.learned_optimizer.vectors import Layout


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


def plain_loss(
    what: str, layout: Layout, params: Float[Array, " size"], batch: Batch
) -> Float[Array, ""]:
    """Compute `dense_loss` in plain JAX, as the reference for the kernel."""
    return mean_loss(apply_dense, what, layout.tree(params), batch)


def plain_gradient(
    layout: Layout, params: Float[Array, " size"], batch: Batch
) -> Float[Array, " size"]:
    """Compute `dense_gradient` in plain JAX, as the reference for the kernel."""
    loss = functools.partial(mean_loss, apply_dense, "cross-entropy")
    return layout.vector(jax.grad(loss)(layout.tree(params), batch))


def fusable(layout: Layout, params: Float[Array, " size"], batch: Batch) -> bool:
    """Return true if one program of a kernel can hold the model and the batch."""
    images, weights = batch[0].shape[0], [shape for shape in layout.shapes if len(shape) == 2]
    return (
        params.dtype == jnp.float32
        and max(size for shape in weights for size in shape) <= 128
        and images >= 16
        and images & (images - 1) == 0
        and images * sum(inputs for inputs, _ in weights) <= 2**15
    )
