"""Sweeps along a trajectory of parameters, which may go on where they were interrupted."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jaxtyping import Array

from nres.system import Theta
from nres.variance.sweep import Row, Sweep, sweep


def sweep_along(
    system: Any,
    trajectory: Mapping[int, Theta],
    key: Array,
    known: Mapping[int, list[dict[str, Any]]],
    report: Callable[[int, list[dict[str, Any]]], Any],
    **settings: Any,
) -> dict[int, tuple[Row, ...]]:
    """Sweep at each of some parameters, except at those whose rows are known.

    **Arguments:**

    - `system`: the system or the pool to unroll.
    - `trajectory`: parameters by the number of updates that led to them.
    - `key`: a JAX random key.
    - `known`: rows by updates, as `report` was given them; they may come from a JSON file.
    - `report`: called with the updates and the rows after each sweep, to keep them.
    - `settings`: keyword arguments of `nres.variance.sweep`.

    **Returns:** the rows of each sweep, by updates.

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
