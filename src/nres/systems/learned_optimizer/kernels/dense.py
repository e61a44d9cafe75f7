"""The loss and the gradient of a perceptron, each as one kernel.

The models that learned optimizers train are so small that a GPU would spend most of the time
starting kernels. Here one program computes everything for one model and one batch.
"""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jaxtyping import Array, Float

from nres.systems.learned_optimizer.dense import apply_dense
from nres.systems.learned_optimizer.fusing import Batch, interpreted, padded_size
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
    """Compute the gradient of one model on one batch per program."""
    loss, params = _loss(images, labels, vector, layout, "cross-entropy")
    leaves = jax.tree.leaves(jax.grad(loss)(params))
    for start, shape, grad in zip(layout.starts, layout.shapes, leaves, strict=True):
        at, mask = _places(start, shape)
        store(result, at, grad, mask)


def _loss_kernel(images, labels, vector, result, *, layout, what):
    """Compute the loss of one model on one batch per program."""
    loss, params = _loss(images, labels, vector, layout, what)
    result[0] = loss(params)


def _loss(images, labels, vector, layout, what):
    """Return the loss as a function of parameters, and the parameters padded to powers of two."""
    parts = zip(layout.starts, layout.shapes, strict=True)
    leaves = [load(vector, *_places(start, shape)) for start, shape in parts]
    params = jax.tree.unflatten(layout.structure, leaves)
    classes = layout.shapes[-1][-1]
    pixels = _pixels(images).astype(jnp.float32) / 255
    target = labels[...]

    def loss(params):
        logits = apply_dense(params, pixels)
        column = jnp.arange(logits.shape[1], dtype=jnp.int32)[None, :]
        logits = jnp.where(column < classes, logits, -1e30)
        largest = jax.lax.stop_gradient(jnp.max(logits, axis=1))
        largest = jnp.where(jnp.abs(largest) < jnp.inf, largest, 0.0)  # as `logsumexp` does
        total = jnp.sum(jnp.exp(logits - largest[:, None]), axis=1)
        chosen = jnp.sum(jnp.where(column == target[:, None], logits, 0.0), axis=1)
        losses = jnp.log(total) + largest - chosen
        if what == "capped":
            losses = jnp.where(losses > cap(classes), cap(classes), losses)
        return jnp.sum(losses) / pixels.shape[0]

    return loss, params


def _pixels(images):
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
