"""A convolutional network that classifies images: its loss and its gradient.

Every lane has its own weights, and XLA is slow at batches of convolutions with different weights.
Here a convolution is therefore a matrix product over patches. Plain JAX copies the patches, which
takes nine times the memory of the images; the kernels for GPUs in `kernels.convolutional` read
them in place.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from nres.systems.learned_optimizer.dense import initial_weight
from nres.systems.learned_optimizer.fusing import Batch, Layers
from nres.systems.learned_optimizer.losses import mean_loss


def init_convolutional(
    blocks: int, channels: int, key: Key[Array, ""], *, size: int = 32, colours: int = 3
) -> Layers:
    """Draw initial weights for images of this size; biases are zero."""
    *keys, last = jax.random.split(key, blocks + 1)
    params, inputs = [], colours
    for k in keys:
        weight = initial_weight(k, (3, 3, inputs, channels), 9 * inputs)
        params.append({"weight": weight, "bias": jnp.zeros(channels)})
        inputs = channels
    inputs = channels * (size // 2**blocks) ** 2
    params.append({"weight": initial_weight(last, (inputs, 10), inputs), "bias": jnp.zeros(10)})
    return params


def plain_loss(what: str, params: Layers, batch: Batch) -> Float[Array, ""]:
    """Compute `convolutional_loss` in plain JAX, as the reference for the kernels."""
    return block_loss(plain_block, what, params, batch)


def plain_gradient(params: Layers, batch: Batch) -> Layers:
    """Compute `convolutional_gradient` in plain JAX, as the reference for the kernels."""
    return jax.grad(functools.partial(plain_loss, "cross-entropy"))(params, batch)


def fusable(params: Layers) -> bool:
    """Return true if the kernels apply: single precision, and at most 64 channels."""
    return all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(params)) and all(
        layer["weight"].shape[-1] <= 64 for layer in params
    )


def block_loss(block: Callable, what: str, params: Layers, batch: Batch) -> Float[Array, ""]:
    """Compute the mean loss with this implementation of a block."""
    return mean_loss(functools.partial(apply_convolutional, block), what, params, batch)


def apply_convolutional(block, params: Layers, pixels: Float[Array, "batch height width colours"]):
    """Compute logits with blocks and a linear layer."""
    x = pixels
    for layer in params[:-1]:
        x = block(x, layer["weight"], layer["bias"])
    return x.reshape(x.shape[0], -1) @ params[-1]["weight"] + params[-1]["bias"][None]


def plain_block(x, weight, bias):
    """Apply a 3 x 3 convolution, ReLU and 2 x 2 average pooling."""
    n, height, width, _ = x.shape
    padded = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    shifted = [padded[:, i : i + height, j : j + width] for i in range(3) for j in range(3)]
    x = jnp.concatenate(shifted, axis=-1) @ weight.reshape(-1, weight.shape[-1])
    x = jax.nn.relu(x + bias[None, None, None])
    return x.reshape(n, height // 2, 2, width // 2, 2, -1).mean(axis=(2, 4))
