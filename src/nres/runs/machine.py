"""Descriptions of the machine and the software of a run, for its config."""

import contextlib
import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import jax

import nres

_PACKAGES = ("jax", "jaxlib", "equinox", "optax", "numpy", "orbax-checkpoint", "mujoco")


def versions() -> dict[str, str]:
    """Return the versions of Python, nres and all packages that results depend on."""
    found = {"python": platform.python_version(), "nres": nres.__version__}
    for package in _PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def device() -> dict[str, Any]:
    """Return a description of the device that this process computes on."""
    devices = jax.devices()
    return {
        "backend": jax.default_backend(),
        "kind": devices[0].device_kind,
        "count": len(devices),
        "machine": platform.machine(),
        "processors": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
    }


def git_commit() -> dict[str, Any] | None:
    """Return the commit that is checked out in the current folder, or `None`."""

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", *arguments], capture_output=True, text=True, check=True, timeout=10
        )
        return done.stdout.strip()

    try:
        return {"commit": git("rev-parse", "HEAD"), "changed": bool(git("status", "--porcelain"))}
    except (OSError, subprocess.SubprocessError):
        return None
