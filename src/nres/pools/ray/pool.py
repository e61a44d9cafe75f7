"""`RayPool`: any pool, on the machines of a Ray cluster."""

import dataclasses
import itertools
import math
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from nres.errors import first_line, last_line
from nres.pools.base import PoolError
from nres.pools.ray.actor import Actor, Facts, Noisy, Reply
from nres.pools.ray.cluster import connect, require_ray
from nres.pools.ray.post import Post, RayWindow, put_together
from nres.pools.ray.shares import RayState, Sent, Share, join, parts_of, split

# A window that ends with the death of its actor so many times in a row will always do so.
ATTEMPTS = 4
# Where a new actor found no room, none is asked for again for so long.
CROWDED_SECONDS = 600


class RayPool:
    r"""Any pool, in actors on the machines of a Ray cluster.

    Each actor has a share of the workers and keeps their states. An update sends $\theta$ through
    Ray's object store, once to each machine, and a few numbers a worker; each actor draws noise
    from keys and sends back its workers' losses and the sum of their contributions. So neither
    parameters nor noise of single workers are ever sent. Gradients are those of the pool without
    Ray, whatever the number of actors, but for the order of additions.

    If an actor or its machine is lost, another takes its place (one that is there already, where
    the cluster has no room for a new one). Its workers' episodes are unrolled again from their
    beginnings at the present $\theta$, with the noise they had, up to the step where they were; so
    the windows of all workers stay evenly distributed. `estimate.info.restarted` counts them.

    ```python
    pool = nres.pools.RayPool(lambda: nres.pools.MujocoPool("halfcheetah", threads=1), actors=8)
    estimator = nres.NRES(pool, workers=320, window=20, sigma=0.004)
    ```

    Only evolution strategies can use it. An actor forms the parameters of all its unrolls at once.

    **Arguments:**

    - `make_pool`: a function without arguments that returns a pool, or a `nres.System`; it is
        called on the machines of the actors, where `nres` must be installed.
    - `actors`: how many; each has an equal share of the workers, up to one.
    - `cpus`: processors for each of them; they decide how many actors fit on a machine.
    - `gpus`: likewise; without any, actors use JAX on their processors.
    - `allow_stale`: not to wait for the slowest. An update is made as soon as half of the actors
        have answered, by the workers that have; the others contribute to a later one, with the
        gradient at the $\theta$ they began with, and count less often. With actors that are alike
        it makes gradients noisier and slightly late for nothing. Off by default.
    - `patience`: seconds to wait for an actor to start.

    If no cluster is connected (`nres.pools.ray.connect`, or `ray.init`), one is started on this
    machine.
    """

    def __init__(
        self,
        make_pool: Any,
        *,
        actors: int,
        cpus: int | float = 1,
        gpus: int | float = 0,
        allow_stale: bool = False,
        patience: int | float = 60,
    ):
        if not callable(make_pool):
            raise TypeError(
                "RayPool needs a function that makes a pool, such as "
                '`lambda: nres.pools.MujocoPool("swimmer")`, which each actor calls for itself; '
                f"got {type(make_pool).__name__}."
            )
        if actors < 1:
            raise ValueError(f"actors must be at least 1, got {actors}.")
        self._ray = require_ray()
        _check_portable(self._ray, make_pool)
        connect("local", cpus=math.ceil(actors * cpus))
        there = self._ray.cluster_resources().get("CPU", 0)
        if actors * cpus > there:
            raise ValueError(
                f"{actors} actors with cpus={cpus} need {actors * cpus:g} processors, and the Ray "
                f"cluster has {there:g}: ask for fewer actors, or for smaller ones."
            )
        self.allow_stale, self.patience = allow_stale, patience
        self.phases: dict[str, float] = {}
        """Seconds of the last window: to send, to wait for replies, and the slowest actor's own."""
        self._remote = self._ray.remote(Actor).options(num_cpus=cpus, num_gpus=gpus)
        # What numbers an actor draws depends on it.
        names = ("jax_enable_x64", "jax_default_prng_impl")
        configuration = {name: getattr(jax.config, name) for name in names}
        if gpus == 0:
            configuration["jax_platforms"] = "cpu"
        self._arguments = (make_pool, configuration)
        # The actor that serves each share; where there is no room for more, one serves several.
        self._actors = [self._remote.remote(*self._arguments) for _ in range(actors)]
        self._dead: set[Any] = set()
        self._crowded_until = -math.inf
        self._numbers = itertools.count()
        self._forgotten: list[list[int]] = [[] for _ in range(actors)]
        try:
            facts = [self._facts(actor, share) for share, actor in enumerate(self._actors)]
        except BaseException:
            self.close()
            raise
        self.name, self.horizon, self.can_fork = facts[0]

    def __repr__(self) -> str:
        return f"RayPool({self.name}, actors={len(self._actors)})"

    def check(self, theta: PyTree) -> None:
        while True:
            try:
                return self._ray.get(self._actors[0].check.remote(0, jax.device_get(theta)))
            except self._ray.exceptions.RayTaskError as error:
                raise error.cause from error
            except self._ray.exceptions.RayError as error:
                self._replace(0, error)

    def close(self) -> None:
        """End the actors; the states that they keep are lost."""
        for actor in {*self._actors} - self._dead:
            self._ray.kill(actor)
        self._actors = []

    def fork(self, state: RayState, member: int) -> RayState:
        return RayState(tuple(dataclasses.replace(s, member=member) for s in state.shares))

    def fetch(self, state: RayState, at: tuple | None = None) -> tuple[PyTree, PyTree]:
        """The states that actors keep, as arrays, and the scores that go with them.

        With windows under way it waits for them, and asks for what was there before.

        **Arguments:**

        - `state`: what `advance` returned.
        - `at`: theta, `Noisy`, keys and starts of the workers, to make anew what was lost.
        """
        shares = list(state.shares)
        for _ in range(ATTEMPTS):
            calls = [
                self._ray.put(share.given)
                if share.kept is None
                else share.kept.actor.fetch.remote(i, share.kept.number, share.member)
                for i, share in enumerate(shares)
            ]
            parts: list[Any] = [self._got(call) for call in calls]
            lost = [i for i, part in enumerate(parts) if isinstance(part, Exception)]
            if not lost:
                break
            shares = self._restored(shares, {i: parts[i] for i in lost}, at)
        else:
            raise PoolError(f"{self.name}: actors are lost faster than states can be fetched.")
        states, scores = zip(*parts, strict=True)
        return (
            jax.tree.map(lambda *leaves: join(leaves, 1), *states),
            jax.tree.map(lambda *leaves: join(leaves, 0), *scores),
        )

    def _restored(
        self, shares: list[Share], lost: dict[int, Exception], at: tuple | None
    ) -> list[Share]:
        """Shares of which some were lost, unrolled again by other actors up to where they were."""
        if at is None:
            raise PoolError("an actor was lost, and the states that it kept.")
        theta, noisy, keys, start = at
        rows = (keys, start, np.zeros_like(start))
        post = Post(self, theta, noisy, parts_of(len(start), len(self._actors)), rows, 0)
        shares = list(shares)
        for i, error in lost.items():
            if not self._lost(i, shares[i]):
                self._replace(i, error)
            sent = post.send(i, shares[i])
            if not isinstance(self._got(sent.reply), Exception):  # else it is lost again
                shares[i] = Share(sent.result)
        return shares

    def _got(self, call: Any) -> Any:
        """What an actor answers; or, if it is lost, the error that says so."""
        try:
            return self._ray.get(call)
        except self._ray.exceptions.RayTaskError as error:
            raise PoolError(f"{self.name}, on an actor: {error.cause!r}") from error
        except self._ray.exceptions.RayError as error:
            return error

    def adopt(self, states: PyTree, scores: PyTree = None) -> RayState:
        """The opposite: a state to go on from, made of arrays with axes (members, workers)."""
        return RayState(tuple(split(states, scores, len(self._actors))))

    def advance(
        self,
        state: Any,
        thetas: PyTree,
        keys: np.ndarray,
        start: np.ndarray,
        window: int,
        length: np.ndarray | None = None,
        *,
        noisy: Noisy | None = None,
        wait: bool = True,
    ) -> RayWindow:
        """As `Pool.advance`; or with perturbed parameters, of which theta is sent alone.

        **Arguments:**

        - `state`: what an earlier call or `adopt` returned, or `None`.
        - `thetas`: the parameters of each unroll, or, with `noisy`, the theta of all.
        - `noisy`: how to perturb it.
        - `wait`: whether to wait for all workers even if `allow_stale`.
        """
        began = time.perf_counter()
        length = np.full_like(start, window) if length is None else length
        parts = parts_of(len(start), len(self._actors))
        if state is not None and not isinstance(state, RayState):
            state = self.adopt(state)
        shares = [Share()] * len(parts) if state is None else list(state.shares)
        post = Post(self, thetas, noisy, parts, (keys, start, length), window)
        sent = [share.pending or post.send(i, share) for i, share in enumerate(shares)]
        wait_began = time.perf_counter()
        new = {i for i, share in enumerate(shares) if share.pending is None}
        replies = self._receive(post, shares, sent, None if wait or not self.allow_stale else new)
        self.phases = {
            "send": wait_began - began,
            "wait": time.perf_counter() - wait_began,
            "busy": max(reply.seconds for reply in replies.values()),
        }
        return put_together(parts, shares, sent, replies)

    def _receive(
        self, post: Post, shares: list[Share], sent: list[Sent], new: set[int] | None
    ) -> dict[int, Reply]:
        """Replies by share. What was lost is sent again.

        All of them; or, if some need not be waited for, those of half of the shares at least, and
        of half of the `new` ones, which were not asked before.
        """
        waiting = {message.reply: i for i, message in enumerate(sent)}
        replies: dict[int, Reply] = {}
        while waiting:
            enough = new is not None and (
                2 * len(replies) >= len(sent) and 2 * len(new & replies.keys()) >= len(new)
            )
            timeout = 0 if enough else None
            ready, _ = self._ray.wait(list(waiting), num_returns=1, timeout=timeout)
            if not ready:
                break
            i = waiting.pop(ready[0])
            reply = self._got(ready[0])
            if not isinstance(reply, Exception):
                replies[i] = reply
                continue
            if sent[i].attempt >= ATTEMPTS:
                raise PoolError(
                    f"{self.name}: {ATTEMPTS} actors in a row died of the same workers; Ray's logs "
                    f"say why. The last one: {last_line(reply)}"
                ) from reply
            if sent[i].result.actor is self._actors[i]:  # or it has been replaced meanwhile
                self._replace(i, reply)
            sent[i] = post.send(i, shares[i], sent[i])
            waiting[sent[i].reply] = i
        return replies

    def _lost(self, i: int, share: Share) -> bool:
        return share.kept is not None and share.kept.actor is not self._actors[i]

    def _replace(self, i: int, error: Exception) -> None:
        """Find another actor for a share whose own was lost."""
        lost = self._actors[i]
        self._dead.add(lost)
        self._ray.kill(lost)  # it may only have been out of reach
        if time.monotonic() > self._crowded_until:
            actor = self._remote.remote(*self._arguments)
            try:
                self._facts(actor, i)
            except PoolError:
                self._crowded_until = time.monotonic() + CROWDED_SECONDS
            else:
                self._actors[i] = actor
                return
        others = [actor for actor in self._actors if actor not in self._dead]
        for actor in sorted(set(others), key=others.count):
            if not isinstance(self._got(actor.facts.remote(i)), Exception):
                self._actors[i] = actor
                return
            self._dead.add(actor)
        raise PoolError(
            f"{self.name}: the last actor was lost ({last_line(error)}), and no other could be "
            "started."
        ) from error

    def _facts(self, actor: Any, share: int) -> Facts:
        """What the actor's pool is, once it is there."""
        call = actor.facts.remote(share)
        ready, _ = self._ray.wait([call], timeout=self.patience)
        if not ready:
            self._ray.kill(actor)
            free = self._ray.available_resources().get("CPU", 0)
            raise PoolError(
                f"no actor started within {self.patience:g} s; {free:g} processors of the Ray "
                "cluster are free. Ask for fewer actors, or give it time (patience)."
            )
        try:
            return self._ray.get(call)
        except self._ray.exceptions.RayTaskError as error:
            raise PoolError(f"make_pool failed on an actor: {error.cause!r}") from error
        except self._ray.exceptions.RayError as error:
            raise PoolError(
                f"an actor could not be started: {last_line(error)}. What make_pool refers to "
                "must be installed on the machines of the actors."
            ) from error


def _check_portable(ray: Any, make_pool: Callable) -> None:
    try:
        ray.cloudpickle.dumps(make_pool)
    except Exception as error:
        raise TypeError(
            f"make_pool cannot be sent to other machines: {first_line(error)}. Let it make what it "
            "needs itself, rather than refer to what exists here already."
        ) from error
