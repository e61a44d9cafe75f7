"""Sweeps along a trajectory of parameters, which can be resumed after an interruption."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jaxtyping import Array

from nres.system import Theta
from nres.variance.grid import Row, Sweep, sweep


def sweep_along(
    system: Any,
    trajectory: Mapping[int, Theta],
    key: Array,
    known: Mapping[int, list[dict[str, Any]]],
    report: Callable[[int, list[dict[str, Any]]], Any],
    **settings: Any,
) -> dict[int, tuple[Row, ...]]:
    """Run a sweep at each point of a trajectory of parameters, except where rows are known.

    Args:
        system: The system or pool to unroll.
        trajectory: Parameters by the number of updates that led to them.
        key: A JAX random key.
        known: Rows of earlier sweeps by number of updates, as passed to `report`; they may come
            from a JSON file.
        report: A function that is called with the number of updates and the rows after each
            sweep, for example to save them.
        settings: Keyword arguments of `nres.variance.sweep`.

    Returns:
        The rows of each sweep, by number of updates.

    Example:
        ```python
        kept = {}
        rows = sweep_along(
            system, run.trajectory(), key, kept, kept.__setitem__, sigmas=[0.04], windows=[100]
        )
        ```
    """
    rows = {}
    for update, theta in trajectory.items():
        if update in known:
            rows[update] = tuple(map(_read_row, known[update]))
            continue
        table: Sweep = sweep(system, theta, jax.random.fold_in(key, update), **settings)
        rows[update] = table.rows
        report(update, table.to_json())
    return rows


def _read_row(row: dict[str, Any]) -> Row:
    """Read a row from JSON, which has null for NaN."""
    values: dict[str, Any] = {k: math.nan if value is None else value for k, value in row.items()}
    return Row(**values)
