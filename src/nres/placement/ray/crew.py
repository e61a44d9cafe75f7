"""The actors of a placement: starting them, asking them, and replacing lost ones."""

import itertools
import math
import time
from collections.abc import Callable
from typing import Any

import jax

from nres.errors import last_line
from nres.placement.ray.actor import Actor, Metadata
from nres.placement.ray.cluster import connect, require_ray
from nres.pools.base import PoolError

# After a new actor found no room, no other is requested for this many seconds.
CROWDED_SECONDS = 600


class Crew:
    """A fixed number of actors, each with a shard of the workers.

    Args:
        make_pool: A function that makes the pool of an actor, and is called there.
        actors: The number of actors, as for `nres.placement.Ray`.
        cpus: The number of processors per actor, as for `nres.placement.Ray`.
        gpus: The number of GPUs per actor, as for `nres.placement.Ray`.
        start_timeout: Seconds to wait for an actor to start, as for `nres.placement.Ray`.
    """

    def __init__(
        self,
        make_pool: Callable,
        actors: int,
        cpus: int | float,
        gpus: int | float,
        start_timeout: int | float,
    ):
        self.ray = require_ray()
        connect("local", cpus=math.ceil(actors * cpus))
        there = self.ray.cluster_resources().get("CPU", 0)
        if actors * cpus > there:
            raise ValueError(
                f"actors: {actors} with cpus={cpus} need {actors * cpus:g} processors, but the Ray "
                f"cluster has {there:g}: ask for fewer actors, or for smaller ones."
            )
        self.start_timeout = start_timeout
        self._remote = self.ray.remote(Actor).options(num_cpus=cpus, num_gpus=gpus)
        # An actor's random numbers depend on these settings.
        names = ("jax_enable_x64", "jax_default_prng_impl")
        configuration = {name: getattr(jax.config, name) for name in names}
        if gpus == 0:
            configuration["jax_platforms"] = "cpu"
        self._arguments = (make_pool, configuration)
        # The actor that serves each shard; if there is no room for more, one serves several.
        self.actors = [self._remote.remote(*self._arguments) for _ in range(actors)]
        self._dead: set[Any] = set()
        self.crowded_until = -math.inf
        self.numbers = itertools.count()
        self.forgotten: list[list[int]] = [[] for _ in range(actors)]
        try:
            self.metadata, *_ = [self._describe(actor, i) for i, actor in enumerate(self.actors)]
        except BaseException:
            self.close()
            raise

    @property
    def name(self) -> str:
        return self.metadata.name

    def close(self) -> None:
        """End the actors; the states that they keep are lost."""
        for actor in {*self.actors} - self._dead:
            self.ray.kill(actor)
        self.actors = []

    def answer(self, call: Any) -> Any:
        """Wait for an actor's answer; if the actor is lost, return the error that says so."""
        try:
            return self.ray.get(call)
        except self.ray.exceptions.RayTaskError as error:
            raise PoolError(f"{self.name}, on an actor: {error.cause!r}") from error
        except self.ray.exceptions.RayError as error:
            return error

    def replace(self, i: int, error: Exception) -> None:
        """Find another actor for a shard whose actor was lost."""
        lost = self.actors[i]
        self._dead.add(lost)
        self.ray.kill(lost)  # it may still live, out of reach
        if time.monotonic() > self.crowded_until:
            actor = self._remote.remote(*self._arguments)
            try:
                self._describe(actor, i)
            except PoolError:
                self.crowded_until = time.monotonic() + CROWDED_SECONDS
            else:
                self.actors[i] = actor
                return
        others = [actor for actor in self.actors if actor not in self._dead]
        for actor in sorted(set(others), key=others.count):
            if not isinstance(self.answer(actor.describe.remote(i)), Exception):
                self.actors[i] = actor
                return
            self._dead.add(actor)
        raise PoolError(
            f"{self.name}: the last actor was lost ({last_line(error)}), and no new one could be "
            "started."
        ) from error

    def _describe(self, actor: Any, shard: int) -> Metadata:
        """Wait until the actor's pool exists, and return its metadata."""
        call = actor.describe.remote(shard)
        ready, _ = self.ray.wait([call], timeout=self.start_timeout)
        if not ready:
            self.ray.kill(actor)
            free = self.ray.available_resources().get("CPU", 0)
            raise PoolError(
                f"no actor started within {self.start_timeout:g} s: the Ray cluster has no room "
                f"for one ({free:g} processors are free), or its machines are slow. Ask for fewer "
                "actors, or wait longer (start_timeout)."
            )
        try:
            return self.ray.get(call)
        except self.ray.exceptions.RayTaskError as error:
            raise PoolError(f"an actor could not make the pool: {error.cause!r}") from error
        except self.ray.exceptions.RayError as error:
            raise PoolError(
                f"an actor could not be started: {last_line(error)}. Install everything that the "
                "pool needs on the actors' machines."
            ) from error
