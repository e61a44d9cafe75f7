"""The loss and the gradient of a perceptron, each as one kernel.

The models that learned optimizers train are so small that a GPU would spend most of the time
starting kernels. Here one program computes everything for one model and one batch.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jaxtyping import Array, Float

from nres.systems.learned_optimizer.fusing import Batch, interpreted, padded_size, precision
from nres.systems.learned_optimizer.kernels.memory import load, store
from nres.systems.learned_optimizer.losses import cap
from nres.systems.learned_optimizer.vectors import Layout

WARPS = 8


def fused_loss(
    what: str, layout: Layout, params: Float[Array, " size"], batch: Batch
) -> Float[Array, ""]:
    """Compute `dense_loss` in one kernel."""
    result = jax.ShapeDtypeStruct((1,), jnp.float32)
    return _call("loss", _loss_kernel, layout, params, batch, result, what=what)[0]


def fused_gradient(
    layout: Layout, params: Float[Array, " size"], batch: Batch
) -> Float[Array, " size"]:
    """Compute `dense_gradient` in one kernel."""
    result = jax.ShapeDtypeStruct(params.shape, params.dtype)
    return _call("gradient", _gradient_kernel, layout, params, batch, result)


def _call(name, kernel, layout, params, batch, result, **options):
    images, labels = batch
    return pl.pallas_call(
        functools.partial(kernel, layout=layout, **options),
        out_shape=result,
        compiler_params=triton.CompilerParams(num_warps=WARPS, num_stages=1),
        interpret=interpreted(),
        name=name,
    )(images.reshape(images.shape[0], -1), labels.astype(jnp.int32), params)


def _gradient_kernel(images, labels, vector, result, *, layout):
    """Compute the gradient of one model on one batch per program.

    Registers are scarce, so the program keeps only the preactivations and recomputes the rest.
    """
    model, pixels, target = _model(vector, layout), _bytes(images), labels[...]
    *preactivations, logits = _forward(model, pixels)
    logits, largest, total, classes = _exponentials(logits, layout)
    chosen = (classes == target[:, None]).astype(jnp.float32)
    # The gradient with respect to the preactivations, from the last layer to the first.
    after = (jnp.exp(logits - largest[:, None]) / total[:, None] - chosen) / logits.shape[0]
    parts = list(zip(layout.starts, layout.shapes, strict=True))
    for i, (_, weight) in reversed(list(enumerate(model))):
        bias_part, weight_part = parts[2 * i : 2 * i + 2]
        _write(result, bias_part, jnp.sum(after, axis=0))
        if i:
            x, slope = _gelu(preactivations.pop())
            _write(result, weight_part, x.T @ after)
            after = (after @ weight.T) * slope
        else:
            _write(result, weight_part, (pixels.astype(jnp.float32).T @ after) * (1 / 255))


def _loss_kernel(images, labels, vector, result, *, layout, what):
    """Compute the loss of one model on one batch per program."""
    model, pixels, target = _model(vector, layout), _bytes(images), labels[...]
    *_, logits = _forward(model, pixels)
    logits, largest, total, classes = _exponentials(logits, layout)
    chosen = jnp.sum(jnp.where(classes == target[:, None], logits, 0.0), axis=1)
    losses = jnp.log(total) + largest - chosen
    if what == "capped":
        most = cap(layout.shapes[-1][-1])
        losses = jnp.where(losses > most, most, losses)
    result[0] = jnp.sum(losses) / logits.shape[0]


def _model(vector, layout: Layout) -> list[tuple[Array, Array]]:
    """Read the bias and the weight of each layer; in the vector, they have this order."""
    parts = zip(layout.starts, layout.shapes, strict=True)
    leaves = [load(vector, *_places(*part)) for part in parts]
    return list(zip(leaves[::2], leaves[1::2], strict=True))


def _forward(model, pixels):
    """Return the preactivations of the hidden layers, and the logits."""
    found: list[Array] = []
    for bias, weight in model:
        if found:
            x = _gelu(found[-1])[0] @ weight
        else:  # bytes are exact in TF32; fractions would not be
            x = (pixels.astype(jnp.float32) @ weight) * (1 / 255)
        found.append(x + bias[None, :])
    return found


def _gelu(x):
    """Return `jax.nn.gelu` and its derivative, in few instructions."""
    a, b = math.sqrt(2 / math.pi), 0.044715 * math.sqrt(2 / math.pi)
    square, half = x * x, 0.5 * x
    # The GPU's own tanh: it changes gradients less than TF32 does.
    quick = precision() == jax.lax.DotAlgorithmPreset.TF32_TF32_F32
    tanh = (triton.approx_tanh if quick else jnp.tanh)(x * (a + b * square))
    slope = 0.5 + 0.5 * tanh + half * (1 - tanh * tanh) * (a + 3 * b * square)
    return half + half * tanh, slope


def _exponentials(logits, layout):
    """Return the logits, their maximum, the sum of exponentials, and the numbers of the classes.

    Logits that only complete a power of two become very small.
    """
    classes = jnp.arange(logits.shape[1], dtype=jnp.int32)[None, :]
    logits = jnp.where(classes < layout.shapes[-1][-1], logits, -1e30)
    largest = jnp.max(logits, axis=1)
    largest = jnp.where(jnp.abs(largest) < jnp.inf, largest, 0.0)  # as `logsumexp` does
    return logits, largest, jnp.sum(jnp.exp(logits - largest[:, None]), axis=1), classes


def _write(result, part, value):
    at, mask = _places(*part)
    store(result, at, value, mask)


def _bytes(images):
    index, mask = _index(images.shape)
    return triton.load(images.at[index], mask=mask, other=jnp.zeros((), images.dtype))


def _places(start: int, shape: tuple[int, ...]) -> tuple[Array, Array]:
    """Return the places in the vector of a leaf, padded as by `_index`, and the mask."""
    index, mask = _index(shape)
    at = jnp.broadcast_to(start + index[-1], mask.shape)
    if len(shape) == 2:
        at = at + index[0] * shape[1]
    return at, mask


def _index(shape: tuple[int, ...]) -> tuple[tuple[Array, ...], Array]:
    """Return indices up to a power of two, at least sixteen, and a mask of those that exist."""
    index, masks = [], []
    for axis, size in enumerate(shape):
        numbers = jnp.arange(padded_size(size), dtype=jnp.int32)
        numbers = jnp.expand_dims(numbers, [i for i in range(len(shape)) if i != axis])
        index.append(numbers)
        masks.append(numbers < size)
    return tuple(index), functools.reduce(jnp.logical_and, masks)
