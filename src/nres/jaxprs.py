"""The operations of traced functions: their names, and what they mean for a GPU."""

from collections.abc import Iterator
from typing import Any

import jax


def operations(jaxpr: Any) -> Iterator[str]:
    """Yield the names of the operations in a jaxpr, including those in functions that it calls."""
    for equation in jaxpr.eqns:
        inner = _inner_jaxprs(equation)
        if not inner:
            yield equation.primitive.name
        for each in inner:
            yield from operations(each)


def count_operations(jaxpr: Any) -> int:
    """Count the operations that a GPU executes for a jaxpr.

    A loop of unknown length counts once. Of several branches, the shortest counts: where the
    platform decides, it has the GPU's kernels.
    """
    total = 0
    for equation in jaxpr.eqns:
        counts = list(map(count_operations, _inner_jaxprs(equation)))
        if equation.primitive.name == "cond":
            total += min(counts)
        else:
            total += equation.params.get("length", 1) * sum(counts) if counts else 1
    return total


def decides_in_loop(jaxpr: Any, in_loop: bool = False) -> bool:
    """Return true if a GPU has to decide inside a loop: for a branch, or to end another loop.

    `jax.vmap` turns branches into selections if lanes differ in them. The platform decides when a
    program is compiled.
    """
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        chosen = name == "cond" and equation.params.get("branches_platforms") is None
        if in_loop and (chosen or name == "while"):
            return True
        inside = in_loop or name in ("scan", "while")
        if any(decides_in_loop(inner, inside) for inner in _inner_jaxprs(equation)):
            return True
    return False


def _inner_jaxprs(equation: Any) -> list[Any]:
    """Return the jaxprs of the functions that an operation calls; a kernel counts as one."""
    if equation.primitive.name == "pallas_call":
        return []
    return [p for p in jax.tree.leaves(list(equation.params.values())) if hasattr(p, "eqns")]
