"""Losses of a classifier."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

LOSSES = ("cross-entropy", "capped", "accuracy")


def mean_loss(
    apply: Callable, what: str, params: PyTree, batch: tuple[Array, Array]
) -> Float[Array, ""]:
    """Compute the mean loss on a batch of images in bytes and their labels."""
    images, labels = batch
    pixels = images.astype(jax.tree.leaves(params)[0].dtype) / 255
    logits = apply(params, pixels)
    if what == "accuracy":
        return jnp.mean(jnp.argmax(logits, axis=1) != labels.astype(jnp.int32), dtype=logits.dtype)
    # A mask instead of an index, so that a batch of lanes does not become a scatter.
    chosen = labels[:, None].astype(jnp.int32) == jnp.arange(logits.shape[1])[None]
    loss = jax.nn.logsumexp(logits, axis=1) - jnp.where(chosen, logits, 0).sum(axis=1)
    if what == "capped":
        loss = jnp.minimum(loss, cap(logits.shape[1]))
    return loss.mean()


def cap(classes: int) -> float:
    """Return the cap of an example's loss, which is 1.5 times the loss of guessing."""
    return 1.5 * math.log(classes)
