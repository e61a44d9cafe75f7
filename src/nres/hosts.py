"""Several processes that compute one run together, on one machine or on many.

Each of them has been connected to the others by `jax.distributed.initialize` and executes the same
program; their devices make one mesh. What only one of them can know - the time, a signal, what is
on its disk - is told to the others here. With a single process nothing of this does anything.
"""

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jaxtyping import PyTree


class HostError(RuntimeError):
    """Processes that do not come together, or no longer are."""


def several() -> bool:
    """Whether this is one of several processes."""
    return jax.process_count() > 1


def first() -> bool:
    """Whether this is the process that reads, writes and draws."""
    return jax.process_index() == 0


def agree(number: int, flag: bool) -> tuple[int, bool]:
    """The number of the first process, and whether the flag is set in any."""
    if not several():
        return number, flag
    with _together():
        everyone = multihost_utils.process_allgather(np.array([number, flag], np.int32))
    return int(everyone[0, 0]), bool(everyone[:, 1].any())


def from_first(value: Any) -> Any:
    """What JSON can say, as the first process says it; what the others give is not looked at."""
    if not several():
        return value
    text = json.dumps(value).encode() if first() else b""
    length, _ = agree(len(text), False)
    letters = np.frombuffer(text.ljust(length)[:length], np.uint8)
    with _together():
        return json.loads(bytes(multihost_utils.broadcast_one_to_all(letters)))


def arrays_from_first(arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Arrays as the first process has them; the others give arrays of the same shapes."""
    if not several():
        return arrays
    # As bytes: else numbers of double precision would become single on their way.
    with _together():
        told = multihost_utils.broadcast_one_to_all([_bytes(x) for x in arrays])
    return [np.asarray(b).view(x.dtype).reshape(x.shape) for b, x in zip(told, arrays, strict=True)]


def gathered(array: Any) -> np.ndarray:
    """An array that may be spread over the processes, whole; all of them must ask for it."""
    if isinstance(array, jax.Array) and not array.is_fully_addressable:
        with _together():
            return multihost_utils.process_allgather(array, tiled=True)
    return np.asarray(array)


def own(tree: PyTree) -> PyTree:
    """Arrays that every process has, as arrays of this one alone, to compute with by itself."""
    return jax.tree.map(lambda x: jnp.asarray(np.asarray(x)), tree) if several() else tree


@contextlib.contextmanager
def _together() -> Iterator[None]:
    try:
        yield
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        raise lost(error) from error


def lost(error: Exception) -> HostError:
    """What it means if processes could not compute together."""
    reason = str(error).partition("\n")[0]
    return HostError(f"another process of the run has ended, or cannot be reached ({reason})")


def _bytes(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
