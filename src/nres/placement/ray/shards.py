"""Shards of workers: the actor of each shard, and the place of its carry."""

import dataclasses
import itertools
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from nres.placement.ray.actor import Request
from nres.pools.base import PoolError
from nres.workers import Carry


class StateRef:
    """A reference to a state that an actor keeps as long as the reference exists."""

    def __init__(self, actor: Any, number: int, forgotten: list[int]):
        self.actor, self.number = actor, number
        weakref.finalize(self, forgotten.append, number)


@dataclasses.dataclass(frozen=True)
class Sent:
    """A request that was sent to an actor."""

    reply: Any
    request: Request
    estimator: Any
    """The estimator that was sent. It is kept because a noise keeps its first scale."""
    result: StateRef
    attempt: int


@dataclasses.dataclass(frozen=True)
class Shard:
    """The place of the carry of an actor's workers: on the actor, here, or nowhere yet."""

    ref: StateRef | None = None
    given: Carry | None = None
    scale: PyTree = None
    """The scale of each worker's noise, to regenerate the noise."""
    pending: Sent | None = None
    """A request whose reply has not arrived yet."""


@dataclasses.dataclass(frozen=True)
class ShardedCarry:
    """The carry of workers in actors. It is not a pytree, because its arrays are elsewhere."""

    shards: tuple[Shard, ...]


def parts_of(workers: int, actors: int) -> list[slice]:
    """Divide the workers into consecutive parts of nearly equal size, one per actor."""
    edges = np.linspace(0, workers, min(actors, workers) + 1).astype(int).tolist()
    return [slice(*edge) for edge in itertools.pairwise(edges)]


def split(carry: Carry, parts: list[slice]) -> list[Shard]:
    """Split a carry by shard, for actors that do not have it."""
    count = parts[-1].stop
    for leaf in jax.tree.leaves(carry.pool):
        if leaf.ndim < 2 or leaf.shape[1] != count:
            raise PoolError(
                "only a state whose arrays have axes (members, workers) in front can be divided "
                f"among actors; one array has the shape {leaf.shape}."
            )

    def take(part: slice) -> Shard:
        noise = jax.tree.map(lambda x: np.asarray(x)[part], carry.noise)
        own = Carry(noise, jax.tree.map(lambda x: x[:, part], carry.pool))
        return Shard(given=own, scale=None if noise is None else noise.sigma)

    return [take(part) for part in parts]


def join(carries: list[Carry]) -> Carry:
    """Join the carries of all shards."""
    return Carry(
        jax.tree.map(lambda *x: jnp.concatenate(x, axis=0), *[c.noise for c in carries]),
        jax.tree.map(lambda *x: _concatenate(x, axis=1), *[c.pool for c in carries]),
    )


def _concatenate(parts: tuple[Any, ...], axis: int) -> Any:
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts, axis=axis)
    return jnp.concatenate(parts, axis=axis)  # random keys
