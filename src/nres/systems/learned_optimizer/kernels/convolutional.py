"""A block of a convolutional network as three kernels: the block and its derivatives."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jaxtyping import Array, Float

from nres.systems.learned_optimizer.convolutional import block_loss
from nres.systems.learned_optimizer.fusing import (
    Batch,
    Layers,
    interpreted,
    padded_size,
    precision,
    relu,
)
from nres.systems.learned_optimizer.kernels.memory import load, store

# The number of result pixels per program, and of its warps.
PIXELS, WARPS = 64, 4
# The number of pixels that a program adds up per iteration, of its iterations, and of its warps.
ADDED, TIMES, ADDING_WARPS = 32, 4, 1
# The number of elements of a patch that are multiplied at a time.
CHUNK = 32
# The type of the recorded signs of a ReLU's inputs. A byte would suffice, but kernels index an
# array of more than 2^31 bytes with too few bits.
SIGN = jnp.int16


def fused_loss(what: str, params: Layers, batch: Batch) -> Float[Array, ""]:
    """Compute `convolutional_loss` with kernels."""
    return block_loss(fused_block, what, params, batch)


def fused_gradient(params: Layers, batch: Batch) -> Layers:
    """Compute `convolutional_gradient` with kernels."""
    return jax.grad(functools.partial(block_loss, fused_block, "cross-entropy"))(params, batch)


@jax.custom_vjp
def fused_block(x, weight, bias):
    """Compute `plain_block` and its derivatives with three kernels."""
    return _block(x, weight, bias, signs=False)[0]


def _block(x, weight, bias, *, signs: bool):
    """Compute the block and, with `signs`, a mask of the numbers that its ReLU lets through."""
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
    """Prepare a kernel for the shape of the block's input and the channels of its result.

    Its arguments and results are vectors, for which indices are cheaper to compute.
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
    """Compute some pixels of the result per program, each the mean of four."""
    images, height, width, inputs = shape
    at, (image, row, column) = _pixels(pl.program_id(0), PIXELS, height // 2, width // 2)
    channel, there = _channels(channels)
    corners = [(a, b) for a in range(2) for b in range(2)]
    totals = [jnp.zeros((PIXELS, channel.size), jnp.float32) for _ in corners]
    for first in range(0, 9 * inputs, CHUNK):
        k = first + _numbers(CHUNK)[:, None]
        matrix = load(weight, k * channels + channel, (k < 9 * inputs) & there)
        for corner, (a, b) in enumerate(corners):
            patch = _patch(x, shape, image, 2 * row + a, 2 * column + b, first)
            totals[corner] += jnp.dot(patch, matrix, precision=precision)
    added = load(bias, channel, there)
    inside = (image < images) & there
    mean = jnp.zeros((PIXELS, channel.size), jnp.float32)
    for (a, b), total in zip(corners, totals, strict=True):
        value = total + added
        mean += relu(value) / 4
        pixel = (image * height + 2 * row + a) * width + 2 * column + b
        for positive in signs:
            store(positive, pixel * channels + channel, (value > 0).astype(SIGN), inside)
    store(result, at * channels + channel, mean, inside)


def _weight_kernel(x, grad, positive, of_weight, of_bias, *, shape, channels, precision):
    """Add up the gradient of some rows of the matrix over some pixels per program."""
    _, height, width, inputs = shape
    part, chunk = pl.program_id(0), pl.program_id(1)
    channel, there = (index.T for index in _channels(channels))

    def add(time, totals):
        _, (image, row, column) = _pixels(part * TIMES + time, ADDED, height, width)
        # Channel by pixel, as the product needs it: transposing it later would take longer.
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
    store(of_weight, at, matrix, (k < 9 * inputs) & there)
    store(of_bias, part * channels + channel, bias[:, None], there & (chunk == 0))


def _input_kernel(grad, positive, weight, of_x, *, shape, channels, precision):
    """Compute the gradient of some input pixels per program: a transposed convolution."""
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
        matrix = load(weight, at_weight, valid.T & there)
        total += jnp.dot(patch, matrix, precision=precision)
    store(of_x, at * inputs + channel, total, (image < images) & there)


def _patch(x, shape, image, row, column, first):
    """Load the chunk that begins with `first` of the 3 x 3 neighbourhoods of some pixels."""
    images, height, width, inputs = shape
    i, j, c, valid = _places(first, inputs)
    row, column = row + i - 1, column + j - 1
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width) & (image < images)
    at = ((image * height + row) * width + column) * inputs
    return load(x, at + c, inside & valid)


def _before_pooling(grad, positive, shape, channels, image, row, column, channel, there):
    """Compute the gradient with respect to the ReLU's input, with zeros outside the image."""
    images, height, width, _ = shape
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width) & (image < images)
    pixel = (image * height + row) * width + column
    pooled = (image * (height // 2) + (row >> 1)) * (width // 2) + (column >> 1)
    passes = load(positive, pixel * channels + channel, inside & there)
    mean = load(grad, pooled * channels + channel, inside & there)
    return jnp.where(passes > 0, mean / 4, 0.0)


def _places(first, inputs: int):
    """Return row, column and channel of a chunk of 3 x 3 pixels, and a mask of those that exist.

    Row and column are scalars if the whole chunk shares them.
    """
    if inputs % CHUNK == 0:
        shift, channel = _divide(first, inputs)
        return *_divide(shift, 3), channel + _numbers(CHUNK)[None, :], jnp.ones((1, 1), bool)
    k = first + _numbers(CHUNK)[None, :]
    shift, channel = _divide(k, inputs)
    return *_divide(shift, 3), channel, k < 9 * inputs


def _pixels(tile, size: int, height: int, width: int):
    """Number the pixels of a tile, and return the image, row and column of each."""
    at = tile * size + _numbers(size)[:, None]
    rest, column = _divide(at, width)
    return at, (*_divide(rest, height), column)


def _channels(count: int):
    """Return numbers up to a power of two, at least sixteen, and a mask of the channels."""
    numbers = _numbers(padded_size(count))[None, :]
    return numbers, numbers < count


def _divide(number, by: int):
    """Return quotient and remainder of numbers that are not negative."""
    number = jnp.asarray(number, jnp.int32)
    divisor = jnp.full_like(number, by)
    return jax.lax.div(number, divisor), jax.lax.rem(number, divisor)


def _numbers(count: int):
    return jnp.arange(count, dtype=jnp.int32)
