"""Who has which workers, and where their states are."""

import dataclasses
import itertools
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from nres.pools.base import PoolError


class Kept:
    """A state that an actor keeps, until nobody refers to it any more."""

    def __init__(self, actor: Any, number: int, forgotten: list[int]):
        self.actor, self.number = actor, number
        weakref.finalize(self, forgotten.append, number)


@dataclasses.dataclass(frozen=True)
class Sent:
    """A window that an actor was asked for."""

    reply: Any
    result: Kept
    sigma: np.ndarray
    again: bool
    """Whether the workers begin anew, at the parameters of today."""
    attempt: int


@dataclasses.dataclass(frozen=True)
class Share:
    """Where the state of an actor's workers is: kept there, or given here, or nowhere yet."""

    kept: Kept | None = None
    given: tuple[PyTree, PyTree] = (None, None)
    """The state and the score."""
    member: int | None = None
    pending: Sent | None = None


@dataclasses.dataclass(frozen=True)
class RayState:
    """What `RayPool.advance` continues from. Not a pytree: nothing of it is here."""

    shares: tuple[Share, ...]


def parts_of(workers: int, actors: int) -> list[slice]:
    """Which workers each actor has: consecutive ones, as equally many as can be."""
    edges = np.linspace(0, workers, min(actors, workers) + 1).astype(int).tolist()
    return [slice(*edge) for edge in itertools.pairwise(edges)]


def split(states: PyTree, scores: PyTree, actors: int) -> list[Share]:
    """Arrays by share, to be given to actors that do not have them."""
    leaves = jax.tree.leaves(states)
    for leaf in leaves:
        if leaf.ndim < 2 or leaf.shape[1] != leaves[0].shape[1]:
            raise PoolError(
                "a state can be shared among actors if its arrays have axes (members, workers) in "
                f"front; one has the shape {leaf.shape}."
            )

    def take(part):
        states_of = jax.tree.map(lambda x: x[:, part], states)
        return states_of, jax.tree.map(lambda x: np.asarray(x)[part], scores)

    return [Share(given=take(part)) for part in parts_of(leaves[0].shape[1], actors)]


def join(parts: tuple[Any, ...], axis: int) -> Any:
    """The arrays of all shares as one."""
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts, axis=axis)
    return jnp.concatenate(parts, axis=axis)  # of random keys
