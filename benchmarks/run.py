"""Run the main benchmarks, print tables, and write results/bench/BACKEND.json.

python benchmarks/run.py [--quick] [--out FOLDER]
"""

import argparse
import os
import platform
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import optax
from rich.console import Console
from rich.table import Table

import cost
import display
import memory
import nres
import startup
import throughput
from nres.files import write_json


def machine() -> dict:
    device = jax.devices()[0]
    return {
        "device": device.device_kind,
        "backend": jax.default_backend(),
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "jax": jax.__version__,
        "equinox": version("equinox"),
    }


def seconds(function: Callable[[], Any], repeats: int) -> float:
    """Return the mean time of a call."""
    began = time.perf_counter()
    for _ in range(repeats):
        function()
    return (time.perf_counter() - began) / repeats


def training(estimator: nres.Estimator, theta: Any, count: int) -> Callable[[], float]:
    """Compile some updates; return a function that makes them and returns their seconds.

    The set-up that every call of `nres.train` repeats does not count.
    """
    optimizer = optax.sgd(1e-9)
    state = nres.train(estimator, optimizer, theta, updates=count, key=jax.random.key(1)).state

    def updates() -> float:
        made = nres.train(estimator, optimizer, theta, updates=count, state=state)
        return made.state.seconds - state.seconds

    return updates


def fastest(rounds: int, ways: Mapping[str, Callable[[], float]]) -> dict[str, float]:
    """Measure the speeds of several ways in turn, and return the best of several rounds of each."""
    best = dict.fromkeys(ways, 0.0)
    for _ in range(rounds):
        for name, speed in ways.items():
            best[name] = max(best[name], speed())
    return best


def publish(
    about: str | None,
    run: Callable[[bool], list[dict]],
    title: str,
    name: str,
    file: str,
    digits: str = ".4g",
    **versions: str,
) -> None:
    """Run a benchmark from the command line: show its rows, and write them under `name`."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--quick", action="store_true", help="Run a small version.")
    parser.add_argument(
        "--out", type=Path, default=Path("results/bench"), help="The folder to write to."
    )
    arguments = parser.parse_args()
    rows = run(arguments.quick)
    show(title, rows, digits)
    write_json(arguments.out / file, {"machine": machine() | versions, name: rows})


def show(title: str, rows: list[dict], digits: str = ".4g") -> None:
    """Print rows as a table, with the names of their entries as headings."""
    table = Table(title=title)
    for name in rows[0]:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            *(format(v, digits) if isinstance(v, float) else str(v) for v in row.values())
        )
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="Run a small version.")
    parser.add_argument(
        "--out", type=Path, default=Path("results/bench"), help="The folder to write to."
    )
    arguments = parser.parse_args()
    results: dict[str, Any] = {"machine": machine()}
    results["throughput"] = throughput.run(arguments.quick)
    show("NRES on Lorenz, W = 100, T = 2000", results["throughput"])
    results["memory"] = memory.run(arguments.quick)
    show("Memory of an NRES estimate: bytes", results["memory"])
    if jax.default_backend() == "cpu":  # the ratios describe compiled code rather than a device
        results["cost"] = cost.run(arguments.quick)
        show("Cost of one estimate, relative to forward unrolls", results["cost"])
    results["display"] = display.run(arguments.quick)
    show("Watching a run: seconds", [results["display"]])
    results["startup_seconds"] = startup.run(arguments.quick)
    show("Start-up: seconds", [results["startup_seconds"]])
    write_json(arguments.out / f"{jax.default_backend()}.json", results)


if __name__ == "__main__":
    main()
