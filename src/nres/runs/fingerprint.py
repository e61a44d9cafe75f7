"""Fingerprints of systems, so that a run notices when its system has changed."""

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

# Locations of code and of objects in memory, which the text of a program may contain.
_LOCATIONS = re.compile(r" at 0x[0-9a-fA-F]+| at \S+\.py:\d+|\S+\.py:\d+(:\d+)?")


def fingerprint(settings: Settings, components: Components) -> dict[str, str]:
    """Compute a fingerprint of a system, which changes when the system changes.

    For a JAX system it covers the traced computation with its constants; for any other system the
    options and the file. It depends neither on the terminal nor on where nres is installed.
    """
    return _described(settings, components, lambda jaxpr: _LOCATIONS.sub("", _plain(jaxpr)))


def is_same(recorded: Any, settings: Settings, components: Components) -> bool:
    """Return whether a recorded fingerprint fits these components, or cannot be compared."""
    new = fingerprint(settings, components)
    if not isinstance(recorded, dict) or recorded.get("jax") != new["jax"]:
        return True  # another version or device may trace the same system differently
    if recorded == new:
        return True
    # Earlier versions used the text that JAX prints, in colour if that was a terminal.
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
    if pool.lengths is not None:
        digest.update(repr(pool.lengths).encode())
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
    # The traced computation may depend on the version of JAX and on the kind of device.
    where = f"{jax.__version__} on {jax.default_backend()}"
    return {"jax": where, "sha256": digest.hexdigest()}
