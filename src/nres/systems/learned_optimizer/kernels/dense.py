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
from nres.systems.learned_optimizer.fusing import (
    Batch,
    Layers,
    interpreted,
    padded_size,
)
from nres.systems.learned_optimizer.losses import cap

WARPS = 8


def fused_loss(what: str, params: Layers, batch: Batch) -> Float[Array, ""]:
    """Compute `dense_loss` in one kernel."""
    shapes = jax.ShapeDtypeStruct((1,), jnp.float32)
    return _call(functools.partial(_loss_kernel, what=what), params, batch, [shapes])[0][0]


def fused_gradient(params: Layers, batch: Batch) -> Layers:
    """Compute `dense_gradient` in one kernel."""
    leaves, structure = jax.tree.flatten(params)
    shapes = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves]
    return jax.tree.unflatten(structure, _call(_gradient_kernel, params, batch, shapes))


def _call(kernel, params, batch, shapes):
    leaves, structure = jax.tree.flatten(params)
    images, labels = batch
    return pl.pallas_call(
        functools.partial(kernel, structure=structure),
        out_shape=shapes,
        compiler_params=triton.CompilerParams(num_warps=WARPS, num_stages=1),
        interpret=interpreted(),
        name=kernel.func.__name__ if isinstance(kernel, functools.partial) else kernel.__name__,
    )(images.reshape(images.shape[0], -1), labels.astype(jnp.int32), *leaves)


def _gradient_kernel(images, labels, *refs, structure):
    """Compute the gradient of one model on one batch per program."""
    leaves, grads = refs[: len(refs) // 2], refs[len(refs) // 2 :]
    loss, params = _loss(images, labels, leaves, structure, "cross-entropy")
    for ref, grad in zip(grads, jax.tree.leaves(jax.grad(loss)(params)), strict=True):
        index, mask = _index(ref.shape)
        triton.store(ref.at[index], grad, mask=mask)


def _loss_kernel(images, labels, *refs, structure, what):
    """Compute the loss of one model on one batch per program."""
    *leaves, result = refs
    loss, params = _loss(images, labels, leaves, structure, what)
    result[0] = loss(params)


def _loss(images, labels, leaves, structure, what):
    """Return the loss as a function of parameters, and the parameters padded to powers of two."""
    params = jax.tree.unflatten(structure, [_padded(ref) for ref in leaves])
    classes = leaves[-1].shape[-1]
    pixels = _padded(images).astype(jnp.float32) / 255
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


def _padded(ref):
    index, mask = _index(ref.shape)
    return triton.load(ref.at[index], mask=mask, other=jnp.zeros((), ref.dtype))


def _index(shape: tuple[int, ...]) -> tuple[tuple[Array, ...], Array]:
    """Return indices up to a power of two, at least sixteen, and a mask of those that exist."""
    index, masks = [], []
    for axis, size in enumerate(shape):
        numbers = jnp.arange(padded_size(size), dtype=jnp.int32)
        numbers = jnp.expand_dims(numbers, [i for i in range(len(shape)) if i != axis])
        index.append(numbers)
        masks.append(numbers < size)
    return tuple(index), functools.reduce(jnp.logical_and, masks)
