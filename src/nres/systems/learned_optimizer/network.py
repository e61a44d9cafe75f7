"""The work of a learned optimizer: one network applied to every parameter of a model.

There are two ways to do it, which give the same numbers up to rounding: in plain JAX, and as two
kernels for GPUs that keep what lies between the layers out of memory.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jaxtyping import Array, Float

from nres.systems.learned_optimizer.fusing import (
    derivatives_of,
    interpreted,
    on_nvidia,
    precision,
    relu,
)

DECAYS = (0.1, 0.5, 0.9, 0.99, 0.999, 0.9999)
MEANS = len(DECAYS)
ROWS = MEANS + 2


class Network(NamedTuple):
    """How weights lie in one vector: of each layer the matrix, input by input, then the bias."""

    sizes: tuple[int, ...]
    """Inputs, hidden layers, outputs."""

    @property
    def size(self) -> int:
        """How many numbers there are."""
        return sum(n * (m + 1) for m, n in zip(self.sizes, self.sizes[1:], strict=False))

    def offsets(self) -> list[tuple[int, int]]:
        """Where each layer's matrix and bias begin."""
        starts, at = [], 0
        for inputs, outputs in zip(self.sizes, self.sizes[1:], strict=False):
            starts.append((at, at + inputs * outputs))
            at += (inputs + 1) * outputs
        return starts

    def layers(self, theta: Float[Array, "d"]) -> list[tuple[Array, Array]]:
        """Matrices and biases."""
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
    """What the network is applied to."""

    time: Float[Array, "times"]
    """The same for all parameters of the model."""
    grad: Float[Array, "size"]
    """Of all tensors of the model, one after the other."""
    param: Float[Array, "size"]
    means: Float[Array, "6 size"]
    """Running means of the gradient, up to the last step."""


Result = tuple[Float[Array, "size"], Float[Array, "6 size"]]


def network_step(
    network: Network, tensors: tuple[int, ...], theta: Float[Array, "d"], inputs: Inputs
) -> Result:
    r"""How a network changes the parameters of a model.

    It sees the running means of a parameter's gradient, brought up to date, then the gradient and
    the parameter itself, each divided by $\sqrt{10^{-5} + \text{mean square over the tensor}}$,
    and the time; its outputs $a, b$ make the change $-0.001\, a\, e^{0.001 b}$.

    **Arguments:**

    - `network`: its shape; ReLU between the layers.
    - `tensors`: the sizes of the model's tensors.
    - `theta`: the network's weights.
    - `inputs`: what it is applied to.

    **Returns:** the change of each parameter, and the new running means.
    """
    if on_nvidia() and fusable(network, theta, inputs):
        return fused_step(network, tensors, theta, inputs)
    return plain_step(network, tensors, theta, inputs)


def plain_step(
    network: Network, tensors: tuple[int, ...], theta: Float[Array, "d"], inputs: Inputs
) -> Result:
    """`network_step` in plain JAX: the reference."""
    dtype = inputs.means.dtype
    decays = jnp.asarray(DECAYS, dtype)[:, None]
    # Subtracted before it is rounded: little is left of one minus 0.9999 in single precision.
    rest = jnp.asarray([1 - decay for decay in DECAYS], dtype)[:, None]
    means = decays * inputs.means + rest * inputs.grad[None]
    rows = jnp.concatenate([means, inputs.grad[None], inputs.param[None]])
    parts = jnp.split(rows, np.cumsum(tensors)[:-1], axis=1)
    scaled = [x * jax.lax.rsqrt(1e-5 + jnp.mean(x**2, axis=1, keepdims=True)) for x in parts]
    (first, bias), *others = network.layers(theta)
    # What the time contributes to the first layer is the same for every parameter.
    layers = [(first[:ROWS], bias + inputs.time @ first[ROWS:]), *others]
    x = jnp.concatenate(scaled, axis=1).T
    for i, (weight, bias) in enumerate(layers):
        x = x @ weight + bias[None]
        if i < len(layers) - 1:
            x = jnp.maximum(x, 0)
    return _change(x[:, 0], x[:, 1]), means


def _change(direction, magnitude):
    return -0.001 * direction * jnp.exp(0.001 * magnitude)


def fusable(network: Network, theta: Array, inputs: Inputs) -> bool:
    """Whether the kernels can do it: they work in single precision on blocks of powers of two."""
    return all(array.dtype == jnp.float32 for array in (theta, *inputs)) and all(
        16 <= width <= 128 and width & (width - 1) == 0 for width in network.sizes[1:-1]
    )


@derivatives_of(plain_step, static=2)
def fused_step(
    network: Network, tensors: tuple[int, ...], theta: Float[Array, "d"], inputs: Inputs
) -> Result:
    """`network_step` as two kernels for GPUs.

    The first brings the running means up to date and measures the tensors; the second applies
    the network. Derivatives are those of `plain_step`.
    """
    time, grad, param, means = inputs
    call = functools.partial(pl.pallas_call, interpret=interpreted())
    starts = np.cumsum((0, *tensors[:-1]))
    means, scales = call(
        _measure_kernel,
        grid=(len(tensors),),
        out_shape=(
            jax.ShapeDtypeStruct(means.shape, means.dtype),
            jax.ShapeDtypeStruct((len(tensors), ROWS), means.dtype),
        ),
        compiler_params=triton.CompilerParams(num_warps=MEASURE_WARPS),
        name="measure",
    )(jnp.asarray(np.stack([starts, tensors]), jnp.int32), grad, param, means)
    block, warps, loops = BLOCKS[max(network.sizes[1:-1]) > 64]
    programs = [
        (tensor, start + first, start + min(first + block * loops, size))
        for tensor, (start, size) in enumerate(zip(starts, tensors, strict=True))
        for first in range(0, size, block * loops)
    ]
    change = call(
        functools.partial(_network_kernel, network=network, block=block, precision=precision()),
        grid=(len(programs),),
        out_shape=jax.ShapeDtypeStruct(grad.shape, grad.dtype),
        compiler_params=triton.CompilerParams(num_warps=warps, num_stages=1),
        name="network",
    )(jnp.asarray(np.array(programs).T, jnp.int32), scales, theta, time, grad, param, means)
    return change, means


# Parameters that a program of the first kernel looks at a time, and its warps.
MEASURED, MEASURE_WARPS = 512, 4
# The same for the second, and how often it does so: for narrow networks, and for wide ones.
BLOCKS = {False: (128, 4, 4), True: (64, 4, 8)}


def _measure_kernel(table, grad, param, old, new, scales):
    """One program for each tensor."""
    tensor = pl.program_id(0)
    start, size = table[0, tensor], table[1, tensor]
    lanes = jnp.arange(MEASURED, dtype=jnp.int32)

    def part(i, sums):
        offset = i * MEASURED + lanes
        inside = offset < size
        at = start + offset
        load = functools.partial(triton.load, mask=inside, other=0.0)
        g = load(grad.at[at])
        rows = []
        for row, decay in enumerate(DECAYS):
            mean = decay * load(old.at[row, at]) + (1 - decay) * g
            triton.store(new.at[row, at], mean, mask=inside)
            rows.append(mean)
        rows += [g, load(param.at[at])]
        return tuple(total + row * row for total, row in zip(sums, rows, strict=True))

    zeros = (jnp.zeros(MEASURED, jnp.float32),) * ROWS
    sums = jax.lax.fori_loop(0, pl.cdiv(size, MEASURED), part, zeros)
    for row, total in enumerate(sums):
        mean = jnp.sum(total) / size.astype(jnp.float32)
        scales[tensor, row] = jax.lax.rsqrt(1e-5 + mean)


def _network_kernel(
    programs, scales, theta, time, grad, param, means, change, *, network, block, precision
):
    """One program for some parameters of one tensor; it keeps the weights at hand."""
    tensor, start, end = (programs[i, pl.program_id(0)] for i in range(3))
    inputs, *hidden, _ = network.sizes
    (matrix, bias_at), *others, last = network.offsets()
    numbers = functools.partial(jnp.arange, dtype=jnp.int32)

    def rows(at, count, width, there):
        """Rows of a matrix; zeros from the row on that is not there any more."""
        row, column = numbers(count)[:, None], numbers(width)[None, :]
        mask = (row < there) & (column < width)
        return triton.load(theta.at[at + row * width + column], mask=mask, other=0.0)

    def vector(at, width):
        return theta[pl.ds(at, width)]

    # Matrix units want at least sixteen inputs: those after the six are zeros.
    row = numbers(16)
    scale = triton.load(scales.at[tensor, row], mask=row < MEANS, other=0.0)
    first = rows(matrix, 16, hidden[0], MEANS) * scale[:, None]
    alone = [
        vector(matrix + (MEANS + i) * hidden[0], hidden[0]) * scales[tensor, MEANS + i]
        for i in range(2)
    ]
    clock = triton.load(time.at[row], mask=row < inputs - ROWS, other=0.0)
    of_time = rows(matrix + ROWS * hidden[0], 16, hidden[0], inputs - ROWS)
    bias = vector(bias_at, hidden[0]) + jnp.sum(of_time * clock[:, None], axis=0)
    layers = [
        (rows(matrix, m, n, m), vector(bias_at, n))
        for (matrix, bias_at), m, n in zip(others, hidden, hidden[1:], strict=False)
    ]
    ends = [theta.at[last[0] + 2 * numbers(hidden[-1]) + i][...] for i in range(2)]

    def part(i, carry):
        at = start + i * block + numbers(block)
        inside = at < end
        load = functools.partial(triton.load, mask=inside, other=0.0)
        x = triton.load(
            means.at[row[None, :], at[:, None]],
            mask=inside[:, None] & (row < MEANS)[None, :],
            other=0.0,
        )
        x = jnp.dot(x, first, precision=precision) + bias[None, :]
        for ref, weight in zip((grad, param), alone, strict=True):
            x += load(ref.at[at])[:, None] * weight[None, :]
        x = relu(x)
        for weight, added in layers:
            x = relu(jnp.dot(x, weight, precision=precision) + added[None, :])
        direction, magnitude = (
            jnp.sum(x * weight[None, :], axis=1) + theta[last[1] + i]
            for i, weight in enumerate(ends)
        )
        triton.store(change.at[at], _change(direction, magnitude), mask=inside)
        return carry

    jax.lax.fori_loop(0, pl.cdiv(end - start, block), part, None)
