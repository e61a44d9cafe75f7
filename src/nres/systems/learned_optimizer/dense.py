"""A perceptron that classifies images: its loss and its gradient, each one kernel on a GPU.

The models that learned optimizers are trained on are so small that a GPU spends most of their
time starting kernels. Here one program computes all there is to one model and one batch.
"""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jaxtyping import Array, Float, Key

from nres.systems.learned_optimizer.fusing import (
    Batch,
    Layers,
    derivatives_of,
    interpreted,
    on_nvidia,
    padded_size,
)
from nres.systems.learned_optimizer.losses import cap, mean_loss

WARPS = 8


def initial_weight(key: Key[Array, ""], shape: tuple[int, ...], inputs: int) -> Array:
    """Truncated normal numbers over the root of the number of inputs."""
    return jax.random.truncated_normal(key, -2, 2, shape) / inputs**0.5


def init_dense(sizes: tuple[int, ...], key: Key[Array, ""]) -> Layers:
    """Parameters to start from; biases are zero."""
    keys = jax.random.split(key, len(sizes) - 1)
    return [
        {
            "weight": initial_weight(k, (inputs, outputs), inputs),
            "bias": jnp.zeros(outputs),
        }
        for k, inputs, outputs in zip(keys, sizes, sizes[1:], strict=False)
    ]


def apply_dense(params: Layers, pixels: Float[Array, "batch ..."]) -> Float[Array, "batch classes"]:
    """Logits; GeLU between the layers."""
    x = pixels.reshape(pixels.shape[0], -1)
    for i, layer in enumerate(params):
        x = x @ layer["weight"] + layer["bias"][None]
        if i < len(params) - 1:
            x = jax.nn.gelu(x)
    return x


def dense_loss(what: str, params: Layers, batch: Batch) -> Float[Array, ""]:
    """The mean loss on a batch, one of `losses.LOSSES`."""
    if what != "accuracy" and on_nvidia() and fusable(params, batch):
        return fused_loss(what, params, batch)
    return plain_loss(what, params, batch)


def dense_gradient(params: Layers, batch: Batch) -> Layers:
    """The gradient of the mean cross-entropy."""
    if on_nvidia() and fusable(params, batch):
        return fused_gradient(params, batch)
    return plain_gradient(params, batch)


def plain_loss(what: str, params: Layers, batch: Batch) -> Float[Array, ""]:
    """`dense_loss` in plain JAX: the reference."""
    return mean_loss(apply_dense, what, params, batch)


def plain_gradient(params: Layers, batch: Batch) -> Layers:
    """`dense_gradient` in plain JAX: the reference."""
    return jax.grad(functools.partial(plain_loss, "cross-entropy"))(params, batch)


def fusable(params: Layers, batch: Batch) -> bool:
    """Whether one program can hold the model and the batch."""
    images = batch[0].shape[0]
    return (
        all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(params))
        and max(size for layer in params for size in layer["weight"].shape) <= 128
        and images >= 16
        and images & (images - 1) == 0
        and images * sum(layer["weight"].shape[0] for layer in params) <= 2**15
    )


@derivatives_of(plain_loss, static=1)
def fused_loss(what: str, params: Layers, batch: Batch) -> Float[Array, ""]:
    """`dense_loss` as one kernel; derivatives are those of `plain_loss`."""
    shapes = jax.ShapeDtypeStruct((1,), jnp.float32)
    return _call(functools.partial(_loss_kernel, what=what), params, batch, [shapes])[0][0]


@derivatives_of(plain_gradient)
def fused_gradient(params: Layers, batch: Batch) -> Layers:
    """`dense_gradient` as one kernel; derivatives are those of `plain_gradient`."""
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
    """One program for one model and one batch."""
    leaves, grads = refs[: len(refs) // 2], refs[len(refs) // 2 :]
    loss, params = _loss(images, labels, leaves, structure, "cross-entropy")
    for ref, grad in zip(grads, jax.tree.leaves(jax.grad(loss)(params)), strict=True):
        index, mask = _index(ref.shape)
        triton.store(ref.at[index], grad, mask=mask)


def _loss_kernel(images, labels, *refs, structure, what):
    """One program for one model and one batch."""
    *leaves, result = refs
    loss, params = _loss(images, labels, leaves, structure, what)
    result[0] = loss(params)


def _loss(images, labels, leaves, structure, what):
    """The loss as a function of parameters, and these; with zeros up to powers of two."""
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
    """Indices up to powers of two, sixteen at least, and which of them are there."""
    index, masks = [], []
    for axis, size in enumerate(shape):
        numbers = jnp.arange(padded_size(size), dtype=jnp.int32)
        numbers = jnp.expand_dims(numbers, [i for i in range(len(shape)) if i != axis])
        index.append(numbers)
        masks.append(numbers < size)
    return tuple(index), functools.reduce(jnp.logical_and, masks)
