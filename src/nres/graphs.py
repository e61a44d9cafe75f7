"""Options with which a GPU starts kernels in groups, called graphs.

Small systems keep a GPU waiting: starting a kernel takes about as long as running it.
"""

from collections.abc import Mapping
from typing import Any

import jax

# Kernels of a graph that do not need each other's results may run at the same time.
CONCURRENT: Mapping[str, Any] = {"xla_gpu_command_buffer_scheduling_mode": "CONCURRENT"}
# All kernels of a bundle of updates are in one graph. A loop's kernels are compiled once, and are
# in the graph once per iteration.
ONE_GRAPH: Mapping[str, Any] = {
    **CONCURRENT,
    "xla_gpu_enable_command_buffer": "FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CUDNN,"
    "DYNAMIC_SLICE_FUSION,CONDITIONAL,WHILE",
    "xla_gpu_command_buffer_unroll_loops": True,
    "xla_gpu_graph_min_graph_size": 1,
}
# A graph of more operations would take too long to build, and too much memory. Most kernels compute
# several operations.
MOST_OPERATIONS = 200_000


def has_nvidia() -> bool:
    """Return true if JAX can use an NVIDIA GPU."""
    try:
        return bool(jax.devices("cuda"))
    except RuntimeError:
        return False


def executed(jaxpr: Any) -> int:
    """Count the operations that a jaxpr executes; a loop of unknown length counts once."""
    total = 0
    for equation in jaxpr.eqns:
        inner = [p for p in jax.tree.leaves(list(equation.params.values())) if hasattr(p, "eqns")]
        if equation.primitive.name == "pallas_call" or not inner:
            total += 1
        else:
            total += equation.params.get("length", 1) * sum(map(executed, inner))
    return total
