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
    given: PyTree = None
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


def split(state: Any, parts: list[slice]) -> list[Share]:
    """A state by share, wherever it is."""
    if state is None:
        return [Share()] * len(parts)
    if isinstance(state, RayState):
        return list(state.shares)
    for leaf in jax.tree.leaves(state):
        if leaf.ndim < 2 or leaf.shape[1] != parts[-1].stop:
            raise PoolError(
                "a state can be shared among actors if its arrays have axes (members, workers) in "
                f"front; one has the shape {leaf.shape}."
            )
    return [Share(given=jax.tree.map(lambda x, p=p: x[:, p], state)) for p in parts]


def join(*parts: Any) -> Any:
    """The arrays of all shares as one."""
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts, axis=1)
    return jnp.concatenate(parts, axis=1)
