"""Where a run's workers are: on one device, on several, or in the actors of a Ray cluster."""

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

import jax

from nres import multihost
from nres.experiments.presets import SYSTEMS
from nres.pools.base import Pool
from nres.pools.jax import JaxPool
from nres.pools.mujoco import MujocoPool
from nres.pools.ray import RayPool, connect
from nres.pools.ray.cluster import require_ray
from nres.runs.names import SettingsError, load_system
from nres.system import System

if TYPE_CHECKING:
    from nres.runs.settings import Settings


def check_places(settings: "Settings") -> None:
    """Refuse what contradicts itself about where to run."""
    if settings.ray is None and (settings.actors is not None or settings.allow_stale):
        raise SettingsError("--actors and --allow-stale need --ray local, auto or HOST:PORT.")
    if settings.actors is not None and settings.actors < 1:
        raise SettingsError(f"actors must be at least 1, got {settings.actors}.")
    if settings.ray is not None and (settings.devices is not None or multihost.is_multihost()):
        raise SettingsError(
            "workers are shared among --devices (of several hosts, too) or among the actors of "
            "--ray, not among both."
        )


def moved(
    settings: "Settings",
    devices: int | None,
    ray: str | None,
    actors: int | None,
    allow_stale: bool,
) -> "Settings":
    """The same run in another place, if one is said."""
    given: dict[str, Any] = {"devices": devices, "ray": ray, "actors": actors}
    given["allow_stale"] = allow_stale
    if ray is None and devices is None:  # where it was
        given |= {"devices": settings.devices, "ray": settings.ray}
        given["actors"] = settings.actors if actors is None else actors
        given["allow_stale"] = settings.allow_stale or allow_stale
    elif ray == "none":
        given["ray"] = None
    changed = dataclasses.replace(settings, **given)
    check_places(changed)
    return changed


def on_devices(system: System | Pool, name: str, count: int) -> JaxPool:
    """The system on so many devices, those of all processes if there are several."""
    there = jax.devices()
    if not isinstance(system, System):
        raise SettingsError(
            f"{name} is not computed by JAX, so --devices does not apply: it uses the "
            "processors of this machine, or with --ray those of several."
        )
    if not 1 <= count <= len(there):
        raise SettingsError(
            f"--devices asks for {count}, and there are {len(there)} ({there[0].device_kind}): "
            f"take from 1 to {len(there)}, or all."
        )
    if multihost.is_multihost() and count != len(there):
        raise SettingsError(
            f"several hosts share all of their {len(there)} devices; --devices asks for {count}."
        )
    return JaxPool(system, mesh=jax.make_mesh((count,), ("workers",), devices=there[:count]))


def on_ray(system: System | Pool, settings: "Settings") -> RayPool:
    """The system in the actors of a Ray cluster."""
    assert settings.ray is not None
    options = settings.options
    if settings.system in SYSTEMS and isinstance(system, MujocoPool):
        options = {"threads": 1} | options  # an actor has one processor
    make = functools.partial(load_system, settings.system, options)
    try:
        connect(settings.ray, cpus=settings.actors)
        actors = settings.actors or int(require_ray().cluster_resources()["CPU"])
        return RayPool(make, actors=actors, allow_stale=settings.allow_stale)
    except (TypeError, ValueError) as error:
        raise SettingsError(f"--ray {settings.ray}: {error}") from error
