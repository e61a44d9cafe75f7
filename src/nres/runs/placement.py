"""Placement of a run's workers: on one device, on several, or in the actors of a Ray cluster."""

import dataclasses
import functools

import jax

from nres import multihost
from nres.placement import Devices, Local, Placement, Ray
from nres.placement.ray import connect
from nres.placement.ray.cluster import require_ray
from nres.pools.base import Pool
from nres.pools.jax import as_pool
from nres.runs.names import SettingsError, load_system
from nres.runs.registry import SYSTEMS
from nres.runs.settings import Settings
from nres.system import System


def check_placement(settings: Settings) -> None:
    """Refuse settings that contradict each other about where to run."""
    if settings.ray is None and (settings.actors is not None or settings.allow_stale):
        raise SettingsError("--actors and --allow-stale need --ray local, auto or HOST:PORT.")
    if settings.ray is not None and (settings.devices is not None or multihost.is_multihost()):
        raise SettingsError(
            "workers are shared among --devices (of several hosts, too) or among the actors of "
            "--ray, not among both."
        )


def place(settings: Settings, system: System | Pool) -> Placement:
    """Make the placement of a run's workers; by default they live here.

    **Arguments:**

    - `settings`: the settings of the run, whose `devices`, `ray`, `actors` and `allow_stale` say
        where.
    - `system`: what is unrolled.
    """
    if settings.devices is not None:
        return _on_devices(settings.system, system, settings.devices)
    if settings.ray is not None:
        return _on_ray(settings, system)
    return Local()


def unplaced(settings: Settings) -> Settings:
    """Return the settings of the same run on one device of this process."""
    return dataclasses.replace(settings, devices=None, ray=None, actors=None, allow_stale=False)


def relocated(
    settings: Settings,
    *,
    devices: str | int | None = None,
    ray: str | None = None,
    actors: int | None = None,
    allow_stale: bool = False,
) -> Settings:
    """Return the settings of the same run elsewhere; where it was, if no place is given.

    **Arguments:**

    - `settings`: the settings of the run.
    - `devices`, `ray`, `actors`, `allow_stale`: as in `Settings`; `ray="none"` brings a run back
        from a cluster.
    """
    count = device_count(devices)
    if ray is None and count is None:  # the same place, perhaps with other actors
        actors = settings.actors if actors is None else actors
        allow_stale = settings.allow_stale or allow_stale
        changed = dataclasses.replace(settings, actors=actors, allow_stale=allow_stale)
    else:
        changed = dataclasses.replace(
            settings,
            devices=count,
            ray=None if ray == "none" else ray,
            actors=actors,
            allow_stale=allow_stale,
        )
    check_placement(changed)
    return changed


def device_count(devices: str | int | None) -> int | None:
    """Return a number of devices, for `"all"` as many as there are.

    Several hosts always share all of theirs.
    """
    if devices == "all" or (devices is None and multihost.is_multihost()):
        return jax.device_count()
    if not isinstance(devices, str):
        return devices
    try:
        return int(devices)
    except ValueError:
        raise SettingsError(f"--devices takes a number, or all; got {devices!r:.60}.") from None


def _on_devices(name: str, system: System | Pool, count: int) -> Devices:
    """Share the workers among so many devices, those of all processes if there are several."""
    there = jax.devices()
    if not as_pool(system).traceable:
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
    return Devices(jax.make_mesh((count,), ("workers",), devices=there[:count]))


def _on_ray(settings: Settings, system: System | Pool) -> Ray:
    """Make the system in each of the actors of a Ray cluster."""
    assert settings.ray is not None
    # The constructor of a user's own pool may not know these.
    suitable = as_pool(system).one_processor_options if settings.system in SYSTEMS else {}
    options = {**suitable, **settings.options}
    make = functools.partial(load_system, settings.system, options)
    try:
        connect(settings.ray, cpus=settings.actors)
        actors = settings.actors or int(require_ray().cluster_resources()["CPU"])
        return Ray(make_pool=make, actors=actors, allow_stale=settings.allow_stale)
    except (TypeError, ValueError) as error:
        raise SettingsError(f"--ray {settings.ray}: {error}") from error
