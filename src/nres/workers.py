"""Workers: their positions, the values they carry, and their contributions in a window."""

import functools
from collections.abc import Iterable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from nres.noise import Group, NoiseState, where_worker
from nres.noise.factors import is_factors
from nres.system import Theta, at_least_single, squared_norm

# Numbers beyond those of workers and episodes, for randomness that belongs to neither.
PHASES, GROUPS = 2**32 - 1, 2**32 - 2
# The kinds of starting points of workers; the first is the default.
EVEN, INDEPENDENT = "even", "independent"


class Steps(NamedTuple):
    """Number of unroll steps."""

    total: int
    """The steps of all members of all workers."""
    sequential: int
    """The number of steps in sequence if all unrolls ran in parallel."""

    @classmethod
    def added(cls, parts: Iterable["Steps"]) -> "Steps":
        """Add up the steps of several parts."""
        parts = list(parts)
        return cls(sum(part.total for part in parts), sum(part.sequential for part in parts))

    @classmethod
    def at_once(cls, parts: Iterable["Steps"]) -> "Steps":
        """Return the steps of several parts that do not wait for each other."""
        parts = list(parts)
        return cls(sum(part.total for part in parts), max(part.sequential for part in parts))


class Workers(eqx.Module):
    """The positions of the workers. Each worker's key determines all of its randomness."""

    key: Key[Array, " workers"]
    episode: Int[Array, " workers"]
    """The number of episodes that each worker has finished."""
    start: Int[Array, " workers"]
    """The step of the episode at which the next window starts."""
    group: Group | None = None
    """The groups of workers whose noises are drawn jointly; `None` if noises are independent."""

    @eqx.filter_jit
    def episode_keys(self) -> Key[Array, " workers"]:
        """Return the key of each worker's current episode, for the system's own randomness."""
        return jax.vmap(jax.random.fold_in)(self.key, self.episode)

    def noise_numbers(self, horizon: int, period: int | Int[Array, ""]) -> Int[Array, " workers"]:
        """Return the index of each worker's noise, if a new one begins every `period` steps."""
        return self.episode * -(-horizon // period) + self.start // period

    @eqx.filter_jit
    def advance(
        self, length: Int[Array, " workers"], ends: int | Int[Array, " workers"]
    ) -> "Workers":
        """Move the workers forward by one window, in episodes of these lengths."""
        end = self.start + length
        finished = end >= ends
        episode = self.episode + finished.astype(self.episode.dtype)
        return Workers(self.key, episode, jnp.where(finished, 0, end), self.group)


@functools.partial(jax.jit, static_argnums=1)
def worker_keys(key: Key[Array, ""], count: int) -> Key[Array, " workers"]:
    """Derive a key for each worker. A worker's key does not depend on the number of workers."""
    return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, jnp.arange(count, dtype=jnp.uint32))


def groups_of(key: Key[Array, ""], workers: int, size: int) -> Group | None:
    """Divide workers into groups of consecutive ones; return `None` for groups of one.

    Args:
        key: The key of the run.
        workers: The number of workers.
        size: The number of workers per group; the last group may be smaller.
    """
    if size == 1:
        return None
    index = jnp.arange(workers, dtype=jnp.uint32)
    of_groups = jax.random.fold_in(key, GROUPS)
    keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(of_groups, index // size)
    return Group(keys, (index % size).astype(jnp.int32), size)


def place_independently(keys: Key[Array, " workers"], windows: int) -> Int[Array, " workers"]:
    """Draw a window of the episode for each worker."""

    def place(key):
        return jax.random.randint(jax.random.fold_in(key, PHASES), (), 0, windows, jnp.int32)

    return jax.vmap(place)(keys)


def spread_evenly(key: Key[Array, ""], workers: int, windows: int) -> Int[Array, " workers"]:
    """Spread workers evenly over the windows of an episode, beginning at a random one.

    Every window has as many workers as any other, or one more. Each worker alone is at a uniformly
    random window. Consecutive workers are at the same or at neighbouring windows.
    """
    i = jnp.arange(workers, dtype=jnp.int32)
    if workers >= windows:
        few, more = divmod(workers, windows)  # this many workers per window, in some one more
        first = more * (few + 1)
        place = jnp.where(i < first, i // (few + 1), more + (i - first) // few)
    else:
        gap, more = divmod(windows, workers)
        place = i * gap + jnp.minimum(i, more)
    turn = jax.random.randint(jax.random.fold_in(key, PHASES), (), 0, windows, jnp.int32)
    return (place + turn) % windows


def places_of(keys: Key[Array, " workers"]) -> Float[Array, " workers"]:
    """Draw a place from 0 to 1 in the episode of each worker."""
    return jax.vmap(lambda key: jax.random.uniform(jax.random.fold_in(key, PHASES)))(keys)


def places_evenly(key: Key[Array, ""], workers: int) -> Float[Array, " workers"]:
    """Spread workers evenly over places from 0 to 1, beginning at a random one."""
    turn = jax.random.uniform(jax.random.fold_in(key, PHASES))
    return (jnp.arange(workers, dtype=turn.dtype) / workers + turn) % 1


def starting_windows(
    lengths: Int[Array, " workers"], places: Float[Array, " workers"], window: int
) -> Int[Array, " workers"]:
    """Return the window at which each worker begins, given places from 0 to 1 in its episode."""
    counts = -(-lengths // window)
    return jnp.minimum((places * counts.astype(places.dtype)).astype(jnp.int32), counts - 1)


class Carry(eqx.Module):
    """The values that workers carry from window to window."""

    noise: NoiseState | None
    """The noise or direction of each worker."""
    pool: PyTree
    """The states of the unrolls, with axes `(members, workers)` in front."""


class Response(eqx.Module):
    r"""The contribution of each worker to the gradient in one window: $c_i r_i$."""

    coefficient: Float[Array, " workers"]
    """$c_i$, one number per worker."""
    rows: PyTree
    """$r_i$, a pytree like `theta` with an axis of workers in front."""
    loss: Float[Array, " workers"]
    """The mean loss per step of each worker's unrolls, for reports."""
    steps: Int[Array, "members workers"]
    """The number of steps that each unroll took."""
    odd: Float[Array, " workers"] | None = None
    """Half the difference of the losses per step of each worker's pair, for diagnostics; `None` if
    workers are not pairs."""
    slope: PyTree | None = None
    """The contribution of each worker to the slope of the smoothed loss by log sigma, if sigma
    adapts: a pytree like sigma with an axis of workers in front."""
    observed: PyTree | None = None
    """Observations of each worker, for the measured parts of `theta`: the sum of `Window.observed`
    over members."""


class Contributions(eqx.Module):
    """The summed contributions of all workers or of a part of them."""

    grad: Theta
    """The sum over the workers whose contribution is finite."""
    norm: Float[Array, " workers"]
    """The Euclidean norm of each worker's own contribution."""
    loss: Float[Array, " workers"]
    """The mean loss per step of each worker's unrolls."""
    steps: Int[Array, "members workers"]
    """The number of steps that each unroll took."""
    odd: Float[Array, " workers"] | None = None
    """Half the difference of the losses per step of each worker's pair; `None` without pairs."""
    slope: PyTree | None = None
    """The sum of `Response.slope` over the workers whose contribution is finite."""
    observed: PyTree | None = None
    """The sum of `Response.observed` over the workers whose contribution is finite."""

    @property
    def finite(self) -> Bool[Array, " workers"]:
        return jnp.isfinite(self.norm) & jnp.isfinite(self.loss)


def _squared_norms(rows: PyTree) -> Float[Array, " workers"]:
    """Return the squared norm of each worker's rows."""
    plain, factored = eqx.partition(rows, lambda x: not is_factors(x), is_leaf=is_factors)
    parts = [x.squared_norms() for x in jax.tree.leaves(factored, is_leaf=is_factors)]
    if jax.tree.leaves(plain):
        parts.append(jax.vmap(squared_norm)(plain))
    return functools.reduce(jnp.add, [part.astype(parts[-1].dtype) for part in parts])


@eqx.filter_jit
def summed(response: Response) -> Contributions:
    """Add up the workers' contributions, leaving out those that are not finite.

    The sum is in at least single precision: half precision could overflow although the mean fits.
    """
    coefficient, rows = response.coefficient, response.rows
    norm = jnp.abs(coefficient) * jnp.sqrt(_squared_norms(rows)).astype(coefficient.dtype)
    for seen in jax.tree.leaves(response.observed):
        usable = jnp.isfinite(seen).reshape(norm.size, -1).all(axis=1)
        norm = jnp.where(usable, norm, jnp.nan)
    result = Contributions(None, norm, response.loss, response.steps)
    coefficient = jnp.where(result.finite, coefficient, 0)

    def add(rows):
        if is_factors(rows):
            rows = where_worker(result.finite, rows, jax.tree.map(jnp.zeros_like, rows))
            return rows.weighted_sum(coefficient.astype(at_least_single(rows.a.dtype)))
        rows = where_worker(result.finite, rows, jnp.zeros_like(rows))
        rows = rows.astype(at_least_single(rows.dtype))
        # Full precision: the matrix units' short floats would lose three digits and save no time.
        c = coefficient.astype(rows.dtype)
        return jnp.tensordot(c, rows, axes=1, precision=jax.lax.Precision.HIGHEST)

    grad = jax.tree.map(add, rows, is_leaf=is_factors)
    keep = lambda s: where_worker(result.finite, s, jnp.zeros_like(s)).sum(axis=0)  # noqa: E731
    slope, observed = jax.tree.map(keep, (response.slope, response.observed))
    return Contributions(grad, norm, response.loss, response.steps, response.odd, slope, observed)
