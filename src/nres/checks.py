"""Checks of what users pass in: whole numbers, positive numbers, memory."""

import contextlib
import math
import operator
import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

# Steps, workers and updates are counted in 32 bits on the device.
LARGEST = 2**31 - 1


def whole_number(name: str, value: Any, least: int = 1, most: int = LARGEST) -> int:
    """Return `value` as an int, or say why it is none.

    Integers of Python, NumPy and JAX pass. Floats are refused even where they are whole: a window
    of 5.0 usually is a division that was meant to be `//`.

    ```python
    window = whole_number("window", window)
    ```

    **Arguments:**

    - `name`: the argument, for the message.
    - `value`: what was passed.
    - `least`, `most`: the bounds, both allowed.
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None:
        hint = ""
        if isinstance(value, float) and value.is_integer() and abs(value) <= LARGEST:
            hint = f": write {int(value)}"
        raise TypeError(f"{name} must be a whole number, got {_shown(value)}{hint}.")
    if number < least:
        raise ValueError(f"{name} must be at least {least}, got {number}.")
    if number > most:
        raise ValueError(f"{name} must be at most {most}, got {number}.")
    return number


def positive_number(name: str, value: Any, *, zero: bool = False) -> float:
    """Return `value` as a finite float above zero (or from zero on), or say why it is none."""
    bound = "must not be negative" if zero else "must be positive"
    try:
        number = math.nan if isinstance(value, str | bytes | bool) else float(value)
    except OverflowError:
        number = math.inf
    except (TypeError, ValueError):
        number = math.nan
    if math.isinf(number):
        raise ValueError(f"{name} must be finite, got {_shown(value)}.")
    if math.isnan(number) or number < 0 or (number == 0 and not zero):
        raise ValueError(f"{name} {bound}, got {_shown(value)}.")
    return number


def check_memory(needed: int, what: str) -> None:
    """Raise a `MemoryError` if something larger than all memory is about to be allocated.

    **Arguments:**

    - `needed`: the least number of bytes it takes.
    - `what`: the subject of the message, such as `"1,000 workers"`.
    """
    there = memory()
    if there is not None and needed > there:
        raise MemoryError(
            f"{what} would need about {_gibibytes(needed)}, and there are {_gibibytes(there)}: "
            "ask for fewer or smaller ones."
        )


def memory() -> int | None:
    """The bytes of memory that JAX's first device has, or the whole machine; `None` if unknown."""
    device = jax.local_devices()[0]
    if device.platform != "cpu":
        return (device.memory_stats() or {}).get("bytes_limit")
    try:
        known = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    except (AttributeError, OSError, ValueError):
        known = []
    with contextlib.suppress(OSError, ValueError):  # of a container
        known.append(int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return min(known, default=None)


def array_bytes(tree: Any) -> int:
    """The number of bytes in the arrays of a tree, or of their shapes."""
    return sum(
        math.prod(leaf.shape) * getattr(leaf.dtype, "itemsize", 8) for leaf in jax.tree.leaves(tree)
    )


def _gibibytes(count: int) -> str:
    size = count / 2**30
    return f"{size:,.1f} GiB" if size < 1e6 else f"{size:.1e} GiB"


def _shown(value: Any) -> str:
    """The value, or its type where it would fill the screen."""
    text = repr(value)
    return text if len(text) <= 60 else f"an object of type {type(value).__name__}"


def as_key(key: Any) -> Key[Array, ""]:
    """A JAX random key, old style or new, as a new-style one."""
    if isinstance(key, jax.Array | np.ndarray):
        key = jnp.asarray(key)
        if jnp.issubdtype(key.dtype, jnp.uint32) and key.ndim == 1:
            key = jax.random.wrap_key_data(key)
        if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) and key.ndim == 0:
            return key
    raise TypeError(f"key must be one JAX random key, such as jax.random.key(0); got {key!r}.")
