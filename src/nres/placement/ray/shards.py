"""Shards of workers: the actor of each, and the place of its carry."""

import dataclasses
import itertools
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nres.placement.ray.actor import Request
from nres.pools.base import PoolError
from nres.workers import Carry


class StateRef:
    """Refers to what an actor keeps, until nobody holds the reference any more."""

    def __init__(self, actor: Any, number: int, forgotten: list[int]):
        self.actor, self.number = actor, number
        weakref.finalize(self, forgotten.append, number)


@dataclasses.dataclass(frozen=True)
class Sent:
    """A request that an actor was sent."""

    reply: Any
    request: Request
    estimator: Any
    """The estimator that was sent: a noise keeps the scale it was first asked for with."""
    result: StateRef
    attempt: int


@dataclasses.dataclass(frozen=True)
class Shard:
    """The place of the carry of an actor's workers: kept there, given here, or nowhere yet."""

    ref: StateRef | None = None
    given: Carry | None = None
    scale: np.ndarray | None = None
    """The scale of each worker's noise, to make it anew."""
    pending: Sent | None = None
    """A request that was not waited for."""


@dataclasses.dataclass(frozen=True)
class ShardedCarry:
    """The carry of workers in actors. Not a pytree: nothing of it is here."""

    shards: tuple[Shard, ...]


def parts_of(workers: int, actors: int) -> list[slice]:
    """The workers that each actor has: consecutive ones, as equally many as can be."""
    edges = np.linspace(0, workers, min(actors, workers) + 1).astype(int).tolist()
    return [slice(*edge) for edge in itertools.pairwise(edges)]


def split(carry: Carry, parts: list[slice]) -> list[Shard]:
    """Split arrays by shard, to be given to actors that do not have them."""
    count = parts[-1].stop
    for leaf in jax.tree.leaves(carry.pool):
        if leaf.ndim < 2 or leaf.shape[1] != count:
            raise PoolError(
                "a state can be shared among actors if its arrays have axes (members, workers) in "
                f"front; one has the shape {leaf.shape}."
            )

    def take(part: slice) -> Shard:
        noise = jax.tree.map(lambda x: np.asarray(x)[part], carry.noise)
        own = Carry(noise, jax.tree.map(lambda x: x[:, part], carry.pool))
        return Shard(given=own, scale=None if noise is None else noise.sigma)

    return [take(part) for part in parts]


def join(carries: list[Carry]) -> Carry:
    """Put what the shards carry together."""
    return Carry(
        jax.tree.map(lambda *x: jnp.concatenate(x, axis=0), *[c.noise for c in carries]),
        jax.tree.map(lambda *x: _concatenate(x, axis=1), *[c.pool for c in carries]),
    )


def _concatenate(parts: tuple[Any, ...], axis: int) -> Any:
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts, axis=axis)
    return jnp.concatenate(parts, axis=axis)  # of random keys
