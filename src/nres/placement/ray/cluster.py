"""Finding a Ray cluster, or starting one on this machine."""

import os
import socket
import warnings
from typing import Any

from nres.errors import first_line
from nres.multihost import split_address
from nres.pools.base import PoolError

INSTALL = "nres.placement.Ray needs Ray: pip install 'nres[ray]'."


def require_ray() -> Any:
    """The ray package, or an error that says how to get it."""
    try:
        import ray
    except ImportError as error:
        raise ImportError(INSTALL) from error
    return ray


def connect(address: str = "local", *, cpus: int | None = None, timeout: int | float = 10) -> None:
    """Connect this process to a Ray cluster, unless it already is.

    ```python
    nres.placement.ray.connect("10.0.0.1:6379")
    ```

    **Arguments:**

    - `address`: `"local"` starts Ray on this machine, for as long as this process lives, and
        closed to other machines; `"auto"`
        finds the one that runs here; `HOST:PORT` is that of any cluster's head.
    - `cpus`: for `"local"`, how many processors Ray is to count with; more than there are share.
    - `timeout`: seconds to wait for an answer.
    """
    ray = require_ray()
    if ray.is_initialized():
        return
    _listen(ray, only_here=address == "local")
    options: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False}
    if address == "local":
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to anyone
        count = max(cpus or 0, os.cpu_count() or 1)
        with warnings.catch_warnings():
            # Ray starts its processes by a fork that does nothing but that.
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
            "--head`, or give the address of another, or `local`."
        ) from error


def _listen(ray: Any, only_here: bool) -> None:
    """Let Ray's processes listen on this machine's loopback alone, or for a whole cluster.

    Whoever reaches its ports can run code, so a cluster of one machine does not open them to
    others. Ray has this as a constant, for systems whose firewall would ask.
    """
    constants: Any = getattr(ray._private, "ray_constants", None)
    if hasattr(constants, "ENABLE_RAY_CLUSTER"):
        constants.ENABLE_RAY_CLUSTER = not only_here


def _check_reachable(address: str, timeout: int | float) -> None:
    where = split_address(address.removeprefix("ray://"))
    if where is None:
        raise ValueError(
            f"the address of a Ray cluster is HOST:PORT, auto or local; got {address!r}."
        )
    try:
        socket.create_connection(where, timeout=timeout).close()
    except OSError as error:
        raise PoolError(
            f"no Ray cluster answers at {address} ({error}). `ray status` says on its head "
            "whether it runs; a new one is started with `ray start --head`."
        ) from error
