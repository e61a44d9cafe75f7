"""Fingerprints, by which a run notices that its system has changed."""

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from nres.pools.jax import as_pool
from nres.runs.components import Components
from nres.runs.settings import Settings

# Locations of code and of objects in memory, which a text about a program may mention.
_LOCATIONS = re.compile(r" at 0x[0-9a-fA-F]+| at \S+\.py:\d+|\S+\.py:\d+(:\d+)?")


def fingerprint(settings: Settings, components: Components) -> dict[str, str]:
    """Compute a fingerprint of a system, which changes when the system does.

    It covers the computation of a JAX system and the numbers in it, and the options and the file
    of any other. It depends neither on the terminal nor on where nres is installed.
    """
    return _described(settings, components, lambda jaxpr: _LOCATIONS.sub("", _plain(jaxpr)))


def is_same(recorded: Any, settings: Settings, components: Components) -> bool:
    """Tell if a recorded fingerprint is that of these components, as far as that is known."""
    new = fingerprint(settings, components)
    if not isinstance(recorded, dict) or recorded.get("jax") != new["jax"]:
        return True  # made elsewhere: the same system may be written in another way
    if recorded == new:
        return True
    # Earlier versions wrote programs as JAX shows them: in colour if that was a terminal.
    earlier = (_plain, lambda jaxpr: jaxpr.pretty_print(use_color=True))
    return any(recorded == _described(settings, components, text) for text in earlier)


def _plain(jaxpr: Any) -> str:
    return jaxpr.pretty_print(use_color=False)


def _described(
    settings: Settings, components: Components, text: Callable[[Any], str]
) -> dict[str, str]:
    digest = hashlib.sha256()
    pool, theta = as_pool(components.system), components.theta
    shapes = [(str(x.dtype), x.shape) for x in jax.tree.leaves(theta)]
    digest.update(f"{type(pool).__qualname__} {pool.horizon} {shapes}".encode())
    file = settings.system.rpartition(":")[0]
    programs = pool.programs(theta)
    if not programs:
        digest.update(json.dumps(settings.options, sort_keys=True).encode())
        if file.endswith(".py"):
            digest.update(Path(file).read_bytes())
    for jaxpr in programs:
        digest.update(text(jaxpr).encode())
        for constant in jaxpr.consts:
            digest.update(np.asarray(constant).tobytes())
    # Another version of JAX may write the same system differently, and a system may compute the
    # same in another way on another kind of device.
    where = f"{jax.__version__} on {jax.default_backend()}"
    return {"jax": where, "sha256": digest.hexdigest()}
