"""Training steps of small models per second, while Celo2 and `AdafactorMLP` are learned.

python benchmarks/meta_training.py [--quick] [--out FOLDER]

*Bare* is one compiled function in plain JAX that trains as many models for as many steps, with the
same gradients and the same optimizer, with a copy of its parameters per lane: no noise, no ends of
episodes, no estimates. The *floor* is the time for the products of matrices alone, at the speed of
large products on the same device.
"""

import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

import nres
from nres.lengths import LogUniform
from nres.systems import learned_optimizer as lo
from run import fastest, publish, seconds

# The optimizers, and the numbers of inputs, hidden units and outputs of their networks.
OPTIMIZERS = {
    "Celo2": (lo.Celo2(), (30, 8, 8, 3)),
    "AdafactorMLP": (lo.AdafactorMLP(width=4), (39, 4, 4, 2)),
}
# Workers and window: the recipe's, and more workers with shorter windows.
SHAPES = {"cpu": ((8, 10),), "gpu": ((32, 50), (256, 20), (1024, 10))}
BATCH, LAYERS = 64, ((64, 32), (32, 10))


def system_of(optimizer: Any) -> lo.LearnedOptimizerSystem:
    task = lo.small_images_task(evaluated_on="train")
    return lo.LearnedOptimizerSystem(
        task,
        optimizer,
        sequence="random",
        horizon=LogUniform(100, 2000),
        scales=(1e-3, 1e3),
        outer="before",
        cap=3.45,
    )


def bare(system: Any, theta: Any, lanes: int, window: int) -> Callable[[], Any]:
    """Compile the training of all lanes, and return a function that runs it once."""
    task, optimizer = system.task, system.optimizer
    key = jax.random.key(3)
    thetas = jax.tree.map(lambda x: jnp.broadcast_to(x, (lanes, *x.shape)), theta)

    def train(theta, params, state, key):
        def step(carry, t):
            params, state, total = carry
            index = jax.random.randint(jax.random.fold_in(key, t), (BATCH,), 0, task.sizes[0])
            batch = jax.tree.map(lambda x: x[index], task.train)
            loss, grads = jax.value_and_grad(task.loss)(params, batch)
            updates, state = optimizer.update(theta, grads, state, params, t)
            return (optax.apply_updates(params, updates), state, total + loss), None

        return jax.lax.scan(step, (params, state, 0.0), jnp.arange(window))[0]

    keys = jax.random.split(key, lanes)
    params = jax.jit(jax.vmap(task.init))(keys)
    state = jax.jit(jax.vmap(optimizer.init))(params)
    run = jax.jit(jax.vmap(train))
    return lambda: jax.block_until_ready(run(thetas, params, state, keys))


def flops(network: tuple[int, ...], orthogonal: bool) -> int:
    """Count the multiplications and additions of one training step, in products of matrices."""
    weights = sum(m * n for m, n in LAYERS)
    model = 2 * BATCH * (3 * weights - LAYERS[0][0] * LAYERS[0][1])
    per_number = 2 * sum(m * n for m, n in itertools.pairwise(network))
    whole = weights + (0 if orthogonal else sum(n for _, n in LAYERS))
    steps = 0
    if orthogonal:  # five times X Xᵀ, its square, and one more product
        for m, n in LAYERS:
            small, large = sorted((m, n))
            steps += 5 * (4 * small * small * large + 2 * small**3)
    return model + per_number * whole + steps


@functools.cache
def product_speed() -> float:
    """Measure the operations per second of products of large matrices."""
    size = 512 if jax.default_backend() == "cpu" else 8192
    x = jnp.ones((size, size))
    multiply = jax.jit(lambda x: x @ x / size)
    jax.block_until_ready(multiply(x))
    return (
        2 * size**3 / min(seconds(lambda: jax.block_until_ready(multiply(x)), 3) for _ in range(5))
    )


def run(quick: bool = False, rounds: int = 4) -> list[dict]:
    """Measure both in turn, and keep the best of several rounds for each."""
    rows = []
    shapes = SHAPES["cpu" if jax.default_backend() == "cpu" else "gpu"]
    for name, (optimizer, network) in list(OPTIMIZERS.items())[: 1 if quick else None]:
        system = system_of(optimizer)
        theta = system.initial_theta(jax.random.key(0))
        for workers, window in ((2, 2),) if quick else shapes:
            count = 2 if quick else 40
            estimator = nres.NRES(system, workers=workers, window=window, sigma=0.01)
            adam = optax.adamw(1e-9)
            state = nres.train(estimator, adam, theta, updates=count, key=jax.random.key(1)).state

            def updates(state=state, estimator=estimator, adam=adam, theta=theta, count=count):
                nres.train(estimator, adam, theta, updates=count, state=state)

            plain = bare(system, theta, 2 * workers, window)
            updates(), plain()
            steps = 2 * workers * window
            ways = {
                "nres": lambda u=updates, n=count, s=steps: n * s / seconds(u, 1),
                "bare": lambda p=plain, n=count, s=steps: s / seconds(p, n),
            }
            best = fastest(1 if quick else rounds, ways)
            floor = product_speed() / flops(network, isinstance(optimizer, lo.Celo2))
            rows.append(
                {"optimizer": name, "workers": workers, "window": window}
                | {f"{who}_steps_per_second": speed for who, speed in best.items()}
                | {"of_bare": best["nres"] / best["bare"], "of_floor": best["nres"] / floor}
            )
    return rows


def main() -> None:
    file = f"meta_training_{jax.default_backend()}.json"
    publish(__doc__, run, "Training steps per second", "meta_training", file, ",.3f")


if __name__ == "__main__":
    main()
