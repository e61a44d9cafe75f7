"""Updates per second when learning an optimizer, compared with plain JAX and with a bound.

python benchmarks/learned_optimizer.py [--quick] [--out FOLDER]

The bound (`floor`) counts only necessary work: the products of a step of the model and its
optimizer, at the rate of one large matrix product, and the state that the step reads and writes,
at the rate of a copy.
"""

import argparse
import contextlib
import itertools
import time
import unittest.mock
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax

import nres
from nres.files import write_json
from nres.systems import learned_optimizer
from nres.systems.learned_optimizer import dense, network
from plain_optimizer import SIZES, plain
from run import machine, show

BATCH = 128
WEIGHTS = sum(m * n for m, n in itertools.pairwise(SIZES))
PARAMETERS = WEIGHTS + sum(SIZES[1:])


def seconds(function: Callable[[], Any]) -> float:
    began = time.perf_counter()
    jax.block_until_ready(function())
    return time.perf_counter() - began


def quickest(function: Callable, argument: jax.Array) -> float:
    return min(seconds(lambda: function(argument)) for _ in range(10))


def rates(quick: bool) -> dict[str, float]:
    """Measure the peak operations and bytes per second of this machine."""
    size = 256 if quick else (2048 if jax.default_backend() == "cpu" else 8192)
    matrix = jnp.ones((size, size))
    result = {}
    for name in ("default", "highest"):
        with jax.default_matmul_precision(name):
            result[f"flops_{name}"] = 2 * size**3 / quickest(jax.jit(lambda a: a @ a), matrix)
    many = jnp.ones(10**6 if quick else 2 * 10**8)
    result["bytes"] = 8 * many.size / quickest(jax.jit(lambda x: x + 1), many)
    return result


def floor(width: int, workers: int, rates: dict[str, float], precision: str) -> float:
    """Return the updates per second at these rates, if nothing else took time."""
    network = PARAMETERS * (8 * width + width**2 + 2 * width)
    # Forward, backward to the weights, backward to the inputs of all layers but the first.
    gradient = BATCH * (3 * WEIGHTS - SIZES[0] * SIZES[1])
    flops = 2 * (network + gradient + BATCH * WEIGHTS)
    moved = 4 * 2 * 7 * PARAMETERS  # six running means and the parameters, read and written
    return 1 / (2 * workers * (flops / rates[f"flops_{precision}"] + moved / rates["bytes"]))


def with_nres(workers: int, width: int, horizon: int) -> tuple[Callable[[int], float], list]:
    """Return a function that measures updates per second, and a list for the set-up time."""
    system = learned_optimizer.LearnedOptimizerSystem(
        optimizer=learned_optimizer.PerParameterMLP(width), horizon=horizon
    )
    estimator = nres.NRES(system, workers=workers, window=1, sigma=0.01)
    optimizer, theta = optax.adam(3e-4), system.initial_theta(jax.random.key(0))
    state, began = None, []

    def measure(updates: int) -> float:
        nonlocal theta, state
        before = 0.0 if state is None else state.seconds
        result = nres.train(
            estimator, optimizer, theta, updates=updates, key=jax.random.key(0), state=state
        )
        if state is None:
            began.append(result.history.setup_time)
        theta, state = result.theta, result.state  # continue, with the workers already apart
        return updates / (state.seconds - before)

    return measure, began


def with_plain(workers: int, width: int, horizon: int) -> tuple[Callable[[int], float], list]:
    runner = plain(workers, width, horizon)
    return lambda updates: updates / seconds(lambda: runner(updates)), []


@contextlib.contextmanager
def without_kernels():
    """Run the same program in plain JAX, without fused kernels."""
    with (
        unittest.mock.patch.object(network, "fusable", return_value=False),
        unittest.mock.patch.object(dense, "fusable", return_value=False),
    ):
        jax.clear_caches()
        yield
    jax.clear_caches()


def run(quick: bool, rounds: int = 3) -> list[dict]:
    cpu = jax.default_backend() == "cpu"
    best = rates(quick)
    horizon = 20 if cpu else 1000
    sizes = [(100, 32)] if cpu else [(100, 32), (100, 128), (400, 32), (1600, 32), (6400, 32)]
    if quick:
        sizes = [(2, 16)]
    rows: list[dict] = []

    def time_implementation(name, workers, width, make, precision="default"):
        # On a GPU these take about a second, which is much longer than to begin and to end.
        updates = 2 if quick else 20 if cpu else max(256, 4_096_000 // workers // (width // 8))
        with jax.default_matmul_precision(precision):
            measure, began = make(workers, width, horizon)
            measure(updates)
            rate = max(float(measure(updates)) for _ in range(rounds))
        limit = floor(width, workers, best, precision)
        rows.append(
            {
                "workers": workers,
                "width": width,
                "implementation": name,
                "precision": precision,
                "updates_per_second": rate,
                "inner_steps_per_second": rate * 2 * workers,
                "of_floor": rate / limit,
                "setup_seconds": began[0] if began else None,
            }
        )

    for workers, width in sizes:
        time_implementation("nres", workers, width, with_nres)
        if workers > 100:
            continue
        time_implementation("plain JAX", workers, width, with_plain)
        if not cpu:
            time_implementation("nres", workers, width, with_nres, "highest")
            with without_kernels():
                time_implementation("nres without kernels", workers, width, with_nres)
    return [*rows, {"rates": best}]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="Run a small version.")
    parser.add_argument(
        "--out", type=Path, default=Path("results/bench"), help="The folder to write to."
    )
    arguments = parser.parse_args()
    *rows, last = run(arguments.quick, 1 if arguments.quick else 3)
    show("Learning an optimizer, W = 1", rows)
    results = {"machine": machine(), **last, "rows": rows}
    write_json(arguments.out / f"learned_optimizer_{jax.default_backend()}.json", results)


if __name__ == "__main__":
    main()
