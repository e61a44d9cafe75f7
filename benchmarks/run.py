"""All benchmarks: prints tables and writes results/bench/BACKEND.json.

python benchmarks/run.py [--quick] [--out FOLDER]
"""

import argparse
import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
from rich.console import Console
from rich.table import Table

import cost
import display
import memory
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


def show(title: str, rows: list[dict]) -> None:
    table = Table(title=title)
    for name in rows[0]:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*(f"{v:.4g}" if isinstance(v, float) else str(v) for v in row.values()))
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument("--out", type=Path, default=Path("results/bench"))
    arguments = parser.parse_args()
    results: dict[str, Any] = {"machine": machine()}
    results["throughput"] = throughput.run(arguments.quick)
    show("NRES on Lorenz, W = 100, T = 2000", results["throughput"])
    results["memory"] = memory.run(arguments.quick)
    show("Memory of an NRES estimate, bytes", results["memory"])
    if jax.default_backend() == "cpu":  # a ratio of machine code, not of a machine
        results["cost"] = cost.run(arguments.quick)
        show("One estimate, in plain unrolls of as many steps", results["cost"])
    results["display"] = display.run(arguments.quick)
    show("Looking at a run, seconds", [results["display"]])
    results["startup_seconds"] = startup.run(arguments.quick)
    show("Start-up, seconds", [results["startup_seconds"]])
    write_json(arguments.out / f"{jax.default_backend()}.json", results)


if __name__ == "__main__":
    main()
