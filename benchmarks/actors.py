"""Cost of an update with workers in Ray actors: bytes, seconds per phase, and scaling.

python benchmarks/actors.py [--quick] [--out FOLDER]

Everything runs on one machine: the actors share its cores, and their messages do not leave it. So
this benchmark measures the cost of Ray, and not the gain from several machines.
"""

import argparse
import functools
import pickle
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import ray

import nres
from nres.files import write_json
from nres.placement import Local, Ray
from nres.pools import MujocoPool, Pool, Window
from run import machine, show

PER_ACTOR = 40
CHEETAH = functools.partial(MujocoPool, "halfcheetah", variance=0.03)


class Nothing(Pool):
    """A simulator that takes no time, so that only the cost of Ray remains."""

    horizon = 1000

    def advance(self, state, thetas, keys, start, window, length=None):
        lanes = jax.tree.leaves(thetas)[0].shape[:2]
        length = np.broadcast_to(length, lanes).astype(np.int32)
        return Window({"x": np.zeros(lanes)}, np.ones(lanes), length)


class Recorder:
    """A proxy of an actor that records the sizes of its messages."""

    def __init__(self, actor: Any, sizes: dict[str, list]):
        self.actor, self.sizes = actor, sizes
        self.run = self

    def remote(self, theta: Any, *request: Any) -> Any:
        self.sizes["theta"].append(theta)  # the same object for all actors
        self.sizes["out"].append(len(pickle.dumps(request, protocol=5)))
        reply = self.actor.run.remote(theta, *request)
        self.sizes["in"].append(reply)
        return reply


def bytes_sent(estimator: Any, theta: Any, state: Any) -> dict[str, int]:
    """Count the bytes of one update: theta, requests to the actors, and their replies."""
    sizes: dict[str, list] = {"theta": [], "out": [], "in": []}
    crew = estimator.placement.crew
    actors, crew.actors = crew.actors, [Recorder(actor, sizes) for actor in crew.actors]
    for shard, actor in zip(state.carry.shards, crew.actors, strict=True):
        shard.ref.actor = actor
    estimator.estimate(theta, state)
    crew.actors = actors
    letters = set(sizes["theta"])
    return {
        "theta_bytes": sum(len(pickle.dumps(ray.get(x), protocol=5)) for x in letters),
        "out_bytes": sum(sizes["out"]),
        "in_bytes": sum(len(pickle.dumps(ray.get(x), protocol=5)) for x in sizes["in"]),
    }


def phases(estimator: Any, theta: Any, updates: int) -> tuple[dict[str, float], Any]:
    """Measure the seconds per update by phase (medians), and return the final state too."""
    placement = estimator.placement
    state = estimator.init(theta, jax.random.key(0))
    state = estimator.estimate(theta, state).state  # compiles
    rows = []
    for _ in range(updates):
        began = time.perf_counter()
        estimate = estimator.estimate(theta, state)
        jax.block_until_ready(estimate.grad)
        whole = time.perf_counter() - began
        state = estimate.state
        spent = {"whole": whole}
        if placement != Local():
            spent |= {
                "send": placement.phases["send"],
                "unroll": placement.phases["busy"],
                "ray": placement.phases["wait"] - placement.phases["busy"],
                "here": whole - placement.phases["send"] - placement.phases["wait"],
            }
        rows.append(spent)
    return {name: float(np.median([row[name] for row in rows])) for name in rows[0]}, state


def scaling(quick: bool) -> list[dict]:
    """Compare HalfCheetah at a fixed number of workers per actor with and without Ray."""
    rows, updates = [], 3 if quick else 40
    for actors in (1,) if quick else (1, 2, 4):
        workers = PER_ACTOR * actors
        make = functools.partial(nres.NRES, workers=workers, window=20, sigma=0.004)
        here = CHEETAH()
        theta = here.initial_theta(jax.random.key(0))
        alone, _ = phases(make(here), theta, updates)
        placement = Ray(actors=actors)
        estimator = make(CHEETAH(threads=1), placement=placement)
        found, state = phases(estimator, theta, updates)
        rows.append(
            {"actors": actors, "workers": workers, "without_ray": alone["whole"]}
            | found
            | {"of_without_ray": alone["whole"] / found["whole"]}
            | bytes_sent(estimator, theta, state)
        )
        placement.close()
    return rows


def overhead(quick: bool) -> list[dict]:
    """Measure an update without simulation as actors, workers and parameters grow."""
    rows, updates = [], 5 if quick else 100
    sizes = [(a, 100, 100) for a in (1, 2, 4)]
    sizes += [(2, n, 100) for n in (1_000, 10_000)]
    sizes += [(2, 100, d) for d in (10_000, 100_000)]
    for actors, workers, parameters in [(1, 100, 100)] if quick else sizes:
        placement = Ray(actors=actors)
        estimator = nres.NRES(
            Nothing(),
            workers=workers,
            window=100,
            sigma=0.1,
            store_noise=False,
            placement=placement,
        )
        theta = jnp.zeros(parameters)
        found, state = phases(estimator, theta, updates)
        row = {"actors": actors, "workers": workers, "parameters": parameters} | found
        rows.append(row | bytes_sent(estimator, theta, state))
        placement.close()
    return rows


def drawing(quick: bool) -> dict:
    """Measure the seconds per random number of noise on this backend."""
    size = 2**16 if quick else 2**22
    workers, theta = 64, jnp.zeros(size // 64)
    keys = jax.random.split(jax.random.key(0), workers)

    @jax.jit
    def total(number):
        noise = nres.Gaussian().draw(keys, jnp.full(workers, number), jnp.ones(workers), theta)
        return jnp.tensordot(jnp.ones(workers), noise, axes=1).sum()

    total(0).block_until_ready()
    times = []
    for i in range(3 if quick else 20):
        began = time.perf_counter()
        total(i).block_until_ready()
        times.append((time.perf_counter() - began) / size)
    return {"backend": jax.default_backend(), "seconds_a_number": float(np.median(times))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="Run a small version.")
    parser.add_argument(
        "--out", type=Path, default=Path("results/bench"), help="The folder to write to."
    )
    arguments = parser.parse_args()
    nres.placement.ray.connect("local", cpus=4)
    results: dict[str, Any] = {
        "machine": machine() | {"ray": ray.__version__},
        "scaling": scaling(arguments.quick),
        "overhead": overhead(arguments.quick),
        "drawing": drawing(arguments.quick),
    }
    show("NRES on HalfCheetah, W = 20, 40 workers per actor: seconds", results["scaling"])
    show("Updates without simulation: seconds", results["overhead"])
    write_json(arguments.out / "actors.json", results)


if __name__ == "__main__":
    main()
