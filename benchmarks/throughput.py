"""Updates per second of NRES on Lorenz with nres, plain JAX and evosax, measured in turn."""

import functools
import importlib.util
import time
from collections.abc import Callable

import jax
import optax

import nres
import rivals

WINDOW, SIGMA, RATE = rivals.W, rivals.SIGMA, rivals.RATE


def with_nres(workers: int) -> Callable[[int], float]:
    system = nres.systems.Lorenz()
    estimator = nres.NRES(system, workers=workers, window=WINDOW, sigma=SIGMA)
    optimizer, theta = optax.sgd(RATE), system.initial_theta()

    def measure(updates: int) -> float:
        key = jax.random.key(0)
        result = nres.train(estimator, optimizer, theta, updates=updates, key=key)
        return updates / result.history.seconds[-1]

    return measure


def with_rival(make: Callable, workers: int, unroll: int) -> Callable[[int], float]:
    runner = make(workers, unroll)

    def measure(updates: int) -> float:
        began = time.perf_counter()
        jax.block_until_ready(runner(updates))
        return updates / (time.perf_counter() - began)

    return measure


def run(quick: bool = False, rounds: int = 5) -> list[dict]:
    """Measure the best of several rounds for each, and the best unroll factor for rivals."""
    cpu = jax.default_backend() == "cpu"
    sizes = {200: 4000, 20_000: 80} if cpu else {200: 16_384, 20_000: 8192, 2_000_000: 512}
    # The best of 10, 25, 50 and 100 on a GPU was always one of these.
    factors = [1, 2, 4] if cpu else [25, 100]
    if quick:
        sizes, factors, rounds = {200: 200}, [2], 1
    rows = []
    for workers, updates in sizes.items():
        implementations = {"nres": [with_nres(workers)]}
        implementations["floor"] = [with_rival(rivals.floor, workers, u) for u in factors]
        if importlib.util.find_spec("evosax"):
            implementations["evosax"] = [
                with_rival(rivals.evosax, workers, unroll) for unroll in factors
            ]
            scanned = functools.partial(rivals.evosax, scanned=True)
            implementations["evosax, scanned"] = [with_rival(scanned, workers, u) for u in factors]
        for measures in implementations.values():  # compile
            for measure in measures:
                measure(updates)
        best = {name: [0.0] * len(measures) for name, measures in implementations.items()}
        for _ in range(rounds):
            for name, measures in implementations.items():
                for i, measure in enumerate(measures):
                    best[name][i] = max(best[name][i], float(measure(updates)))
        rates = {name: max(values) for name, values in best.items()}
        for name, rate in rates.items():
            rows.append(
                {
                    "workers": workers,
                    "implementation": name,
                    "unroll": "default" if name == "nres" else factors[best[name].index(rate)],
                    "updates_per_second": rate,
                    "unroll_steps_per_second": rate * 2 * workers * WINDOW,
                    "nres_relative": rates["nres"] / rate,
                }
            )
    return rows
