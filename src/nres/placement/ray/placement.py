"""`Ray`: workers in actors on the machines of a Ray cluster."""

import copy
import dataclasses
import functools
import time
from collections.abc import Callable, Collection
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from nres.checks import whole_number
from nres.errors import first_line, last_line
from nres.placement.base import Placement, WindowOutcome
from nres.placement.local import Local
from nres.placement.ray.actor import Detached, Reply, Request, WorkerRows
from nres.placement.ray.cluster import require_ray
from nres.placement.ray.crew import Crew
from nres.placement.ray.shards import Sent, Shard, ShardedCarry, StateRef, join, parts_of, split
from nres.pools.base import Pool, PoolError
from nres.workers import Contributions, Workers

# If the same window kills this many actors in a row, give up.
ATTEMPTS = 4


class Ray(Placement):
    r"""Workers in actors on the machines of a Ray cluster.

    Each actor runs a shard of the workers and keeps their states. An update sends $\theta$ through
    Ray's object store, once to each machine, and a few numbers per worker. Each actor regenerates
    noise from keys and returns its workers' losses and the sum of their contributions. The
    parameters and the noise of single workers are therefore never sent. Gradients are those of a
    single process, for any number of actors, except for rounding.

    If an actor or its machine is lost, another actor replaces it: a new one, or an existing one if
    the cluster has no room. It unrolls the lost episodes again from step 0 at the current $\theta$,
    with the noise they had, up to the step where they were, so that the windows of all workers
    stay uniformly distributed. `restarted` counts these workers.

    If no cluster is connected (by `nres.placement.ray.connect` or `ray.init`), one is started on
    this machine.

    Args:
        actors: The number of actors. Their shards differ by at most one worker.
        make_pool: A function without arguments that returns an actor's pool or `nres.System`. It
            is called on the actors' machines, where `nres` must be installed. By default, the
            estimator's own pool is sent to them.
        cpus: The number of processors per actor, which limits the number of actors per machine.
        gpus: The number of GPUs per actor; with 0, actors run JAX on their processors.
        allow_stale: True not to wait for the slowest actors. An update then happens as soon as
            half of the actors have answered, with the workers of these actors. The others
            contribute to a later update, with the gradient at the $\theta$ they began with, and
            contribute less often (`late` counts them). If the actors are equally fast, this only
            makes gradients noisier and slightly stale.
        start_timeout: The number of seconds to wait for an actor to start. Busy machines may take
            a minute.

    Raises:
        PoolError: If the actors cannot be started, when an estimator is created with this
            placement.

    Example:
        ```python
        pool = nres.pools.MujocoPool("halfcheetah", threads=1)
        estimator = nres.NRES(
            pool, workers=320, window=20, sigma=0.004, placement=nres.placement.Ray(actors=8)
        )
        ```
    """

    reports = ("restarted", "late")

    def __init__(
        self,
        *,
        actors: int,
        make_pool: Callable[[], Any] | None = None,
        cpus: int | float = 1,
        gpus: int | float = 0,
        allow_stale: bool = False,
        start_timeout: int | float = 180,
    ):
        if make_pool is not None and not callable(make_pool):
            raise TypeError(
                "make_pool must be a function that makes a pool, for example "
                '`lambda: nres.pools.MujocoPool("swimmer")`, which each actor calls for itself; '
                f"got {type(make_pool).__name__}."
            )
        self.allow_stale = allow_stale
        self.phases: dict[str, float] = {}
        """Seconds of the last window: `send`, `wait` for replies, and `busy`, the slowest actor."""
        self._start = functools.partial(
            Crew,
            actors=whole_number("actors", actors),
            cpus=cpus,
            gpus=gpus,
            start_timeout=start_timeout,
        )
        self._make_pool = make_pool
        self._pool: Pool | None = None
        self._started: Crew | None = None

    def __reduce__(self) -> Any:
        # An estimator that is sent to an actor finds all of its workers there.
        return Local, ()

    @property
    def crew(self) -> Crew:
        """The actors, once an estimator uses this placement."""
        if self._started is None:
            raise PoolError("these actors serve no estimator, or they have been closed.")
        return self._started

    def can_trace(self, pool):
        return False

    def check(self, estimator):
        super().check(estimator)
        pool = estimator.pool
        if self.allow_stale and estimator.window == estimator.horizon:
            raise ValueError(
                "allow_stale needs windows that are shorter than episodes: late contributions are "
                "carried to the next estimate, and nothing is carried if a window is an episode."
            )
        starts = self._pool is None
        if starts:
            self._started = self._start(self._portable_maker(pool))
            self._pool = pool
        elif self._make_pool is None and not self._serves(pool):
            raise ValueError(
                f"these actors already serve {self.crew.name}: give the other pool its own "
                "nres.placement.Ray."
            )
        theirs = self.crew.metadata
        found = theirs.horizon, theirs.can_fork, theirs.lengths
        if found != (estimator.horizon, pool.can_fork, repr(pool.lengths)):
            if starts:  # otherwise, the actors serve another estimator
                self.close()
            raise ValueError(
                f"make_pool makes a pool with horizon {theirs.horizon}, can_fork="
                f"{theirs.can_fork} and lengths {theirs.lengths}, but the estimator's pool has "
                f"{estimator.horizon}, {pool.can_fork} and {pool.lengths!r}."
            )

    def close(self) -> None:
        """End the actors; the states of their workers are lost."""
        if self._started is not None:
            self._started.close()
        self._started = self._pool = None

    def begin(self, estimator, theta, workers):
        parts = parts_of(estimator.workers, len(self.crew.actors))
        window = self._window("begin", estimator, theta, workers, parts, None)
        shards, replies = window.finish([Shard()] * len(parts))
        return ShardedCarry(tuple(shards)) if replies[0].carries else None

    def run(self, estimator, theta, update, workers, carry, length):
        began = time.perf_counter()
        crew = self.crew
        parts = parts_of(estimator.workers, len(crew.actors))
        given = [Shard()] * len(parts) if carry is None else self._shards(carry, parts)
        window = self._window("run", estimator.at(update), theta, workers, parts, length)
        # No worker may be late before the first update, while workers go to their starting points.
        wait = not self.allow_stale or int(update) == 0
        shards, replies = window.finish(given, wait)
        self.phases = {
            "send": window.sent_at - began,
            "wait": time.perf_counter() - window.sent_at,
            "busy": max(reply.seconds for reply in replies.values()),
        }
        late = np.ones(estimator.workers, bool)
        restarted = np.zeros(estimator.workers, bool)
        for i in replies:
            late[parts[i]], restarted[parts[i]] = False, window.sent[i].request.lost
        report = np.array([restarted.sum(), late.sum()], np.int32)
        return WindowOutcome(
            None if carry is None else ShardedCarry(tuple(shards)),
            _put_together(
                parts,
                {i: reply.contributions for i, reply in replies.items()},
                {i for i, shard in enumerate(given) if shard.pending is not None},
            ),
            jnp.asarray(late),
            jnp.asarray(report),
        )

    def gather(self, estimator, theta, workers, carry):
        """Fetch the workers' carry; if windows are under way, the carry before them."""
        if not isinstance(carry, ShardedCarry):
            return carry
        crew, shards = self.crew, list(carry.shards)
        parts = parts_of(estimator.workers, len(crew.actors))
        window = self._window("restore", estimator, theta, workers, parts, None)
        for _ in range(ATTEMPTS):
            calls = {
                i: shard.ref.actor.fetch.remote(shard.ref.number)
                for i, shard in enumerate(shards)
                if shard.ref is not None
            }
            found: list[Any] = [shard.given for shard in shards]
            for i, call in calls.items():
                found[i] = crew.answer(call)
            lost = [i for i, part in enumerate(found) if isinstance(part, Exception)]
            if not lost:
                return join(found)
            for i in lost:
                if not window.is_lost(i, shards[i]):
                    crew.replace(i, found[i])
                sent = window.send(i, shards[i])
                if not isinstance(crew.answer(sent.reply), Exception):  # else it was lost again
                    shards[i] = Shard(sent.result, scale=shards[i].scale)
        raise PoolError(f"{crew.name}: actors are lost faster than their states can be fetched.")

    def _portable_maker(self, pool: Pool) -> Callable[[], Any]:
        """Return the function that makes a pool on an actor, checked to be picklable."""
        make_pool = self._make_pool or functools.partial(copy.deepcopy, pool)
        try:
            require_ray().cloudpickle.dumps(make_pool)
        except Exception as error:
            raise TypeError(
                f"{type(pool).__name__} cannot be sent to other machines: {first_line(error)}. "
                "Give nres.placement.Ray a function `make_pool` that makes the pool there, and "
                "that refers to nothing that exists only here."
            ) from error
        return make_pool

    def _serves(self, pool: Pool) -> bool:
        """Return true if the actors' pool is this one, or one of equal arrays and settings."""
        return pool is self._pool or bool(eqx.tree_equal(pool, self._pool))

    def _shards(self, carry: Any, parts: list[slice]) -> list[Shard]:
        if isinstance(carry, ShardedCarry):
            return list(carry.shards)
        return split(carry, parts)  # the carry comes from a checkpoint

    def _window(self, what, estimator, theta, workers: Workers, parts, length) -> "_Window":
        return _Window(self.crew, what, estimator, theta, workers, parts, length)


class _Window:
    """One window of all workers: the requests to the actors, and their replies."""

    def __init__(
        self,
        crew: Crew,
        what: str,
        estimator: Any,
        theta: PyTree,
        workers: Workers,
        parts: list[slice],
        length: Any,
    ):
        self.crew, self.what, self.parts = crew, what, parts
        # By value and without the pool, the estimator has a few hundred bytes.
        self.estimator = jax.device_get(eqx.tree_at(lambda e: e.pool, estimator, Detached()))
        self._theta = theta
        words, episode, start, length = jax.device_get(
            (jax.random.key_data(workers.key), workers.episode, workers.start, length)
        )
        length = np.full_like(start, estimator.window) if length is None else length
        generator = str(jax.random.key_impl(workers.key))
        group = None
        if workers.group is not None:
            of_groups = jax.random.key_data(workers.group.key), workers.group.row
            group = (*jax.device_get(of_groups), workers.group.size)
        self.rows = WorkerRows(words, generator, episode, start, length, None, group)
        self.sent: list[Sent] = []
        self.sent_at = 0.0

    @functools.cached_property
    def theta(self) -> Any:
        """The parameters in Ray's object store, put there when the first request needs them."""
        return self.crew.ray.put(jax.device_get(self._theta))

    def is_lost(self, i: int, shard: Shard) -> bool:
        return shard.ref is not None and shard.ref.actor is not self.crew.actors[i]

    def send(self, i: int, shard: Shard, before: Sent | None = None) -> Sent:
        """Request the window of a shard, for the first time or after its actor was lost."""
        crew = self.crew
        lost = self.is_lost(i, shard) or (before is not None and shard.given is None)
        actor = crew.actors[i]
        result = StateRef(actor, next(crew.numbers), crew.forgotten[i])
        forgotten = crew.forgotten[i]  # finalizers may add more at any moment
        request = Request(
            shard=i,
            what=self.what,
            state=None if shard.ref is None or lost else shard.ref.number,
            given=shard.given,
            lost=lost and self.what != "begin",
            result=result.number,
            forget=tuple(forgotten.pop() for _ in range(len(forgotten))),
            rows=self.rows.of(self.parts[i])._replace(scale=shard.scale),
        )
        estimator = self.estimator if before is None else before.estimator
        reply = actor.run.remote(self.theta, estimator, request)
        attempt = 1 if before is None else before.attempt + 1
        return Sent(reply, request, estimator, result, attempt)

    def finish(
        self, shards: list[Shard], wait: bool = True
    ) -> tuple[list[Shard], dict[int, Reply]]:
        """Send the requests that are not under way, and receive replies by shard.

        With `wait`, receive all replies. Otherwise receive those of at least half of the shards,
        and of at least half of the shards with a new request.
        """
        self.sent = [shard.pending or self.send(i, shard) for i, shard in enumerate(shards)]
        self.sent_at = time.perf_counter()
        new = {i for i, shard in enumerate(shards) if shard.pending is None}
        waiting = {message.reply: i for i, message in enumerate(self.sent)}
        replies: dict[int, Reply] = {}
        while waiting:
            answered = len(new & replies.keys())
            enough = 2 * len(replies) >= len(self.sent) and 2 * answered >= len(new)
            timeout = 0 if enough and not wait else None
            ready, _ = self.crew.ray.wait(list(waiting), num_returns=1, timeout=timeout)
            if not ready:
                break
            i = waiting.pop(ready[0])
            reply = self.crew.answer(ready[0])
            if isinstance(reply, Exception):
                self._again(i, shards[i], reply)
                waiting[self.sent[i].reply] = i
            else:
                replies[i] = reply
        after = [
            Shard(self.sent[i].result, scale=replies[i].scale)
            if i in replies
            else dataclasses.replace(shard, pending=self.sent[i])
            for i, shard in enumerate(shards)
        ]
        return after, replies

    def _again(self, i: int, shard: Shard, error: Exception) -> None:
        """Send a request again after its actor was lost."""
        sent = self.sent[i]
        if sent.attempt >= ATTEMPTS:
            raise PoolError(
                f"{self.crew.name}: {ATTEMPTS} actors in a row died of the same workers; see Ray's "
                f"logs for the cause. The last one: {last_line(error)}"
            ) from error
        if sent.result.actor is self.crew.actors[i]:  # not if it was replaced in the meantime
            self.crew.replace(i, error)
        self.sent[i] = self.send(i, shard, sent)


def _put_together(
    parts: list[slice], replies: dict[int, Any], stale: Collection[int] = ()
) -> Contributions:
    """Join the contributions of all shards, with NaN for workers without a reply.

    Observations of stale shards are left out: they are deviations from an earlier mean.
    """
    some, count = next(iter(replies.values())), parts[-1].stop
    norm = np.full(count, np.nan, some.norm.dtype)
    loss = np.full(count, np.nan, some.loss.dtype)
    odd = None if some.odd is None else np.full(count, np.nan, some.odd.dtype)
    steps = np.zeros((some.steps.shape[0], count), np.int32)
    for i, reply in replies.items():
        norm[parts[i]], loss[parts[i]] = reply.norm, reply.loss
        steps[:, parts[i]] = reply.steps
        if odd is not None:
            odd[parts[i]] = reply.odd
    sums = []
    for i, reply in sorted(replies.items()):
        fresh = float(i not in stale)
        observed = jax.tree.map(lambda x, f=fresh: x * np.asarray(f, x.dtype), reply.observed)
        sums.append((reply.grad, reply.slope, observed))
    grad, slope, observed = jax.tree.map(lambda *parts: jnp.asarray(sum(parts)), *sums)
    norms, losses, counts, odds = jax.tree.map(jnp.asarray, (norm, loss, steps, odd))
    return Contributions(grad, norms, losses, counts, odds, slope, observed)
