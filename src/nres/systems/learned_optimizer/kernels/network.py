"""`network_step` as two kernels: one measures the tensors of a model, one applies the network."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jaxtyping import Array, Float

from nres.systems.learned_optimizer.fusing import interpreted, precision, relu
from nres.systems.learned_optimizer.network import (
    DECAYS,
    MEANS,
    ROWS,
    Inputs,
    Network,
    Result,
    parameter_change,
)


def fused_step(
    network: Network,
    tensors: tuple[int, ...],
    added: bool,
    theta: Float[Array, " d"],
    inputs: Inputs,
) -> Result:
    """Compute `network_step` with two kernels for GPUs.

    Both compute the new running means: the first to measure the tensors, the second to apply the
    network and to store them.
    """
    time, grad, param, means, t = inputs
    call = functools.partial(pl.pallas_call, interpret=interpreted())
    starts = np.cumsum((0, *tensors[:-1]))
    scales = call(
        _measure_kernel,
        grid=(len(tensors),),
        out_shape=jax.ShapeDtypeStruct((len(tensors), ROWS), means.dtype),
        compiler_params=triton.CompilerParams(num_warps=MEASURE_WARPS),
        name="measure",
    )(jnp.asarray(np.stack([starts, tensors]), jnp.int32), t[None], grad, param, means)
    block, warps, loops = BLOCKS[max(network.sizes[1:-1]) > 64]
    programs = [
        (tensor, start + first, start + min(first + block * loops, size))
        for tensor, (start, size) in enumerate(zip(starts, tensors, strict=True))
        for first in range(0, size, block * loops)
    ]
    products = precision(moderate=True)
    return call(
        functools.partial(
            _network_kernel, network=network, added=added, block=block, precision=products
        ),
        grid=(len(programs),),
        out_shape=(
            jax.ShapeDtypeStruct(grad.shape, grad.dtype),
            jax.ShapeDtypeStruct(means.shape, means.dtype),
        ),
        input_output_aliases={7: 1},  # the means, in place: a program reads what it writes
        compiler_params=triton.CompilerParams(num_warps=warps, num_stages=1),
        name="network",
    )(
        jnp.asarray(np.array(programs).T, jnp.int32),
        scales,
        theta,
        time,
        t[None],
        grad,
        param,
        means,
    )


HALF_MAX = 65504.0
# The number of parameters that a program of the first kernel reads per iteration, and of its warps.
MEASURED, MEASURE_WARPS = 512, 2
# Parameters per iteration, warps and iterations of the second kernel, for narrow and wide networks.
BLOCKS = {False: (128, 4, 4), True: (64, 4, 8)}


def _measure_kernel(table, t, grad, param, means, scales):
    """Measure one tensor per program, with its new running means, which are not stored."""
    tensor = pl.program_id(0)
    start, size, later = table[0, tensor], table[1, tensor], t[0] > 0
    lanes = jnp.arange(MEASURED, dtype=jnp.int32)

    def part(i, sums):
        offset = i * MEASURED + lanes
        inside = offset < size
        at = start + offset
        load = functools.partial(triton.load, mask=inside, other=0.0)
        g, p = load(grad.at[at]), load(param.at[at])
        before = [
            triton.load(means.at[row, at], mask=inside & later, other=0.0) for row in range(MEANS)
        ]
        rows = [decay * mean + (1 - decay) * g for decay, mean in zip(DECAYS, before, strict=True)]
        return tuple(total + row * row for total, row in zip(sums, [*rows, g, p], strict=True))

    zeros = (jnp.zeros(MEASURED, jnp.float32),) * ROWS
    sums = jax.lax.fori_loop(0, pl.cdiv(size, MEASURED), part, zeros)
    for row, total in enumerate(sums):
        mean = jnp.sum(total) / size.astype(jnp.float32)
        scales[tensor, row] = jax.lax.rsqrt(1e-5 + mean)


def _network_kernel(
    programs,
    scales,
    theta,
    time,
    t,
    grad,
    param,
    old,
    result,
    new,
    *,
    network,
    added,
    block,
    precision,
):
    """Apply the network to some parameters of one tensor per program, and store their means.

    A program keeps the weights.
    """
    tensor, start, end = (programs[i, pl.program_id(0)] for i in range(3))
    inputs, *hidden, _ = network.sizes
    (matrix, bias_at), *others, last = network.offsets()
    numbers = functools.partial(jnp.arange, dtype=jnp.int32)
    dot = functools.partial(jnp.dot, precision=precision, preferred_element_type=jnp.float32)

    def rows(at, count, width, there):
        """Load rows of a matrix, with zeros after the last existing row."""
        row, column = numbers(count)[:, None], numbers(width)[None, :]
        mask = (row < there) & (column < width)
        return triton.load(theta.at[at + row * width + column], mask=mask, other=0.0)

    def vector(at, width):
        return theta[pl.ds(at, width)]

    # Matrix units take sixteen inputs: the eight of a parameter, two ones that multiply the bias
    # (rounded to half precision, and the remainder), and zeros.
    row = numbers(16)
    scale = triton.load(scales.at[tensor, row], mask=row < ROWS, other=0.0)[None, :]
    clock = triton.load(time.at[row], mask=row < inputs - ROWS, other=0.0)
    of_time = rows(matrix + ROWS * hidden[0], 16, hidden[0], inputs - ROWS)
    bias = vector(bias_at, hidden[0]) + jnp.sum(of_time * clock[:, None], axis=0)
    rounded = jnp.clip(bias, -HALF_MAX, HALF_MAX).astype(jnp.float16).astype(jnp.float32)
    first = rows(matrix, 16, hidden[0], ROWS)
    first = jnp.where(row[:, None] == ROWS, rounded[None, :], first)
    first = jnp.where(row[:, None] == ROWS + 1, (bias - rounded)[None, :], first)
    ones = ((row >= ROWS) & (row < ROWS + 2)).astype(jnp.float32)[None, :]
    # The input after the means is the gradient itself, as a mean that forgets at once.
    zeros = jnp.zeros(row.shape)
    keep, take = (
        sum((jnp.where(row == i, factor, 0.0) for i, factor in enumerate(factors)), zeros)[None, :]
        for factors in ((*DECAYS, 0.0), (*(1 - decay for decay in DECAYS), 1.0))
    )
    is_mean, later = (row < MEANS)[None, :], t[0] > 0
    layers = [
        (rows(matrix, m, n, m), vector(bias_at, n))
        for (matrix, bias_at), m, n in zip(others, hidden, hidden[1:], strict=False)
    ]
    at = last[0] + 2 * numbers(hidden[-1])[:, None] + row[None, :]
    is_output = jnp.broadcast_to((row < 2)[None, :], at.shape)
    last_matrix = triton.load(theta.at[at], mask=is_output, other=0.0)
    last_bias = theta[last[1]], theta[last[1] + 1]

    def part(i, carry):
        at = start + i * block + numbers(block)
        inside = at < end
        load = functools.partial(triton.load, mask=inside, other=0.0)
        here = inside[:, None] & is_mean
        place = row[None, :], at[:, None]
        before = triton.load(old.at[place], mask=here & later, other=0.0)
        g, p = load(grad.at[at]), load(param.at[at])
        x = keep * before + take * g[:, None]
        triton.store(new.at[place], x, mask=here)
        x = jnp.where(row[None, :] == MEANS + 1, p[:, None], x)
        x = relu(dot(x * scale + ones, first))
        for weight, bias in layers:
            x = relu(dot(x, weight) + bias[None, :])
        outputs = dot(x, last_matrix)
        direction, magnitude = (
            jnp.sum(jnp.where(row[None, :] == i, outputs, 0.0), axis=1) + last
            for i, last in enumerate(last_bias)
        )
        change = parameter_change(direction, magnitude)
        triton.store(result.at[at], p + change if added else change, mask=inside)
        return carry

    jax.lax.fori_loop(0, pl.cdiv(end - start, block), part, None)
