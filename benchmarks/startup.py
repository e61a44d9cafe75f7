"""From nothing to the hundredth update: how long a new process takes."""

import subprocess
import sys

SCRIPT = """
import time
began = time.perf_counter()
import jax, optax, nres
imported = time.perf_counter()
system = nres.systems.Lorenz()
estimator = nres.NRES(system, workers=200, window=100, sigma=0.04)
theta, key = system.initial_theta(), jax.random.key(0)
result = nres.train(estimator, optax.sgd(1e-5), theta, updates=100, key=key)
ended = time.perf_counter()
print(imported - began, result.history.setup_time, result.history.seconds[-1], ended - began)
"""
JAX_ONLY = """
import time
began = time.perf_counter()
import jax, optax
print(time.perf_counter() - began)
"""


def run(quick: bool = False) -> dict[str, float]:
    """Seconds: the best of three processes."""

    def best(script: str) -> list[float]:
        command = [sys.executable, "-c", script]
        runs = []
        for _ in range(1 if quick else 3):
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            runs.append([float(word) for word in done.stdout.split()])
        return min(runs, key=lambda run: run[-1])

    importing, setup, updates, total = best(SCRIPT)
    return {
        "import": importing,
        "import_of_jax_and_optax_alone": best(JAX_ONLY)[0],
        "compile_and_unlock": setup,
        "first_100_updates": updates,
        "total": total,
    }
