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

# The settings that say where the workers of a run live.
PLACEMENT = ("devices", "ray", "actors", "allow_stale")


def check_placement(settings: Settings) -> None:
    """Raise an error if settings contradict each other about where to run."""
    if settings.ray is None and (settings.actors is not None or settings.allow_stale):
        raise SettingsError("--actors and --allow-stale need --ray local, auto or HOST:PORT.")
    if settings.ray is not None and (settings.devices is not None or multihost.is_multihost()):
        raise SettingsError(
            "--devices (or several hosts) and --ray cannot be combined: workers live on devices or "
            "in actors."
        )


def place(settings: Settings, system: System | Pool) -> Placement:
    """Make the placement of a run's workers; by default they live in this process.

    Args:
        settings: The settings of the run, whose `devices`, `ray`, `actors` and `allow_stale` say
            where.
        system: The system or pool to unroll.
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
    """Return settings that move a run elsewhere; without arguments it stays where it was.

    Args:
        settings: The settings of the run.
        devices: A number of devices, or `"all"`.
        ray: The address of a Ray cluster; `"none"` brings a run back from one.
        actors: The number of actors.
        allow_stale: Do not wait for the slower half of the actors.

    Returns:
        The changed settings.
    """
    count = device_count(devices)
    if ray is None and count is None:  # the same cluster, perhaps with another number of actors
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
    """Return a number of devices; `"all"` stands for all that exist.

    Several hosts always use all of their devices.
    """
    if devices == "all" or (devices is None and multihost.is_multihost()):
        return jax.device_count()
    if not isinstance(devices, str):
        return devices
    try:
        return int(devices)
    except ValueError:
        raise SettingsError(f"--devices takes a number or all, got {devices!r:.60}.") from None


def _on_devices(name: str, system: System | Pool, count: int) -> Devices:
    """Share the workers among devices: those of all processes, if there are several."""
    there = jax.devices()
    if not as_pool(system).traceable:
        raise SettingsError(
            f"--devices does not apply to {name}, because JAX does not compute it: it uses all "
            "processors of this machine, or of several machines with --ray."
        )
    if not 1 <= count <= len(there):
        raise SettingsError(
            f"--devices is {count}, but this machine has {len(there)} ({there[0].device_kind}): "
            f"choose a number from 1 to {len(there)}, or all."
        )
    if multihost.is_multihost() and count != len(there):
        raise SettingsError(
            f"several hosts use all of their {len(there)} devices, but --devices is {count}: leave "
            "it out."
        )
    return Devices(jax.make_mesh((count,), ("workers",), devices=there[:count]))


def _on_ray(settings: Settings, system: System | Pool) -> Ray:
    """Construct the system in each actor of a Ray cluster."""
    assert settings.ray is not None
    # The constructor of a user's own pool may not accept these.
    suitable = as_pool(system).one_processor_options if settings.system in SYSTEMS else {}
    options = {**suitable, **settings.options}
    make = functools.partial(load_system, settings.system, options)
    try:
        connect(settings.ray, cpus=settings.actors)
        actors = settings.actors or int(require_ray().cluster_resources()["CPU"])
        return Ray(make_pool=make, actors=actors, allow_stale=settings.allow_stale)
    except (TypeError, ValueError) as error:
        raise SettingsError(f"--ray {settings.ray}: {error}") from error
