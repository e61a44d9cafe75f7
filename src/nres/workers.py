"""Workers: where each of them is, what it carries, and what it contributes in a window."""

import functools
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from nres.noise import NoiseState
from nres.system import Theta


class Steps(NamedTuple):
    """Unroll steps spent."""

    total: int
    """All of them, over every member of every worker."""
    sequential: int
    """Those that had to follow one another, were all unrolls run in parallel."""


class Workers(eqx.Module):
    """The positions of workers. All of a worker's randomness comes from its key."""

    key: Key[Array, " workers"]
    episode: Int[Array, " workers"]
    start: Int[Array, " workers"]
    """The step of the episode at which the next window starts."""

    @eqx.filter_jit
    def episode_keys(self) -> Key[Array, " workers"]:
        """The keys of the systems' own randomness, one per episode."""
        return jax.vmap(jax.random.fold_in)(self.key, self.episode)

    def noise_numbers(self, horizon: int, period: int | Int[Array, ""]) -> Int[Array, " workers"]:
        """The number of the noise that each worker uses, with a new one every `period` steps."""
        return self.episode * -(-horizon // period) + self.start // period

    @eqx.filter_jit
    def advance(self, length: Int[Array, " workers"], horizon: int) -> "Workers":
        """Move the workers by one window."""
        end = self.start + length
        finished = end >= horizon
        episode = self.episode + finished.astype(self.episode.dtype)
        return Workers(self.key, episode, jnp.where(finished, 0, end))


@functools.partial(jax.jit, static_argnums=1)
def worker_keys(key: Key[Array, ""], count: int) -> Key[Array, " workers"]:
    """Derive a key for each worker: the same for a worker, however many there are."""
    return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, jnp.arange(count, dtype=jnp.uint32))


class Carry(eqx.Module):
    """What workers carry from window to window."""

    noise: NoiseState | None
    """The noise or direction of each worker."""
    pool: PyTree
    """States, and what goes along with them, with axes `(members, workers)` in front."""


class Contributions(eqx.Module):
    """What the workers of one window, or some of them, contribute; `nres.weigh` makes it."""

    grad: Theta
    """The sum over the workers whose contribution is finite."""
    norm: Float[Array, " workers"]
    """The Euclidean norm of each worker's own contribution."""
    loss: Float[Array, " workers"]
    """The mean loss per step of each worker's unrolls."""
    steps: Int[Array, "members workers"]
    """The number of steps that each unroll took."""

    @property
    def finite(self) -> Bool[Array, " workers"]:
        return jnp.isfinite(self.norm) & jnp.isfinite(self.loss)
