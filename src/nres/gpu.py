"""NVIDIA GPUs: if there are any, and options with which they start kernels in groups, as graphs.

Small systems keep a GPU waiting: starting a kernel takes about as long as running it.
"""

import functools
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
# Building a graph takes time and memory for each of its kernels, of which most compute several
# operations. Bundles that gained had up to 124,000; the limit itself is not measured.
MOST_OPERATIONS = 200_000


def has_nvidia() -> bool:
    """Return true if JAX can use an NVIDIA GPU."""
    try:
        return bool(jax.devices("cuda"))
    except RuntimeError:
        return False


@functools.cache
def knows_options() -> bool:
    """Return true if the compiler accepts the options, which other versions of it may not have."""
    try:
        jax.jit(lambda x: x, compiler_options=dict(ONE_GRAPH)).lower(0.0).compile()
    except Exception:  # whatever a compiler raises
        return False
    return True
