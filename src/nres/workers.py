"""Workers: where each of them is, what it carries, and what it contributes in a window."""

import functools
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from nres.noise import NoiseState, where_worker
from nres.system import Theta, at_least_single, squared_norm


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
    """The values that workers carry from window to window."""

    noise: NoiseState | None
    """The noise or direction of each worker."""
    pool: PyTree
    """States, and what goes along with them, with axes `(members, workers)` in front."""


class Response(eqx.Module):
    r"""The contribution of each worker to the gradient in one window: $c_i r_i$."""

    coefficient: Float[Array, " workers"]
    """$c_i$, one number per worker."""
    rows: PyTree
    """$r_i$, a pytree like `theta` with an axis of workers in front."""
    loss: Float[Array, " workers"]
    """The mean loss per step of each worker's unrolls, to be reported."""
    steps: Int[Array, "members workers"]
    """The number of steps that each unroll took."""


class Contributions(eqx.Module):
    """The contributions of the workers, or of some of them, added up."""

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


@eqx.filter_jit
def summed(response: Response) -> Contributions:
    """Add up what the workers contribute, leaving out what is not finite.

    In single precision at least: half would overflow where the mean does not.
    """
    coefficient, rows = response.coefficient, response.rows
    norm = jnp.abs(coefficient) * jnp.sqrt(jax.vmap(squared_norm)(rows)).astype(coefficient.dtype)
    result = Contributions(None, norm, response.loss, response.steps)
    coefficient = jnp.where(result.finite, coefficient, 0)

    def add(rows):
        rows = where_worker(result.finite, rows, jnp.zeros_like(rows))
        rows = rows.astype(at_least_single(rows.dtype))
        # Full precision: the matrix units' short float would cost three digits and save nothing.
        c = coefficient.astype(rows.dtype)
        return jnp.tensordot(c, rows, axes=1, precision=jax.lax.Precision.HIGHEST)

    return Contributions(jax.tree.map(add, rows), norm, response.loss, response.steps)
