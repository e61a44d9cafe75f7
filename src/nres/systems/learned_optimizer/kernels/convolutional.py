"""A block of a convolutional network as three kernels: the block and its derivatives.

Each result of the pooling is the mean of four pixels, its corners, and these depend on 4 x 4 pixels
of the input. A program computes the four together. Unless the input has few channels, it loads each
of the 4 x 4 pixels once.
"""

import functools
import itertools
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

# The number of pooled pixels per program, and of its warps: up to 32 channels, and for more, whose
# numbers would not fit into the registers of so few.
PIXELS, WARPS = 64, (4, 8)
# The number of pooled pixels that a program adds up per iteration, of its warps as above, and the
# largest number of sums, which are added up later: for few channels of the input, and for more.
ADDED, ADDING_WARPS, PARTS = 16, (1, 8), (256, 64)
# With fewer channels of the input, a whole patch of 3 x 3 pixels is one row of a matrix.
FEW = 8
# The type of the four bits that record what the ReLU lets through. A byte would suffice, but
# kernels index an array of more than 2^31 bytes with too few bits.
BITS = jnp.int16
# Rows and columns of the four pixels of which a pooled pixel is the mean, and of the 4 x 4 pixels
# that their convolution reads.
CORNERS = tuple(itertools.product(range(2), repeat=2))
SQUARE = tuple(itertools.product(range(-1, 3), repeat=2))


def fused_loss(what: str, params: Layers, batch: Batch) -> Float[Array, ""]:
    """Compute `convolutional_loss` with kernels."""
    return block_loss(fused_block, what, params, batch)


def fused_gradient(params: Layers, batch: Batch) -> Layers:
    """Compute `convolutional_gradient` with kernels."""
    return jax.grad(functools.partial(block_loss, fused_block, "cross-entropy"))(params, batch)


@jax.custom_vjp
def fused_block(x, weight, bias):
    """Compute `plain_block` and its derivatives with three kernels."""
    return _block(x, weight, bias, passing=False)[0]


def _block(x, weight, bias, *, passing: bool):
    """Compute the block and, with `passing`, which pixels its ReLU lets through.

    These are four bits per pooled pixel, one for each of its pixels.
    """
    n, height, width, _ = x.shape
    channels = weight.shape[-1]
    pooled = n * height * width // 4
    result, *passed = _call(
        _block_kernel,
        (pl.cdiv(pooled, PIXELS),),
        x.shape,
        channels,
        [(pooled * channels, x.dtype)] + [(pooled * channels, BITS)] * passing,
    )(x.ravel(), weight.ravel(), bias)
    return result.reshape(n, height // 2, width // 2, channels), *passed


def _forward(x, weight, bias):
    result, passed = _block(x, weight, bias, passing=True)
    return result, (x, weight, passed)


def _backward(saved, grad):
    x, weight, passed = saved
    n, height, width, inputs = x.shape
    channels = weight.shape[-1]
    pooled = n * height * width // 4
    few = inputs < FEW
    times = pl.cdiv(pooled, ADDED * PARTS[not few])
    parts = pl.cdiv(pooled, ADDED * times)
    of_weight, of_bias = _call(
        functools.partial(_weight_kernel, times=times),
        (parts, 1 if few else 3),
        x.shape,
        channels,
        [(parts * weight.size, x.dtype), (parts * channels, x.dtype)],
        ADDING_WARPS,
    )(x.ravel(), grad.ravel(), passed)
    (of_x,) = _call(
        _input_kernel, (pl.cdiv(pooled, PIXELS),), x.shape, channels, [(x.size, x.dtype)]
    )(grad.ravel(), passed, weight.ravel())
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
    warps: tuple[int, int] = WARPS,
) -> Any:
    """Prepare a kernel for the shape of the block's input and the channels of its result.

    Its arguments and results are vectors, for which indices are cheaper to compute.
    """
    return pl.pallas_call(
        functools.partial(kernel, shape=shape, channels=channels, precision=precision()),
        grid=grid,
        out_shape=[jax.ShapeDtypeStruct((size,), dtype) for size, dtype in results],
        compiler_params=triton.CompilerParams(
            num_warps=warps[max(shape[-1], channels) > 32], num_stages=1
        ),
        interpret=interpreted(),
        name=getattr(kernel, "func", kernel).__name__.strip("_"),
    )


def _block_kernel(x, weight, bias, result, *passed, shape, channels, precision):
    """Compute some pooled pixels per program."""
    images, height, width, inputs = shape
    at, (image, row, column) = _pixels(pl.program_id(0), PIXELS, height // 2, width // 2)
    channel, there = _channels(channels)
    if inputs < FEW:
        k, exists = _channels(9 * inputs)
        matrix = load(weight, k.T * channels + channel, exists.T & there)
        totals = {}
        for a, b in CORNERS:
            patch = _patch(x, shape, image, 2 * row + a, 2 * column + b, k)
            totals[a, b] = jnp.dot(patch, matrix, precision=precision)
    else:
        k, exists = _channels(inputs)

        def pixels(r, c):
            return _pixel(x, shape, image, 2 * row + r, 2 * column + c, k, exists)

        def tap(i, j):
            at = (3 * i + j) * inputs + k.T
            return load(weight, at * channels + channel, exists.T & there)

        totals = _convolved(pixels, tap, precision)
    added = load(bias, channel, there)
    values = {corner: total + added for corner, total in totals.items()}
    at, inside = at * channels + channel, (image < images) & there
    mean: Any = sum(relu(value) for value in values.values()) / 4
    store(result, at, mean, inside)
    for ref in passed:
        bits: Any = sum((value > 0).astype(jnp.int32) << _bit(*c) for c, value in values.items())
        store(ref, at, bits.astype(ref.dtype), inside)


def _weight_kernel(x, grad, passed, of_weight, of_bias, *, times, shape, channels, precision):
    """Add up the gradient of the weights over some pooled pixels per program.

    With few channels of the input, these are all weights, otherwise a row of the 3 x 3 matrices.
    """
    _, height, width, inputs = shape
    part, i = pl.program_id(0), pl.program_id(1)
    channel, there = _channels(channels)
    few = inputs < FEW
    # Channel by pixel, as the product needs the input: transposing it later would take longer.
    k, exists = (index.T for index in _channels(9 * inputs if few else inputs))

    def add(time, totals):
        _, (image, row, column) = _pixels(part * times + time, ADDED, height // 2, width // 2)
        of_values = _before_pooling(
            grad, passed, shape, channels, image, row, column, channel, there
        )
        image, row, column = image.T, row.T, column.T
        *totals, total = totals
        if few:
            for (a, b), of_value in of_values.items():
                patch = _patch(x, shape, image, 2 * row + a, 2 * column + b, k)
                totals[0] += jnp.dot(patch, of_value, precision=precision)
        else:
            for a, c in itertools.product(range(2), range(-1, 3)):
                pixels = _pixel(x, shape, image, 2 * row + a + i - 1, 2 * column + c, k, exists)
                for b in range(max(0, c - 1), min(1, c + 1) + 1):
                    product = jnp.dot(pixels, of_values[a, b], precision=precision)
                    totals[c - b + 1] += product
        return *totals, total + jnp.sum(sum(of_values.values()), axis=0)

    zeros = [jnp.zeros((k.size, channel.size), jnp.float32)] * (1 if few else 3)
    zeros.append(jnp.zeros(channel.size, jnp.float32))
    *totals, total = jax.lax.fori_loop(0, times, add, tuple(zeros))
    for j, matrix in enumerate(totals):
        at = ((part * 9 + 3 * i + j) * inputs + k) * channels + channel
        store(of_weight, at, matrix, exists & there)
    store(of_bias, part * channels + channel, total[None, :], there & (i == 0))


def _input_kernel(grad, passed, weight, of_x, *, shape, channels, precision):
    """Compute the gradient of some input pixels per program: a transposed convolution."""
    images, height, width, inputs = shape
    _, (image, row, column) = _pixels(pl.program_id(0), PIXELS, height // 2, width // 2)
    channel, there = _channels(inputs)
    k, exists = _channels(channels)

    def pixels(r, c):
        (down, a), (right, b) = divmod(r, 2), divmod(c, 2)
        place = image, row + down, column + right
        return _before_pooling(grad, passed, shape, channels, *place, k, exists)[a, b]

    def tap(i, j):
        at = (3 * (2 - i) + 2 - j) * inputs + channel
        return load(weight, at * channels + k.T, exists.T & there)

    for (a, b), total in _convolved(pixels, tap, precision).items():
        pixel = (image * height + 2 * row + a) * width + 2 * column + b
        store(of_x, pixel * inputs + channel, total, (image < images) & there)


def _convolved(pixels: Callable, tap: Callable, precision):
    """Compute the four results of a 3 x 3 convolution that belong to one pooled pixel.

    Args:
        pixels: A function from row and column, from -1 to 2, to the input there.
        tap: A function from row and column, from 0 to 2, to the matrix there.
        precision: The precision of the products.
    """
    totals: dict[tuple[int, int], Any] = {}
    for r, c in SQUARE:
        value = pixels(r, c)
        for corner, place in _taps(r, c):
            product = jnp.dot(value, tap(*place), precision=precision)
            totals[corner] = totals[corner] + product if corner in totals else product
    return totals


def _taps(r: int, c: int) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Return the corners whose 3 x 3 neighbours include this pixel, and its place there."""
    places = [((a, b), (r - a + 1, c - b + 1)) for a, b in CORNERS]
    return [(corner, (i, j)) for corner, (i, j) in places if 0 <= i < 3 and 0 <= j < 3]


def _bit(a: int, b: int) -> int:
    """Return the bit that records whether the ReLU lets this corner through."""
    return 2 * a + b


def _pixel(x, shape, image, row, column, channel, there):
    """Load some pixels, with zeros outside the image."""
    images, height, width, inputs = shape
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width) & (image < images)
    at = (image * height + row) * width + column
    return load(x, at * inputs + channel, inside & there)


def _patch(x, shape, image, row, column, k):
    """Load the 3 x 3 neighbourhoods of some pixels, whose elements k numbers."""
    shift, channel = _divide(k, shape[-1])
    i, j = _divide(shift, 3)
    return _pixel(x, shape, image, row + i - 1, column + j - 1, channel, i < 3)


def _before_pooling(grad, passed, shape, channels, image, row, column, channel, there):
    """Compute the gradients of the four ReLUs behind some pooled pixels, 0 outside the image."""
    images, height, width, _ = shape
    height, width = height // 2, width // 2
    shape = images, height, width, channels
    mean = _pixel(grad, shape, image, row, column, channel, there) / 4
    bits = _pixel(passed, shape, image, row, column, channel, there).astype(jnp.int32)
    return {c: jnp.where(bits & (1 << _bit(*c)) != 0, mean, 0.0) for c in CORNERS}


def _pixels(tile, size: int, height: int, width: int):
    """Number the pixels of a tile, and return the image, row and column of each."""
    at = tile * size + _numbers(size)[:, None]
    rest, column = _divide(at, width)
    return at, (*_divide(rest, height), column)


def _channels(count: int):
    """Number channels up to a power of two, at least sixteen, with a mask of those that exist."""
    numbers = _numbers(padded_size(count))[None, :]
    return numbers, numbers < count


def _divide(number, by: int):
    """Return quotient and remainder of numbers that are not negative."""
    number = jnp.asarray(number, jnp.int32)
    divisor = jnp.full_like(number, by)
    return jax.lax.div(number, divisor), jax.lax.rem(number, divisor)


def _numbers(count: int):
    return jnp.arange(count, dtype=jnp.int32)
