"""The work of an actor: it runs the windows of its shard of the workers, and keeps their states."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from nres.execution import compiled, needed_lengths, run_at_once, run_window
from nres.pools.base import Pool
from nres.pools.jax import as_pool
from nres.workers import Carry, Contributions, Workers


class Metadata(NamedTuple):
    """Facts about a pool that are known before it is used."""

    name: str
    horizon: int
    can_fork: bool


class Detached:
    """Stands in for the pool of an estimator that travels: every actor has its own."""


class Rows(NamedTuple):
    """The positions of workers, as NumPy arrays: a few numbers per worker."""

    words: np.ndarray
    """The words of each worker's key."""
    generator: str
    """The kind of the keys: a name that JAX knows."""
    episode: np.ndarray
    start: np.ndarray
    length: np.ndarray
    """The number of steps that each worker is to take."""
    scale: np.ndarray | None
    """The scale of each worker's noise in its last window, if there was one."""

    def of(self, part: slice) -> "Rows":
        """Those of some of the workers."""
        scale = None if self.scale is None else self.scale[part]
        return Rows(
            self.words[part],
            self.generator,
            self.episode[part],
            self.start[part],
            self.length[part],
            scale,
        )

    def workers(self) -> Workers:
        key = jax.random.wrap_key_data(jnp.asarray(self.words), impl=self.generator)
        return Workers(key, jnp.asarray(self.episode), jnp.asarray(self.start))


class Request(NamedTuple):
    """One window of a shard of the workers."""

    shard: int
    what: str
    """`"begin"` makes what the workers carry before their first window, `"run"` runs a window,
    and `"restore"` only unrolls again what was lost."""
    state: int | None
    """The number under which the actor keeps what to go on from."""
    given: Carry | None
    """Or that itself, where the actor does not have it."""
    lost: bool
    """True if it was lost: then episodes are unrolled again, from their beginnings."""
    result: int
    """The number under which to keep what the workers carry afterwards."""
    forget: tuple[int, ...]
    """The numbers of what nobody will ask for any more."""
    rows: Rows


class Reply(NamedTuple):
    """An actor's answer: a few numbers per worker, and one per parameter."""

    carries: bool
    """False if the workers carry nothing."""
    scale: np.ndarray | None
    """The scale of each worker's noise."""
    contributions: Contributions | None
    seconds: float
    """The time that the actor took."""


class Actor:
    """Holds pools, made by `make_pool`, and what their workers carry."""

    def __init__(self, make_pool: Callable[[], Any], configuration: dict[str, Any]):
        for name, value in configuration.items():  # of JAX
            jax.config.update(name, value)
        self.make_pool = make_pool
        # One for each shard: a simulator that offers no snapshots serves one alone.
        self.pools: dict[int, Pool] = {}
        self.carried: dict[int, Carry | None] = {}

    def describe(self, shard: int) -> Metadata:
        pool = self._pool(shard)
        return Metadata(repr(pool), int(pool.horizon), bool(pool.can_fork))

    def run(self, theta: PyTree, estimator: Any, request: Request) -> Reply:
        began = time.perf_counter()
        for number in request.forget:
            self.carried.pop(number, None)
        estimator = eqx.tree_at(lambda e: e.pool, estimator, self._pool(request.shard))
        estimator, theta = jax.tree.map(_as_jax, (estimator, theta))
        rows, workers = request.rows, request.rows.workers()
        carry = request.given if request.state is None else self.carried[request.state]
        part: Any = None
        extra = np.zeros((), np.int32)
        if request.lost and rows.scale is not None:
            # With the noises that the episodes had.
            estimator = estimator.rescaled(workers.start, jnp.asarray(rows.scale))
        if request.what == "begin":
            carry = _begin(estimator, theta, workers)
        elif request.lost:
            carry, extra = _unroll_again(estimator, theta, rows)
        if request.what == "run":
            length = needed_lengths(estimator, jnp.asarray(rows.length))
            run = _run_restored if request.lost else _run
            carry, part = run(estimator, theta, workers, carry, length)
        self.carried[request.result] = carry
        noise = None if carry is None else carry.noise
        scale, part = jax.device_get((None if noise is None else noise.sigma, part))
        if part is not None:
            part = eqx.tree_at(lambda p: p.steps, part, part.steps + extra)
        return Reply(carry is not None, scale, part, time.perf_counter() - began)

    def fetch(self, number: int) -> Carry | None:
        """Return what this actor keeps under a number, as arrays."""
        return jax.tree.map(_as_numpy, self.carried[number])

    def _pool(self, shard: int) -> Pool:
        if shard not in self.pools:
            self.pools[shard] = as_pool(self.make_pool())
        return self.pools[shard]


@compiled
def _begin(estimator, theta, workers):
    return estimator.begin(theta, workers)


_run = compiled(run_window)
# Restored workers have a scale each, which is not cut into blocks.
_run_restored = compiled(run_at_once)


def _unroll_again(estimator, theta, rows: Rows) -> tuple[Carry | None, np.ndarray]:
    """Unroll episodes again up to `start`, with their noises; return the carry and the steps."""
    size = estimator.window
    rounds = rows.start // size  # windows begin at multiples of their length
    last = int(rounds.max(initial=0))
    carry = _begin(estimator, theta, rows._replace(start=np.zeros_like(rows.start)).workers())
    taken = np.zeros((estimator.members, rows.start.size), np.int32)
    for i in range(last):
        # They begin late and arrive together: see `Estimator.init`.
        behind = last - rounds
        start = np.maximum(i - behind, 0).astype(rows.start.dtype) * size
        length = np.where(i >= behind, size, 0).astype(rows.length.dtype)
        workers = rows._replace(start=start).workers()
        given = needed_lengths(estimator, jnp.asarray(length))
        carry, part = _run_restored(estimator, theta, workers, carry, given)
        taken += np.where(length > 0, np.asarray(part.steps), 0)
    return carry, taken


def _as_jax(leaf: Any) -> Any:
    return jnp.asarray(leaf) if isinstance(leaf, np.ndarray | np.generic) else leaf


def _as_numpy(leaf: Any) -> Any:
    key = eqx.is_array(leaf) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return leaf if key else np.asarray(leaf)
