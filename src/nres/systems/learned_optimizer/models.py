"""Tasks with other models than a classifying perceptron, on data that is part of nres."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from nres.checks import whole_number
from nres.data import grey
from nres.systems.learned_optimizer.convolutional import apply_convolutional, init_convolutional
from nres.systems.learned_optimizer.convolutional import plain_block as block
from nres.systems.learned_optimizer.dense import apply_dense, init_dense, initial_weight
from nres.systems.learned_optimizer.tasks import (
    Task,
    check_sizes,
    classification,
    small_images_task,
)
from nres.systems.recurrent import GRU, python_manual

SYMBOLS = 64


def convolutional_task(
    *, data: str = "fashion-mnist", blocks: int = 2, channels: int = 16, batch: int = 64
) -> Task:
    """Make a task of classifying grey 8 x 8 images by a convolutional network.

    Args:
        data: The data set, as for `nres.data.grey`.
        blocks: The number of blocks, from 1 to 3: a 3 x 3 convolution, ReLU and pooling.
        channels: The number of channels of each convolution.
        batch: The number of examples per batch.

    Returns:
        The task.
    """
    if not 1 <= blocks <= 3:
        raise ValueError(f"blocks must be from 1 to 3, got {blocks}: each halves the 8 pixels.")
    channels = whole_number("channels", channels)
    init = functools.partial(init_convolutional, blocks, channels, size=8, colours=1)
    return classification(
        init, functools.partial(apply_convolutional, block), grey(data), batch=batch
    )


def autoencoder_task(
    *, data: str = "fashion-mnist", hidden: Sequence[int] = (32, 8, 32), batch: int = 64
) -> Task:
    """Make a task of compressing and restoring grey 8 x 8 images, with the squared error as loss.

    Args:
        data: The data set, as for `nres.data.grey`.
        hidden: The sizes of the hidden layers, with ReLU.
        batch: The number of examples per batch.

    Returns:
        The task.
    """
    check_sizes("hidden", hidden)
    images = grey(data).images.reshape(-1, 64)
    count = len(images) * 4 // 5
    return Task(
        functools.partial(init_dense, (64, *hidden, 64)),
        _restoring_loss,
        images[:count],
        evaluated_on=images[count:],
        batch=batch,
    )


def _restoring_loss(params, images) -> Float[Array, ""]:
    pixels = images.astype(jax.tree.leaves(params)[0].dtype) / 255
    return jnp.mean((apply_dense(params, pixels, jax.nn.relu) - pixels) ** 2)


def recurrent_task(*, hidden: int = 64, length: int = 32, batch: int = 32) -> Task:
    """Make a task of predicting the characters of Python's manual by a gated recurrent network.

    Args:
        hidden: The number of hidden units.
        length: The number of characters that the network reads in one example.
        batch: The number of examples per batch.

    Returns:
        The task.
    """
    cell = GRU(SYMBOLS, whole_number("hidden", hidden))
    return _text_task(cell.initial_theta, functools.partial(_gru_logits, cell), length, batch)


def _gru_logits(cell: GRU, params, text: Int[Array, " length"]) -> Float[Array, "length symbols"]:
    def step(memory, x):
        return cell.step(memory, params, x)

    return jax.lax.scan(step, cell.init(params), text)[1]


def transformer_task(
    *, width: int = 32, blocks: int = 2, length: int = 32, batch: int = 32
) -> Task:
    """Make a task of predicting the characters of Python's manual by a small transformer.

    Args:
        width: The width of the network, whose hidden layers are four times as wide.
        blocks: The number of blocks: attention with one head, and a perceptron with GeLU.
        length: The number of characters that the network reads in one example.
        batch: The number of examples per batch.

    Returns:
        The task.
    """
    width, blocks = whole_number("width", width), whole_number("blocks", blocks)
    init = functools.partial(_init_transformer, width, blocks, length)
    return _text_task(init, _transformer_logits, length, batch)


def _init_transformer(width: int, blocks: int, length: int, key: Key[Array, ""]) -> dict[str, Any]:
    def matrix(i: int, inputs: int, outputs: int) -> Array:
        return initial_weight(jax.random.fold_in(key, i), (inputs, outputs), inputs)

    return {
        "symbols": matrix(0, SYMBOLS, width) * (SYMBOLS / width) ** 0.5,
        "places": matrix(1, length, width),
        "blocks": [
            {
                "attention": matrix(4 * i + 2, width, 3 * width),
                "joined": matrix(4 * i + 3, width, width),
                "wide": matrix(4 * i + 4, width, 4 * width),
                "narrow": matrix(4 * i + 5, 4 * width, width),
            }
            for i in range(blocks)
        ],
        "output": matrix(4 * blocks + 2, width, SYMBOLS),
    }


def _transformer_logits(params, text: Int[Array, " length"]) -> Float[Array, "length symbols"]:
    x = params["symbols"][text] + params["places"]
    later = jnp.triu(jnp.ones((len(text), len(text)), bool), 1)
    for layer in params["blocks"]:
        queries, keys, values = jnp.split(_standard(x) @ layer["attention"], 3, axis=1)
        scores = queries @ keys.T / queries.shape[1] ** 0.5
        weights = jax.nn.softmax(jnp.where(later, -jnp.inf, scores), axis=1)
        x = x + weights @ values @ layer["joined"]
        x = x + jax.nn.gelu(_standard(x) @ layer["wide"]) @ layer["narrow"]
    return _standard(x) @ params["output"]


def _standard(x: Float[Array, "length width"]) -> Float[Array, "length width"]:
    """Shift and scale every row to mean 0 and variance 1."""
    x = x - x.mean(axis=1, keepdims=True)
    return x * jax.lax.rsqrt(jnp.mean(x**2, axis=1, keepdims=True) + 1e-5)


def _text_task(init, logits, length: int, batch: int) -> Task:
    length, text = whole_number("length", length), python_manual()
    rows = text[: len(text) // (length + 1) * (length + 1)].reshape(-1, length + 1)
    order = np.random.default_rng(0).permutation(len(rows))  # so that both parts are alike
    rows, count = rows[order].astype(np.uint8), len(rows) * 4 // 5
    loss = functools.partial(_next_loss, logits)
    return Task(init, loss, rows[:count], evaluated_on=rows[count:], batch=batch)


def _next_loss(logits, params, rows) -> Float[Array, ""]:
    """Compute the mean cross-entropy of the next characters."""
    rows = rows.astype(jnp.int32)
    given = jax.vmap(functools.partial(logits, params))(rows[:, :-1])
    chosen = jax.nn.one_hot(rows[:, 1:], SYMBOLS, dtype=given.dtype)
    return -jnp.mean(jnp.sum(chosen * jax.nn.log_softmax(given), axis=-1))


_wide = functools.partial(small_images_task, hidden=(128, 128))
_deep = functools.partial(small_images_task, hidden=(32,) * 6)
HELD_OUT: Mapping[str, tuple[str, Any]] = {
    "wide": ("a perceptron, 64-128-128-10", _wide),
    "deep": ("a perceptron with six hidden layers", _deep),
    "convolutional": ("a convolutional network", convolutional_task),
    "autoencoder": ("an autoencoder, 64-32-8-32-64", autoencoder_task),
    "recurrent": ("a gated recurrent network on text", recurrent_task),
    "transformer": ("a small transformer on text", transformer_task),
}
"""Tasks on which `evaluate_optimizer` compares optimizers: what is trained, and how to make it."""
