"""Several processes that compute one run together, on one machine or on many.

Each process has connected to the others with `jax.distributed.initialize` and executes the same
program; their devices form one mesh. Some facts are known to one process only: the time, a signal,
the content of its disk. The functions here share them, so all processes must call these functions,
and the methods of `Checkpoints` and `Run` that use them. With a single process they do nothing.
"""

import contextlib
import json
import re
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jaxtyping import PyTree

from nres.errors import first_line

# Words in JAX's errors when a computation fails because one of its processes is gone.
_LOSS = re.compile(r"UNAVAILABLE|DEADLINE_EXCEEDED|ABORTED|CANCELLED|gloo|NCCL|heartbeat", re.I)


class HostError(RuntimeError):
    """Error of processes that cannot connect, or that lost the connection to each other."""


def split_address(address: str) -> tuple[str, int] | None:
    """Split `HOST:PORT` into host and port; return `None` if the text has another form."""
    host, colon, port = address.rpartition(":")
    return (host.strip("[]"), int(port)) if colon and host and port.isdecimal() else None


def is_multihost() -> bool:
    """Return true if this is one of several processes."""
    # In this order, so that a single process initialises nothing.
    return jax.distributed.is_initialized() and jax.process_count() > 1


def is_primary() -> bool:
    """Return true in the process that reads, writes and displays."""
    return not is_multihost() or jax.process_index() == 0


def agree_on(number: int, flag: bool) -> tuple[int, bool]:
    """Return the first process's number, and true if the flag is set in any process."""
    if not is_multihost():
        return number, flag
    with watching_peers():
        everyone = multihost_utils.process_allgather(np.array([number, flag], np.int32))
    return int(everyone[0, 0]), bool(everyone[:, 1].any())


def from_primary(value: Any) -> Any:
    """Return the first process's value, which JSON must be able to express, in all processes."""
    if not is_multihost():
        return value
    text = json.dumps(value).encode() if is_primary() else b""
    length, _ = agree_on(len(text), False)
    letters = np.frombuffer(text.ljust(length)[:length], np.uint8)
    with watching_peers():
        return json.loads(bytes(multihost_utils.broadcast_one_to_all(letters)))


def arrays_from_primary(arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Return the first process's arrays in all processes; the shapes must be equal everywhere."""
    if not is_multihost():
        return arrays
    # As bytes: otherwise double precision would become single on the way.
    with watching_peers():
        told = multihost_utils.broadcast_one_to_all([_bytes(x) for x in arrays])
    return [np.asarray(b).view(x.dtype).reshape(x.shape) for b, x in zip(told, arrays, strict=True)]


def gathered(array: Any) -> np.ndarray:
    """Collect an array that may be spread over the processes; all of them must call this."""
    if isinstance(array, jax.Array) and not array.is_fully_addressable:
        with watching_peers():
            return multihost_utils.process_allgather(array, tiled=True)
    return np.asarray(array)


def to_local(tree: PyTree) -> PyTree:
    """Turn arrays that every process holds into arrays that this process can use by itself."""
    return jax.tree.map(lambda x: jnp.asarray(np.asarray(x)), tree) if is_multihost() else tree


def check_same(values: dict[str, Any]) -> None:
    """Raise a `HostError` unless all processes have the same values as the first."""
    theirs = from_primary(values)
    different = [name for name in values if values[name] != theirs[name]]
    _, somewhere = agree_on(0, bool(different))
    if different:
        name = different[0]
        raise HostError(
            f"process {jax.process_index()} was started with {name}={values[name]!r} and process "
            f"0 with {theirs[name]!r}: start all processes of a run with the same settings."
        )
    if somewhere:
        raise HostError("another process was started with other settings: see its message.")


@contextlib.contextmanager
def watching_peers() -> Iterator[None]:
    """Raise a `HostError` if a computation fails because another process is gone."""
    try:
        yield
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        if not is_multihost() or not _LOSS.search(str(error)):
            raise
        raise HostError(
            f"another process of the run has ended, or cannot be reached ({first_line(error)})"
        ) from error


def _bytes(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
