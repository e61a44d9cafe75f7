"""Several processes that compute one run together, on one machine or on many.

Each of them has been connected to the others by `jax.distributed.initialize` and executes the same
program; their devices make one mesh. What only one of them can know - the time, a signal, what is
on its disk - is told to the others here, so all of them must make these calls, and those of
`Checkpoints` and `Run` that use them. With a single process nothing of this does anything.
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

# What JAX says when a computation of several processes ends because one of them is gone.
_LOSS = re.compile(r"UNAVAILABLE|DEADLINE_EXCEEDED|ABORTED|CANCELLED|gloo|NCCL|heartbeat", re.I)


class HostError(RuntimeError):
    """Processes that do not come together, or no longer are."""


def split_address(address: str) -> tuple[str, int] | None:
    """The host and the port, if this is what an address says."""
    host, colon, port = address.rpartition(":")
    return (host.strip("[]"), int(port)) if colon and host and port.isdecimal() else None


def is_multihost() -> bool:
    """Whether this is one of several processes."""
    # Asked in this order, so that nothing is initialised for a single one.
    return jax.distributed.is_initialized() and jax.process_count() > 1


def is_primary() -> bool:
    """Whether this is the process that reads, writes and draws."""
    return not is_multihost() or jax.process_index() == 0


def agree_on(number: int, flag: bool) -> tuple[int, bool]:
    """The number of the first process, and whether the flag is set in any."""
    if not is_multihost():
        return number, flag
    with watching_peers():
        everyone = multihost_utils.process_allgather(np.array([number, flag], np.int32))
    return int(everyone[0, 0]), bool(everyone[:, 1].any())


def from_primary(value: Any) -> Any:
    """What JSON can say, as the first process says it; what the others give is not looked at."""
    if not is_multihost():
        return value
    text = json.dumps(value).encode() if is_primary() else b""
    length, _ = agree_on(len(text), False)
    letters = np.frombuffer(text.ljust(length)[:length], np.uint8)
    with watching_peers():
        return json.loads(bytes(multihost_utils.broadcast_one_to_all(letters)))


def arrays_from_primary(arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Arrays as the first process has them; the others give arrays of the same shapes."""
    if not is_multihost():
        return arrays
    # As bytes: else numbers of double precision would become single on their way.
    with watching_peers():
        told = multihost_utils.broadcast_one_to_all([_bytes(x) for x in arrays])
    return [np.asarray(b).view(x.dtype).reshape(x.shape) for b, x in zip(told, arrays, strict=True)]


def gathered(array: Any) -> np.ndarray:
    """An array that may be spread over the processes, whole; all of them must ask for it."""
    if isinstance(array, jax.Array) and not array.is_fully_addressable:
        with watching_peers():
            return multihost_utils.process_allgather(array, tiled=True)
    return np.asarray(array)


def to_local(tree: PyTree) -> PyTree:
    """Arrays that every process has, as arrays of this one alone, to compute with by itself."""
    return jax.tree.map(lambda x: jnp.asarray(np.asarray(x)), tree) if is_multihost() else tree


def check_same(values: dict[str, Any]) -> None:
    """Refuse to go on unless all processes say the same, by JSON, as the first one."""
    theirs = from_primary(values)
    different = [name for name in values if values[name] != theirs[name]]
    _, somewhere = agree_on(0, bool(different))
    if different:
        name = different[0]
        raise HostError(
            f"process {jax.process_index()} was started with {name}={values[name]!r} and process "
            f"0 with {theirs[name]!r}: all processes of a run need the same."
        )
    if somewhere:
        raise HostError("another process was started with other settings: see what it says.")


@contextlib.contextmanager
def watching_peers() -> Iterator[None]:
    """Tell the loss of another process from all else that may go wrong in a computation."""
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
