"""Tokens per second of a gated recurrence: NRES with noise of low rank, and plain inference.

python benchmarks/large_models.py [--quick] [--out FOLDER]

*Inference* runs as many lanes with one shared set of parameters: the ceiling, since nothing is
perturbed and nothing is learned. *Gaussian* is NRES with a noise in full for every worker, where
that fits. Every token passes through three n x n matrices. The last column is the number of
bytes that the compiler plans for one estimate with noise of low rank: arguments, results and
temporary arrays.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

import nres
from run import fastest, publish, seconds, training

WINDOW, SYMBOLS = 16, 256
# The width n and the number of pairs.
SIZES = {"cpu": ((64, 128), (256, 64)), "gpu": ((576, 2048), (1856, 2048), (5760, 2048))}
# The number of updates per measurement: a multiple of the 32 that a GPU starts at once.
COUNTS = {"cpu": 10, "gpu": 96}
WAYS = ("low rank", "Gaussian", "inference")
# The most bytes that the noises in full may take.
LARGEST = {"cpu": 2**30, "gpu": 2**35}


class Gated(nres.System):
    """A minimal gated recurrence that predicts bytes which follow from a counter."""

    width: int = eqx.field(static=True)
    dtype: Any = eqx.field(static=True)
    horizon: int = 1024

    def initial_theta(self, key):
        keys, n = jax.random.split(key, 5), self.width
        shapes = {"gate": (n, n), "candidate": (n, n), "mixed": (n, n)}
        shapes |= {"symbols": (SYMBOLS, n), "output": (n, SYMBOLS)}
        return {
            name: (jax.random.normal(k, shape) / n**0.5).astype(self.dtype)
            for k, (name, shape) in zip(keys, shapes.items(), strict=True)
        }

    def init(self, theta, key):
        return jnp.zeros(self.width, self.dtype)

    def step(self, state, theta, t, key):
        x = theta["symbols"][(7 * t) % SYMBOLS]
        keep = jax.nn.sigmoid(state @ theta["gate"] + x)
        state = keep * state + (1 - keep) * jnp.tanh(state @ theta["candidate"] + x)
        logits = (jnp.tanh(state @ theta["mixed"]) @ theta["output"]).astype(jnp.float32)
        return state, jax.nn.logsumexp(logits) - logits[(7 * t + 7) % SYMBOLS]


def inference(system: Gated, theta: Any, lanes: int) -> Callable[[], Any]:
    """Compile a window of all lanes with the same parameters, and return a function to run it."""
    states = jax.random.normal(jax.random.key(2), (lanes, system.width)).astype(system.dtype)

    @jax.jit
    def run(theta, states):
        def step(carry, t):
            states, total = carry
            one = lambda state: system.step(state, theta, t, None)  # noqa: E731
            states, losses = jax.vmap(one)(states)
            return (states, total + losses), None

        carry = states, jnp.zeros(lanes)
        return jax.lax.scan(step, carry, jnp.arange(WINDOW, dtype=jnp.int32))[0]

    return lambda: jax.block_until_ready(run(theta, states))


def estimator_of(system: Gated, workers: int, noise: nres.Noise) -> nres.NRES:
    return nres.NRES(system, workers=workers, window=WINDOW, sigma=0.01, noise=noise)


def planned_bytes(estimator: nres.NRES, theta: Any) -> int:
    """Return the bytes of one estimate in the compiler's plan."""
    state = jax.eval_shape(estimator.init, theta, jax.random.key(1))
    plan = jax.jit(estimator.estimate).lower(theta, state).compile().memory_analysis()
    assert plan is not None
    return plan.temp_size_in_bytes + plan.argument_size_in_bytes + plan.output_size_in_bytes


def run(quick: bool = False, rounds: int = 3) -> list[dict]:
    rows = []
    kind = "cpu" if jax.default_backend() == "cpu" else "gpu"
    for width, workers in ((16, 4),) if quick else SIZES[kind]:
        system = Gated(width, jnp.float32 if kind == "cpu" else jnp.bfloat16)
        theta = system.initial_theta(jax.random.key(0))
        size = sum(leaf.size for leaf in jax.tree.leaves(theta))
        count, tokens = 2 if quick else COUNTS[kind], 2 * workers * WINDOW
        laws: dict[str, nres.Noise] = {"low rank": nres.noise.LowRank(1)}
        if 4 * workers * size < LARGEST[kind]:
            laws["Gaussian"] = nres.Gaussian()
        ways = {}
        for name, law in laws.items():
            updates = training(estimator_of(system, workers, law), theta, count)
            ways[name] = lambda u=updates, n=count, t=tokens: n * t / u()
        plain = inference(system, theta, 2 * workers)
        plain()
        ways["inference"] = lambda p=plain, n=count, t=tokens: t / seconds(p, n)
        speeds = fastest(1 if quick else rounds, ways)
        rows.append(
            {"parameters": size, "workers": workers, "window": WINDOW}
            | {f"{name}, tokens/s": speeds.get(name) for name in WAYS}
            | {"of inference": speeds["low rank"] / speeds["inference"]}
            | {"bytes": planned_bytes(estimator_of(system, workers, laws["low rank"]), theta)}
        )
    return rows


def main() -> None:
    file = f"large_models_{jax.default_backend()}.json"
    publish(__doc__, run, "Tokens per second", "large_models", file, ",.3g")


if __name__ == "__main__":
    main()
