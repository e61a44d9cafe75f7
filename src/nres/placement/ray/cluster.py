"""Connection to a Ray cluster, or to a new one on this machine."""

import os
import socket
import warnings
from typing import Any

from nres.errors import first_line
from nres.multihost import split_address
from nres.pools.base import PoolError

INSTALL = "nres.placement.Ray needs Ray: pip install 'nres[ray]'."


def require_ray() -> Any:
    """Import the ray package, or raise an error that says how to install it."""
    try:
        import ray
    except ImportError as error:
        raise ImportError(INSTALL) from error
    return ray


def connect(address: str = "local", *, cpus: int | None = None, timeout: int | float = 10) -> None:
    """Connect this process to a Ray cluster, unless it is already connected.

    Args:
        address: `"local"` starts Ray on this machine for the lifetime of this process, closed to
            other machines; `"auto"` finds the cluster that runs on this machine; `HOST:PORT` is
            the address of any cluster's head.
        cpus: With `"local"`, the number of processors that Ray should count with. If it exceeds
            the machine's, actors share processors.
        timeout: The number of seconds to wait for an answer.

    Raises:
        PoolError: If no cluster answers at the address.
        ValueError: If the address has another form.

    Example:
        ```python
        nres.placement.ray.connect("10.0.0.1:6379")
        ```
    """
    ray = require_ray()
    if ray.is_initialized():
        return
    _listen(ray, only_here=address == "local")
    options: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False}
    if address == "local":
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # report nothing to anyone
        count = max(cpus or 0, os.cpu_count() or 1)
        with warnings.catch_warnings():
            # Ray forks only to start its processes, which is safe.
            warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
            ray.init("local", num_cpus=count, include_dashboard=False, **options)
        return
    if address != "auto":
        _check_reachable(address, timeout)
    try:
        ray.init(address, **options)
    except (ConnectionError, RuntimeError, ValueError) as error:
        where = "on this machine" if address == "auto" else f"at {address}"
        raise PoolError(
            f"there is no Ray cluster {where} ({first_line(error)}). Start one with `ray start "
            "--head`, give the address of another, or use `local`."
        ) from error


def _listen(ray: Any, only_here: bool) -> None:
    """Let Ray's processes listen only on this machine's loopback, or for a whole cluster.

    Whoever reaches Ray's ports can run code, so a cluster of one machine does not open them to
    others. Ray has a constant for this, meant for systems whose firewall would ask.
    """
    constants: Any = getattr(ray._private, "ray_constants", None)
    if hasattr(constants, "ENABLE_RAY_CLUSTER"):
        constants.ENABLE_RAY_CLUSTER = not only_here


def _check_reachable(address: str, timeout: int | float) -> None:
    where = split_address(address.removeprefix("ray://"))
    if where is None:
        raise ValueError(
            f"the address of a Ray cluster must be HOST:PORT, auto or local; got {address!r}."
        )
    try:
        socket.create_connection(where, timeout=timeout).close()
    except OSError as error:
        raise PoolError(
            f"no Ray cluster answers at {address} ({error}). Run `ray status` on its head to see "
            "if it runs, or start a new one with `ray start --head`."
        ) from error
