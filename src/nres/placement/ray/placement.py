"""`Ray`: workers in actors on the machines of a Ray cluster."""

import copy
import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from nres.checks import whole_number
from nres.errors import first_line, last_line
from nres.placement.base import Outcome, Placement
from nres.placement.local import Local
from nres.placement.ray.actor import Detached, Reply, Request, Rows
from nres.placement.ray.cluster import require_ray
from nres.placement.ray.crew import Crew
from nres.placement.ray.shards import Sent, Shard, ShardedCarry, StateRef, join, parts_of, split
from nres.pools.base import Pool, PoolError
from nres.workers import Contributions, Workers

# A window that ends with the death of its actor so many times in a row will always do so.
ATTEMPTS = 4


class Ray(Placement):
    r"""Workers in actors on the machines of a Ray cluster.

    Each actor has a shard of the workers and keeps what they carry. An update sends $\theta$
    through Ray's object store, once to each machine, and a few numbers per worker; each actor
    draws noise from keys and sends back its workers' losses and the sum of their contributions.
    So neither parameters nor noise of single workers are ever sent. Gradients are those of a
    single process, whatever the number of actors, but for the order of additions.

    If an actor or its machine is lost, another takes its place (one that is there already, where
    the cluster has no room for a new one). Its workers' episodes are unrolled again from their
    beginnings at the present $\theta$, with the noise they had, up to the step where they were; so
    the windows of all workers stay evenly distributed. `restarted` counts these workers.

    ```python
    pool = nres.pools.MujocoPool("halfcheetah", threads=1)
    estimator = nres.NRES(
        pool, workers=320, window=20, sigma=0.004, placement=nres.placement.Ray(actors=8)
    )
    ```

    **Arguments:**

    - `actors`: how many; each has an equal share of the workers, up to one.
    - `make_pool`: a function without arguments that returns the pool, or the `nres.System`, of an
        actor; it is called on the machines of the actors, where `nres` must be installed. By
        default the estimator's own pool is sent to them.
    - `cpus`: processors for each actor; they decide how many actors fit on a machine.
    - `gpus`: likewise; without any, actors use JAX on their processors.
    - `allow_stale`: do not wait for the slowest. An update is made as soon as half of the actors
        have answered, by the workers that have; the others contribute to a later one, with the
        gradient at the $\theta$ they began with, and count less often (`late` counts them). With
        actors that are alike it makes gradients noisier and slightly late for nothing. Off by
        default.
    - `patience`: seconds to wait for an actor to start.

    If no cluster is connected (`nres.placement.ray.connect`, or `ray.init`), one is started on
    this machine.
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
        patience: int | float = 60,
    ):
        if make_pool is not None and not callable(make_pool):
            raise TypeError(
                "make_pool must be a function that makes a pool, such as "
                '`lambda: nres.pools.MujocoPool("swimmer")`, which each actor calls for itself; '
                f"got {type(make_pool).__name__}."
            )
        self.allow_stale = allow_stale
        self.phases: dict[str, float] = {}
        """Seconds of the last window: to send, to wait for replies, and the slowest actor's own."""
        self._start = functools.partial(
            Crew, actors=whole_number("actors", actors), cpus=cpus, gpus=gpus, patience=patience
        )
        self._make_pool = make_pool
        self._pool: Pool | None = None
        self._started: Crew | None = None

    def __reduce__(self) -> Any:
        # An estimator that travels to an actor finds all of its workers there.
        return Local, ()

    @property
    def crew(self) -> Crew:
        """The actors, once an estimator has been placed here."""
        if self._started is None:
            raise PoolError("these actors serve no estimator, or have been closed.")
        return self._started

    def can_trace(self, pool):
        return False

    def check(self, estimator):
        super().check(estimator)
        pool = estimator.pool
        if self.allow_stale and estimator.window == estimator.horizon:
            raise ValueError(
                "with allow_stale, windows must be shorter than episodes: what is late would have "
                "to be carried to the next estimate, and nothing is where a window is an episode."
            )
        if self._pool is None:
            self._started = self._start(self._portable_maker(pool))
            self._pool = pool
        elif pool is not self._pool and self._make_pool is None:
            raise ValueError(
                f"these actors serve {self.crew.name} already: give another pool its own "
                "nres.placement.Ray."
            )
        theirs = self.crew.metadata
        if (theirs.horizon, theirs.can_fork) != (estimator.horizon, pool.can_fork):
            self.close()
            raise ValueError(
                f"make_pool makes a pool with horizon {theirs.horizon} and can_fork="
                f"{theirs.can_fork}, and the estimator's has {estimator.horizon} and "
                f"{pool.can_fork}."
            )

    def close(self) -> None:
        """End the actors; what their workers carry is lost."""
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
        # Nobody may be late before the first update: workers are brought to their places.
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
        return Outcome(
            None if carry is None else ShardedCarry(tuple(shards)),
            _put_together(parts, {i: reply.contributions for i, reply in replies.items()}),
            jnp.asarray(late),
            jnp.asarray(report),
        )

    def gather(self, estimator, theta, workers, carry):
        """Fetch what the workers carry; with windows under way, what was there before."""
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
                if not isinstance(crew.answer(sent.reply), Exception):  # else it is lost again
                    shards[i] = Shard(sent.result, scale=shards[i].scale)
        raise PoolError(f"{crew.name}: actors are lost faster than states can be fetched.")

    def _portable_maker(self, pool: Pool) -> Callable[[], Any]:
        """Return the function that makes a pool on an actor, if it can be sent there."""
        make_pool = self._make_pool or functools.partial(copy.deepcopy, pool)
        try:
            require_ray().cloudpickle.dumps(make_pool)
        except Exception as error:
            raise TypeError(
                f"{type(pool).__name__} cannot be sent to other machines: {first_line(error)}. "
                "Give nres.placement.Ray a function `make_pool` that makes it there, and refers "
                "to nothing that exists only here."
            ) from error
        return make_pool

    def _shards(self, carry: Any, parts: list[slice]) -> list[Shard]:
        if isinstance(carry, ShardedCarry):
            return list(carry.shards)
        return split(carry, parts)  # it comes from a checkpoint

    def _window(self, what, estimator, theta, workers: Workers, parts, length) -> "_Window":
        return _Window(self.crew, what, estimator, theta, workers, parts, length)


class _Window:
    """One window of all workers: what is sent to each actor, and what comes back."""

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
        # By value, and without the pool: a few hundred bytes.
        self.estimator = jax.device_get(eqx.tree_at(lambda e: e.pool, estimator, Detached()))
        self.theta = crew.ray.put(jax.device_get(theta))
        words, episode, start, length = jax.device_get(
            (jax.random.key_data(workers.key), workers.episode, workers.start, length)
        )
        length = np.full_like(start, estimator.window) if length is None else length
        generator = str(jax.random.key_impl(workers.key))
        self.rows = Rows(words, generator, episode, start, length, None)
        self.sent: list[Sent] = []
        self.sent_at = 0.0

    def is_lost(self, i: int, shard: Shard) -> bool:
        return shard.ref is not None and shard.ref.actor is not self.crew.actors[i]

    def send(self, i: int, shard: Shard, before: Sent | None = None) -> Sent:
        """Ask for the window of a shard, for the first time or after its actor was lost."""
        crew = self.crew
        lost = self.is_lost(i, shard) or (before is not None and shard.given is None)
        actor = crew.actors[i]
        result = StateRef(actor, next(crew.numbers), crew.forgotten[i])
        forgotten = crew.forgotten[i]  # more may be added at any moment
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
        """Send what is not under way, and receive replies by shard.

        All of them; or, if some need not be waited for, those of half of the shards at least, and
        of half of those that were not asked before.
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
        """Send a request again whose actor was lost."""
        sent = self.sent[i]
        if sent.attempt >= ATTEMPTS:
            raise PoolError(
                f"{self.crew.name}: {ATTEMPTS} actors in a row died of the same workers; Ray's "
                f"logs say why. The last one: {last_line(error)}"
            ) from error
        if sent.result.actor is self.crew.actors[i]:  # or it has been replaced meanwhile
            self.crew.replace(i, error)
        self.sent[i] = self.send(i, shard, sent)


def _put_together(parts: list[slice], replies: dict[int, Any]) -> Contributions:
    """Join the contributions of all shards; those of workers without a reply are not numbers."""
    some, count = next(iter(replies.values())), parts[-1].stop
    norm = np.full(count, np.nan, some.norm.dtype)
    loss = np.full(count, np.nan, some.loss.dtype)
    steps = np.zeros((some.steps.shape[0], count), np.int32)
    for i, reply in replies.items():
        norm[parts[i]], loss[parts[i]] = reply.norm, reply.loss
        steps[:, parts[i]] = reply.steps
    grad = jax.tree.map(
        lambda *g: jnp.asarray(sum(g)), *[r.grad for _, r in sorted(replies.items())]
    )
    return Contributions(grad, *map(jnp.asarray, (norm, loss, steps)))
