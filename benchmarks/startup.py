"""Time of a new process from its start to the hundredth update."""

import statistics
import subprocess
import sys

# The floor is the imports that any program of this kind needs.
SCRIPT = """
import time
began = time.perf_counter()
import jax, optax, equinox
floor = time.perf_counter()
import nres
imported = time.perf_counter()
system = nres.systems.Lorenz()
estimator = nres.NRES(system, workers=200, window=100, sigma=0.04)
theta, key = system.initial_theta(), jax.random.key(0)
result = nres.train(estimator, optax.sgd(1e-5), theta, updates=100, key=key)
ended = time.perf_counter()
print(floor - began, imported - floor, result.history.setup_time, result.history.seconds[-1],
      ended - began)
"""
NAMES = (
    "import_of_jax_optax_and_equinox",
    "import_of_nres_above_these",
    "compile_and_unlock",
    "first_100_updates",
    "total",
)


def run(quick: bool = False) -> dict[str, float]:
    """Measure the seconds as medians over nine processes, after one that fills disk caches."""
    command = [sys.executable, "-c", SCRIPT]
    runs = []
    for _ in range(1 if quick else 10):
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        runs.append([float(word) for word in done.stdout.split()])
    runs = runs[1:] or runs
    return {
        name: statistics.median(values)
        for name, values in zip(NAMES, zip(*runs, strict=True), strict=True)
    }


if __name__ == "__main__":
    for name, seconds in run("--quick" in sys.argv).items():
        print(f"{name:32} {seconds:.3f} s")
