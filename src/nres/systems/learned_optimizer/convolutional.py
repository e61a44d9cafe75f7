"""A convolutional network that classifies images: its loss and its gradient.

Every lane has its own weights, and a batch of convolutions is what XLA is slowest at. So here a
convolution is a matrix product over patches. In plain JAX these are laid out in memory, nine times
as large as what they are made from; the kernels for GPUs fetch them where they lie.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jaxtyping import Array, Float, Key

from nres.systems.learned_optimizer.dense import initial_weight
from nres.systems.learned_optimizer.fusing import (
    Batch,
    Layers,
    derivatives_of,
    interpreted,
    on_nvidia,
    padded_size,
    precision,
    relu,
)
from nres.systems.learned_optimizer.losses import mean_loss

# Pixels of a result that a program works on, and its warps.
PIXELS, WARPS = 64, 4
# Of a sum over pixels, how many a program adds, so often, and its warps.
ADDED, TIMES, ADDING_WARPS = 32, 4, 1
# Of a patch, how much is multiplied at a time.
CHUNK = 32
# What is kept of a number that goes into a ReLU. A byte would do, but where an array of bytes has
# more than 2^31 of them, kernels count its places in too few bits.
SIGN = jnp.int16


def init_convolutional(blocks: int, channels: int, key: Key[Array, ""]) -> Layers:
    """Parameters to start from; biases are zero."""
    *keys, last = jax.random.split(key, blocks + 1)
    params, inputs = [], 3
    for k in keys:
        weight = initial_weight(k, (3, 3, inputs, channels), 9 * inputs)
        params.append({"weight": weight, "bias": jnp.zeros(channels)})
        inputs = channels
    inputs = channels * (32 // 2**blocks) ** 2
    params.append({"weight": initial_weight(last, (inputs, 10), inputs), "bias": jnp.zeros(10)})
    return params


def convolutional_loss(what: str, params: Layers, batch: Batch) -> Float[Array, ""]:
    """The mean loss on a batch, one of `losses.LOSSES`."""
    if on_nvidia() and fusable(params):
        return fused_loss(what, params, batch)
    return plain_loss(what, params, batch)


def convolutional_gradient(params: Layers, batch: Batch) -> Layers:
    """The gradient of the mean cross-entropy."""
    if on_nvidia() and fusable(params):
        return fused_gradient(params, batch)
    return plain_gradient(params, batch)


def plain_loss(what: str, params: Layers, batch: Batch) -> Float[Array, ""]:
    """`convolutional_loss` in plain JAX: the reference."""
    return _loss(plain_block, what, params, batch)


def plain_gradient(params: Layers, batch: Batch) -> Layers:
    """`convolutional_gradient` in plain JAX: the reference."""
    return jax.grad(functools.partial(plain_loss, "cross-entropy"))(params, batch)


def fusable(params: Layers) -> bool:
    """Whether the kernels can do it: single precision, and not too many channels at a time."""
    return all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(params)) and all(
        layer["weight"].shape[-1] <= 64 for layer in params
    )


@derivatives_of(plain_loss, static=1)
def fused_loss(what: str, params: Layers, batch: Batch) -> Float[Array, ""]:
    """`convolutional_loss` with kernels; derivatives are those of `plain_loss`."""
    return _loss(fused_block, what, params, batch)


@derivatives_of(plain_gradient)
def fused_gradient(params: Layers, batch: Batch) -> Layers:
    """`convolutional_gradient` with kernels; derivatives are those of `plain_gradient`."""
    return jax.grad(functools.partial(_loss, fused_block, "cross-entropy"))(params, batch)


def _loss(block: Callable, what: str, params: Layers, batch: Batch) -> Float[Array, ""]:
    return mean_loss(functools.partial(apply_convolutional, block), what, params, batch)


def apply_convolutional(block, params: Layers, pixels: Float[Array, "batch height width 3"]):
    """Logits: blocks, then a linear layer."""
    x = pixels
    for layer in params[:-1]:
        x = block(x, layer["weight"], layer["bias"])
    return x.reshape(x.shape[0], -1) @ params[-1]["weight"] + params[-1]["bias"][None]


def plain_block(x, weight, bias):
    """A 3 x 3 convolution, ReLU and 2 x 2 average pooling."""
    n, height, width, _ = x.shape
    padded = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    shifted = [padded[:, i : i + height, j : j + width] for i in range(3) for j in range(3)]
    x = jnp.concatenate(shifted, axis=-1) @ weight.reshape(-1, weight.shape[-1])
    x = jax.nn.relu(x + bias[None, None, None])
    return x.reshape(n, height // 2, 2, width // 2, 2, -1).mean(axis=(2, 4))


@jax.custom_vjp
def fused_block(x, weight, bias):
    """`plain_block` with kernels: three, which are the block and its derivatives."""
    return _block(x, weight, bias, signs=False)[0]


def _block(x, weight, bias, *, signs: bool):
    """The block, and where that is wanted, which numbers its ReLU lets through."""
    n, height, width, _ = x.shape
    channels = weight.shape[-1]
    size = n * height * width * channels
    result, *positive = _call(
        _block_kernel,
        (pl.cdiv(n * height * width // 4, PIXELS),),
        x.shape,
        channels,
        [(size // 4, x.dtype)] + [(size, SIGN)] * signs,
    )(x.ravel(), weight.ravel(), bias)
    return result.reshape(n, height // 2, width // 2, channels), *positive


def _forward(x, weight, bias):
    result, positive = _block(x, weight, bias, signs=True)
    return result, (x, weight, positive)


def _backward(saved, grad):
    x, weight, positive = saved
    n, height, width, inputs = x.shape
    channels = weight.shape[-1]
    parts = pl.cdiv(n * height * width, ADDED * TIMES)
    chunks = pl.cdiv(9 * inputs, CHUNK)
    of_weight, of_bias = _call(
        _weight_kernel,
        (parts, chunks),
        x.shape,
        channels,
        [(parts * weight.size, x.dtype), (parts * channels, x.dtype)],
        warps=ADDING_WARPS,
    )(x.ravel(), grad.ravel(), positive)
    (of_x,) = _call(
        _input_kernel,
        (pl.cdiv(n * height * width, PIXELS),),
        x.shape,
        channels,
        [(x.size, x.dtype)],
    )(grad.ravel(), positive, weight.ravel())
    of_weight = of_weight.reshape(parts, *weight.shape).sum(axis=0)
    of_bias = of_bias.reshape(parts, channels).sum(axis=0)
    return of_x.reshape(x.shape), of_weight, of_bias


fused_block.defvjp(_forward, _backward)


def _call(
    kernel: Callable,
    grid: tuple[int, ...],
    shape: tuple[int, ...],
    channels: int,
    results: list[tuple[int, Any]],
    warps: int = WARPS,
) -> Any:
    """A kernel, told of the shape of the block's input and the channels of its result.

    It gets and gives vectors: where a number lies is cheaper to work out for a row of them.
    """
    return pl.pallas_call(
        functools.partial(kernel, shape=shape, channels=channels, precision=precision()),
        grid=grid,
        out_shape=[jax.ShapeDtypeStruct((size,), dtype) for size, dtype in results],
        compiler_params=triton.CompilerParams(num_warps=warps, num_stages=1),
        interpret=interpreted(),
        name=kernel.__name__.strip("_"),
    )


def _block_kernel(x, weight, bias, result, *signs, shape, channels, precision):
    """One program for some pixels of the result, each of which is the mean of four."""
    images, height, width, inputs = shape
    at, (image, row, column) = _pixels(pl.program_id(0), PIXELS, height // 2, width // 2)
    channel, there = _channels(channels)
    corners = [(a, b) for a in range(2) for b in range(2)]
    totals = [jnp.zeros((PIXELS, channel.size), jnp.float32) for _ in corners]
    for first in range(0, 9 * inputs, CHUNK):
        k = first + _numbers(CHUNK)[:, None]
        matrix = _load(weight, k * channels + channel, (k < 9 * inputs) & there)
        for corner, (a, b) in enumerate(corners):
            patch = _patch(x, shape, image, 2 * row + a, 2 * column + b, first)
            totals[corner] += jnp.dot(patch, matrix, precision=precision)
    added = _load(bias, channel, there)
    inside = (image < images) & there
    mean = jnp.zeros((PIXELS, channel.size), jnp.float32)
    for (a, b), total in zip(corners, totals, strict=True):
        value = total + added
        mean += relu(value) / 4
        pixel = (image * height + 2 * row + a) * width + 2 * column + b
        for positive in signs:
            _store(positive, pixel * channels + channel, (value > 0).astype(SIGN), inside)
    _store(result, at * channels + channel, mean, inside)


def _weight_kernel(x, grad, positive, of_weight, of_bias, *, shape, channels, precision):
    """One program for some pixels, over which it adds, and some rows of the matrix."""
    _, height, width, inputs = shape
    part, chunk = pl.program_id(0), pl.program_id(1)
    channel, there = (index.T for index in _channels(channels))

    def add(time, totals):
        _, (image, row, column) = _pixels(part * TIMES + time, ADDED, height, width)
        # Channel by pixel, as it is multiplied: to turn it round later would take longer.
        of_value = _before_pooling(
            grad, positive, shape, channels, image.T, row.T, column.T, channel, there
        )
        patch = _patch(x, shape, image, row, column, chunk * CHUNK)
        product = jnp.dot(of_value, patch, precision=precision)
        return totals[0] + product, totals[1] + jnp.sum(of_value, axis=1)

    zeros = jnp.zeros((channel.size, CHUNK), jnp.float32), jnp.zeros(channel.size, jnp.float32)
    matrix, bias = jax.lax.fori_loop(0, TIMES, add, zeros)
    k = chunk * CHUNK + _numbers(CHUNK)[None, :]
    at = (part * 9 * inputs + k) * channels + channel
    _store(of_weight, at, matrix, (k < 9 * inputs) & there)
    _store(of_bias, part * channels + channel, bias[:, None], there & (chunk == 0))


def _input_kernel(grad, positive, weight, of_x, *, shape, channels, precision):
    """One program for some pixels of the input: a convolution with the weights turned round."""
    images, height, width, inputs = shape
    at, (image, row, column) = _pixels(pl.program_id(0), PIXELS, height, width)
    channel, there = _channels(inputs)
    total = jnp.zeros((PIXELS, channel.size), jnp.float32)
    for first in range(0, 9 * channels, CHUNK):
        i, j, c, valid = _places(first, channels)
        patch = _before_pooling(
            grad, positive, shape, channels, image, row + 1 - i, column + 1 - j, c, valid
        )
        at_weight = ((i * 3 + j) * inputs * channels + c).T + channel * channels
        matrix = _load(weight, at_weight, valid.T & there)
        total += jnp.dot(patch, matrix, precision=precision)
    _store(of_x, at * inputs + channel, total, (image < images) & there)


def _patch(x, shape, image, row, column, first):
    """From around some pixels, the chunk of 3 x 3 pixels that begins with `first`."""
    images, height, width, inputs = shape
    i, j, c, valid = _places(first, inputs)
    row, column = row + i - 1, column + j - 1
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width) & (image < images)
    at = ((image * height + row) * width + column) * inputs
    return _load(x, at + c, inside & valid)


def _before_pooling(grad, positive, shape, channels, image, row, column, channel, there):
    """The gradient by what goes into the ReLU; zeros outside."""
    images, height, width, _ = shape
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width) & (image < images)
    pixel = (image * height + row) * width + column
    pooled = (image * (height // 2) + (row >> 1)) * (width // 2) + (column >> 1)
    passes = _load(positive, pixel * channels + channel, inside & there)
    mean = _load(grad, pooled * channels + channel, inside & there)
    return jnp.where(passes > 0, mean / 4, 0.0)


def _places(first, inputs: int):
    """Row, column and channel of a chunk of 3 x 3 pixels, and whether it is within them.

    Row and column are one number where all of the chunk has them in common.
    """
    if inputs % CHUNK == 0:
        shift, channel = _divide(first, inputs)
        return *_divide(shift, 3), channel + _numbers(CHUNK)[None, :], jnp.ones((1, 1), bool)
    k = first + _numbers(CHUNK)[None, :]
    shift, channel = _divide(k, inputs)
    return *_divide(shift, 3), channel, k < 9 * inputs


def _pixels(tile, size: int, height: int, width: int):
    """The pixels of a tile: their numbers, and the image, row and column of each."""
    at = tile * size + _numbers(size)[:, None]
    rest, column = _divide(at, width)
    return at, (*_divide(rest, height), column)


def _channels(count: int):
    """Numbers up to a power of two, sixteen at least, and which of them are channels."""
    numbers = _numbers(padded_size(count))[None, :]
    return numbers, numbers < count


def _divide(number, by: int):
    """The quotient and the rest of numbers that are not negative."""
    number = jnp.asarray(number, jnp.int32)
    divisor = jnp.full_like(number, by)
    return jax.lax.div(number, divisor), jax.lax.rem(number, divisor)


def _load(ref, at, mask):
    return triton.load(
        ref.at[at], mask=jnp.broadcast_to(mask, at.shape), other=jnp.zeros((), ref.dtype)
    )


def _store(ref, at, value, mask):
    if interpreted():  # where it writes back what was at the places left out
        at = jnp.where(mask, at, ref.size)
    triton.store(ref.at[at], value, mask=jnp.broadcast_to(mask, at.shape))


def _numbers(count: int):
    return jnp.arange(count, dtype=jnp.int32)
