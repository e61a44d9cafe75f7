"""Checks of user input: numbers, windows and periods, keys and memory."""

import contextlib
import math
import operator
import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Key, PyTree

# The device counts steps, workers and updates in 32 bits.
LARGEST = 2**31 - 1


def whole_number(name: str, value: Any, least: int = 1, most: int = LARGEST) -> int:
    """Return `value` as an int, or raise an error that explains why it is not one.

    Integers of Python, NumPy and JAX pass. Floats are refused even if they are whole: a window of
    5.0 usually comes from a division that should have been `//`.

    Args:
        name: The name of the argument, for the message.
        value: The value to check.
        least: The smallest allowed value.
        most: The largest allowed value.

    Raises:
        TypeError: If the value is not an integer.
        ValueError: If the value is out of bounds.

    Example:
        ```python
        window = whole_number("window", window)
        ```
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


def checked_horizons(
    name: str, horizon: Any, test_horizon: Any, limit: int | None = None
) -> tuple[int, int]:
    """Return the numbers of steps of episodes in training and in tests, or raise an error.

    Args:
        name: The name of the environment, for the message.
        horizon: The number of steps in training; `None` if nobody knows it.
        test_horizon: The number of steps in tests, which are at least as long; `None` for as long.
        limit: The number of steps after which the environment ends, if it does.

    Raises:
        TypeError: If a number of steps is not an integer.
        ValueError: If a number of steps is missing, or out of bounds.

    Example:
        ```python
        horizon, test_horizon = checked_horizons("CartPole", 50, None, limit=500)
        ```
    """
    if horizon is None:
        raise ValueError(f"{name} has no limit of its own: give a horizon.")
    horizon = whole_number("horizon", horizon)
    test = horizon if test_horizon is None else whole_number("test_horizon", test_horizon)
    for what, steps in (("horizon", horizon), ("test_horizon", test)):
        if limit is not None and steps > limit:
            raise ValueError(f"{name} ends after {limit} steps; {what}={steps} is longer.")
    if test < horizon:
        raise ValueError(
            f"test_horizon={test} is shorter than horizon={horizon}: tests must be at least as "
            "long as training episodes."
        )
    return horizon, test


def positive_number(name: str, value: Any, *, zero: bool = False) -> float:
    """Return `value` as a finite positive float, or raise an error; zero passes if `zero`."""
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


def positive_arrays(name: str, values: PyTree) -> PyTree:
    """Return numbers and arrays as arrays of positive finite numbers, or raise an error."""

    def convert(path, value):
        where = name + jax.tree_util.keystr(path)
        if np.ndim(value) == 0 or isinstance(value, str):
            return jnp.asarray(positive_number(where, value), float)
        array = np.asarray(value, float)
        for number in (array.min(initial=np.inf), array.max(initial=-np.inf)):
            positive_number(where, number)
        return jnp.asarray(array, float)

    if not jax.tree.leaves(values):
        raise ValueError(f"{name} must be a number or a pytree of numbers, got {values!r}.")
    return jax.tree_util.tree_map_with_path(convert, values)


def check_frames(count: int, size: tuple[int, int]) -> None:
    """Raise a `MemoryError` if so many frames of (width, height) pixels do not fit into memory."""
    width, height = size
    what = f"{count:,} frames of {width} x {height} pixels"
    check_memory(3 * count * width * height, what, there=host_memory())


def true_or_false(name: str, value: Any) -> bool:
    """Return a boolean; raise a `TypeError` for anything else, such as the text "no"."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be true or false, got {value!r}.")
    return bool(value)


def check_prefix(name: str, values: PyTree, theta: PyTree) -> None:
    """Raise a `ValueError` unless `values` has arrays for all leaves or branches of `theta`."""

    def check(value, branch):
        for leaf in jax.tree.leaves(branch):
            try:
                fits = np.broadcast_shapes(value.shape, leaf.shape) == leaf.shape
            except ValueError:
                fits = False
            if not fits:
                raise ValueError(
                    f"{name} must have the shapes of theta or fewer axes, but an array of shape "
                    f"{value.shape} is meant for one of shape {leaf.shape}."
                )

    try:
        jax.tree.map(check, values, theta)
    except (TypeError, ValueError) as error:
        if str(error).startswith(name):
            raise
        raise ValueError(
            f"{name} must be a number or a pytree like theta or like its upper levels; got "
            f"{jax.tree.structure(values)} for {jax.tree.structure(theta)}."
        ) from error


def check_batch(batch: int | None, **data: PyTree) -> None:
    """Raise a `ValueError` unless data have equally long arrays, from which a batch can be drawn.

    Args:
        batch: The number of examples per batch; `None` means all of them.
        data: Pytrees of arrays by name, whose first axis numbers the examples.
    """
    if batch is not None:
        whole_number("batch", batch)
    for name, arrays in data.items():
        sizes = {leaf.shape[0] if leaf.ndim else 0 for leaf in jax.tree.leaves(arrays)}
        if len(sizes) != 1:
            raise ValueError(
                f"{name} must be arrays with one example in each row, and of the same length; "
                f"got {sorted(sizes)} rows."
            )
        if not 1 <= (1 if batch is None else batch) <= min(sizes):
            raise ValueError(
                f"batch must be from 1 to the number of examples, got {batch} and "
                f"{min(sizes)} examples in {name}."
            )


def check_fits(window: int, horizon: int) -> None:
    """Raise a `ValueError` if the window is longer than an episode."""
    if whole_number("window", window) > horizon:
        raise ValueError(
            f"window must be at most the horizon, got window={window} and horizon={horizon}."
        )


def as_period(period: int | Int[Array, ""]) -> Int[Array, ""]:
    """Convert a period to an array, so that it is not compiled in as a constant."""
    traced = isinstance(period, jax.core.Tracer)
    return jnp.asarray(period if traced else whole_number("period", period))


def check_period(period: int | Int[Array, ""], window: int) -> None:
    """Raise a `ValueError` if no window starts where a period ends."""
    if not isinstance(period, jax.core.Tracer) and int(period) % window:
        raise ValueError(
            f"period must be a multiple of the window, got period={period} and window={window}."
        )


def check_memory(needed: int, what: str, there: int | None = None) -> None:
    """Raise a `MemoryError` before allocating something larger than all memory.

    Args:
        needed: A lower bound of the number of bytes needed.
        what: The subject of the message, for example `"1,000 workers"`.
        there: The number of bytes that exist; by default, those of JAX's first device.
    """
    there = memory() if there is None else there
    if there is not None and needed > there:
        raise MemoryError(
            f"{what} would need about {_gibibytes(needed)} of memory, but there are only "
            f"{_gibibytes(there)}: ask for fewer or smaller ones."
        )


def memory() -> int | None:
    """Return the bytes of memory of JAX's first device or of the machine; `None` if unknown."""
    device = jax.local_devices()[0]
    if device.platform != "cpu":
        return (device.memory_stats() or {}).get("bytes_limit")
    return host_memory()


def host_memory() -> int | None:
    """Return the bytes of memory of the machine; `None` if unknown."""
    try:
        known = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    except (AttributeError, OSError, ValueError):
        known = []
    with contextlib.suppress(OSError, ValueError):  # the limit of a container
        known.append(int(Path("/sys/fs/cgroup/memory.max").read_bytes()))
    return min(known, default=None)


def array_bytes(tree: Any) -> int:
    """Count the bytes in a tree's arrays, or in arrays of its shapes."""
    return sum(
        math.prod(leaf.shape) * getattr(leaf.dtype, "itemsize", 8) for leaf in jax.tree.leaves(tree)
    )


def _gibibytes(count: int) -> str:
    size = count / 2**30
    return f"{size:,.1f} GiB" if size < 1e6 else f"{size:.1e} GiB"


def _shown(value: Any) -> str:
    """Show the value, or only its type if the value would fill the screen."""
    text = repr(value)
    return text if len(text) <= 60 else f"an object of type {type(value).__name__}"


def as_key(key: Any) -> Key[Array, ""]:
    """Convert a JAX random key, old style or new, to the new style."""
    if isinstance(key, jax.Array | np.ndarray):
        key = jnp.asarray(key)
        if jnp.issubdtype(key.dtype, jnp.uint32) and key.ndim == 1:
            key = jax.random.wrap_key_data(key)
        if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) and key.ndim == 0:
            return key
    raise TypeError(f"key must be one JAX random key, for example jax.random.key(0); got {key!r}.")
