"""The actor: it runs the windows of its shard of the workers, and keeps their states."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from nres.execution import compiled, needed_lengths, run_at_once, run_window
from nres.noise import Group
from nres.pools.base import Pool
from nres.pools.jax import as_pool
from nres.workers import Carry, Contributions, Workers


class Metadata(NamedTuple):
    """The name and properties of a pool, known before its first window."""

    name: str
    horizon: int
    can_fork: bool
    lengths: str


class Detached:
    """Placeholder for the pool of an estimator that is sent: every actor has its own pool."""


class WorkerRows(NamedTuple):
    """The positions of workers as NumPy arrays, a few numbers per worker."""

    words: np.ndarray
    """The words of each worker's key."""
    generator: str
    """The kind of the keys, by JAX's name."""
    episode: np.ndarray
    start: np.ndarray
    length: np.ndarray
    """The number of steps that each worker should take."""
    scale: PyTree
    """The scale of each worker's noise in its last window; `None` if there was no window."""
    group: tuple[np.ndarray, np.ndarray, int] | None
    """The words of each group's key, the rows and the size of the groups, as in `Group`."""

    def of(self, part: slice) -> "WorkerRows":
        """Return the rows of some of the workers."""
        scale, group = self.scale, self.group
        if group is not None:
            group = (group[0][part], group[1][part], group[2])
        return WorkerRows(
            self.words[part],
            self.generator,
            self.episode[part],
            self.start[part],
            self.length[part],
            jax.tree.map(lambda x: x[part], scale),
            group,
        )

    def workers(self) -> Workers:
        key = jax.random.wrap_key_data(jnp.asarray(self.words), impl=self.generator)
        group = None
        if self.group is not None:
            words, row, size = self.group
            group_key = jax.random.wrap_key_data(jnp.asarray(words), impl=self.generator)
            group = Group(group_key, jnp.asarray(row), size)
        return Workers(key, jnp.asarray(self.episode), jnp.asarray(self.start), group)


class Request(NamedTuple):
    """A request for one window of a shard of the workers."""

    shard: int
    what: str
    """`"begin"` makes the carry before the first window, `"run"` runs a window, and `"restore"`
    only unrolls a lost state again."""
    state: int | None
    """The number under which the actor keeps the state to continue."""
    given: Carry | None
    """The state to continue, if the actor does not have it."""
    lost: bool
    """True if the state was lost, so that episodes must be unrolled again from step 0."""
    result: int
    """The number under which the actor keeps the carry after the window."""
    forget: tuple[int, ...]
    """The numbers of states that are no longer needed."""
    rows: WorkerRows


class Reply(NamedTuple):
    """An actor's answer: a few numbers per worker, and one per parameter."""

    carries: bool
    """False if the workers carry nothing."""
    scale: PyTree
    """The scale of each worker's noise."""
    contributions: Contributions | None
    seconds: float
    """The seconds that the actor spent on the request."""


class Actor:
    """An actor with pools, made by `make_pool`, and the carry of their workers."""

    def __init__(self, make_pool: Callable[[], Any], configuration: dict[str, Any]):
        for name, value in configuration.items():  # JAX settings
            jax.config.update(name, value)
        self.make_pool = make_pool
        # One pool per shard, because a simulator without snapshots can serve only one.
        self.pools: dict[int, Pool] = {}
        self.carried: dict[int, Carry | None] = {}

    def describe(self, shard: int) -> Metadata:
        pool = self._pool(shard)
        return Metadata(repr(pool), int(pool.horizon), bool(pool.can_fork), repr(pool.lengths))

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
            # Use the noise that the lost episodes had.
            estimator = estimator.rescaled(workers.start, jax.tree.map(jnp.asarray, rows.scale))
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
        """Return the carry that this actor keeps under a number, as arrays."""
        return jax.tree.map(_as_numpy, self.carried[number])

    def _pool(self, shard: int) -> Pool:
        if shard not in self.pools:
            self.pools[shard] = as_pool(self.make_pool())
        return self.pools[shard]


@compiled
def _begin(estimator, theta, workers):
    return estimator.begin(theta, workers)


_run = compiled(run_window)
# Restored workers have one scale each, which blocks cannot split.
_run_restored = compiled(run_at_once)


def _unroll_again(estimator, theta, rows: WorkerRows) -> tuple[Carry | None, np.ndarray]:
    """Unroll episodes again up to `start`, with their noise; return the carry and the steps."""
    size = estimator.window
    rounds = rows.start // size  # windows begin at multiples of their length
    last = int(rounds.max(initial=0))
    carry = _begin(estimator, theta, rows._replace(start=np.zeros_like(rows.start)).workers())
    taken = np.zeros((estimator.members, rows.start.size), np.int32)
    for i in range(last):
        # Workers start late and arrive together, as in `Estimator.init`.
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
