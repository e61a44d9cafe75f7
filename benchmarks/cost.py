"""Cost of one estimate of each method, relative to forward unrolls of as many steps.

The floor is `JaxPool.advance` without any estimator: one lane per worker, over the steps of the
method's window.
"""

import functools
import time
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

import nres
from nres.estimators.ad import for_lanes
from nres.estimators.computing import compute_estimate

HIDDEN, SEQUENCES = 100, 100


class Recurrent(nres.System):
    """A recurrent network that runs over 100 sequences at once: a state of 10,000 numbers."""

    horizon: int = eqx.field(static=True, default=100)

    def init(self, theta, key):
        return jnp.zeros((HIDDEN, SEQUENCES))

    def step(self, state, theta, t, key):
        phase = jnp.arange(SEQUENCES) + 0.1 * t.astype(jnp.float32)
        state = jnp.tanh(theta["recurrent"] @ state + theta["input"][:, None] * jnp.sin(phase))
        return state, jnp.mean((state[0] - jnp.cos(phase)) ** 2)


def recurrent_theta() -> dict[str, jax.Array]:
    recurrent = jax.random.normal(jax.random.key(0), (HIDDEN, HIDDEN)) / HIDDEN**0.5
    return {"recurrent": recurrent, "input": jnp.ones(HIDDEN)}


def methods(system: nres.System, workers: int, window: int) -> dict[str, nres.Estimator]:
    online: dict[str, Any] = {"workers": workers, "window": window}
    return {
        "NRES": nres.NRES(system, sigma=0.04, **online),
        "PES": nres.PES(system, sigma=0.04, **online),
        "GPES": nres.GPES(system, sigma=0.04, period=2 * window, **online),
        "TES": nres.TES(system, sigma=0.04, **online),
        "FullES": nres.FullES(system, sigma=0.04, workers=workers),
        "TBPTT": nres.TBPTT(system, **online),
        "DODGE": nres.DODGE(system, **online),
        "UORO": nres.UORO(system, **online),
        "BPTT": nres.BPTT(system, workers=workers),
        "BPTT, plain": nres.BPTT(system, workers=workers, checkpoint_every=system.horizon),
    }


def compiled(function: Callable, *arguments: Any) -> tuple[Callable, int]:
    """Compile a function, and return it with its peak memory in bytes."""
    program = jax.jit(function).lower(*arguments).compile()
    plan = program.memory_analysis()
    assert plan is not None
    used = plan.argument_size_in_bytes + plan.output_size_in_bytes + plan.temp_size_in_bytes
    return functools.partial(program, *arguments), used


def seconds(run: Callable, budget: float = 0.5) -> float:
    """Measure the time of one call: the best of as many as the time budget allows."""
    jax.block_until_ready(run())
    best, ends = float("inf"), time.perf_counter() + budget
    while time.perf_counter() < ends:
        began = time.perf_counter()
        jax.block_until_ready(run())
        best = min(best, time.perf_counter() - began)
    return best


def run(quick: bool = False) -> list[dict]:
    """Measure two systems at growing horizons, on which the cost of a window must not depend."""
    key = jax.random.key(0)
    lorenz_theta = jnp.array([3.7, 3.116])
    problems: list[tuple[Any, ...]] = [
        ("Lorenz", nres.systems.Lorenz, lorenz_theta, 200, 100, (400, 1600, 6400)),
        ("recurrent", Recurrent, recurrent_theta(), 1, 20, (100, 400, 1600)),
    ]
    if quick:
        problems = [("Lorenz", nres.systems.Lorenz, lorenz_theta, 2, 10, (20,))]
    rows = []
    for name, make, theta, workers, window, horizons in problems:
        for horizon in horizons:
            system = make(horizon)
            pool = nres.JaxPool(system)
            keys, start = jax.random.split(key, workers), jnp.zeros(workers, jnp.int32)
            unrolls = {}
            for length in (window, horizon):
                unroll = functools.partial(pool.advance, None, window=length)
                program, used = compiled(
                    lambda thetas, keys, start, unroll=unroll: unroll(thetas, keys, start),
                    for_lanes(theta, workers),
                    keys,
                    start,
                )
                unrolls[length] = seconds(program), used
            for method, estimator in methods(system, workers, window).items():
                if quick and method not in ("NRES", "BPTT"):
                    continue
                state = estimator.init(theta, key)
                program, used = compiled(
                    functools.partial(compute_estimate, estimator), theta, state
                )
                unroll_seconds, unroll_bytes = unrolls[estimator.window]
                rows.append(
                    {
                        "system": name,
                        "method": method,
                        "horizon": horizon,
                        "window": estimator.window,
                        "workers": workers,
                        "time_in_unrolls": seconds(program) / unroll_seconds,
                        "peak_bytes": used,
                        "unroll_bytes": unroll_bytes,
                    }
                )
    return rows
