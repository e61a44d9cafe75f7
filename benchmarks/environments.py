"""Environment steps per second in JAX: updates of NRES, and a bare rollout of the same lanes.

python benchmarks/environments.py [--quick] [--out FOLDER]

*Bare* is one compiled function that unrolls as many environments for as many steps, with a linear
policy whose parameters differ among lanes, adds up rewards, and does nothing else: no noise, no
early ends, no resets, no gradients. Its episodes are as far advanced as those of the workers: each
at another window, and both members of a pair at the same.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import nres
from nres.noise.law import where_worker
from run import fastest, publish, seconds, training

WINDOW = 20


def brax(name: str) -> tuple[Any, Callable, Callable]:
    from brax import envs

    env = envs.get_environment(name, backend="spring")
    return (
        nres.systems.BraxEnvironment(env, horizon=200),
        lambda key: (state := env.reset(key), state.obs),
        lambda state, action: (
            after := env.step(state, jnp.clip(action, -1, 1)),
            after.obs,
            after.reward,
        ),
    )


def gymnax(name: str) -> tuple[Any, Callable, Callable]:
    import gymnax

    env, params = gymnax.make(name)
    system = nres.systems.GymnaxEnvironment(name, horizon=200)

    def reset(key):
        observation, state = env.reset_env(key, params)
        return state, observation

    def step(state, action):
        key = jax.random.PRNGKey(0)
        observation, state, reward, *_ = env.step_env(key, state, action, params)
        return state, observation, reward

    return system, reset, step


# Environments, with workers on a CPU, workers on a GPU, and updates per measurement.
ENVIRONMENTS: dict[str, tuple[Callable[[], tuple[Any, Callable, Callable]], int, int, int]] = {
    "gymnax:Pendulum-v1": (lambda: gymnax("Pendulum-v1"), 1000, 4000, 500),
    "brax:halfcheetah": (lambda: brax("halfcheetah"), 20, 4000, 40),
}


def bare(system, reset: Callable, step: Callable, lanes: int) -> Callable[[], Any]:
    """Compile a rollout of all lanes, and return a function that runs it once."""
    size = (lanes, system.actions, system.actor.observations)
    thetas = 0.1 * jax.random.normal(jax.random.key(1), size)

    def one_step(carry, _):
        state, observation, total = carry
        actions = jnp.einsum("lao,lo->la", thetas, observation)
        state, observation, reward = jax.vmap(step)(state, actions)
        return (state, observation, total + reward), None

    rollout = jax.jit(lambda carry: jax.lax.scan(one_step, carry, length=WINDOW)[0])
    begun = jax.jit(jax.vmap(reset))(jax.random.split(jax.random.PRNGKey(0), lanes))
    first = (*begun, jnp.zeros(lanes))
    windows = system.horizon // WINDOW
    place = jnp.tile(jnp.arange(lanes // 2) % windows, 2)
    for window in range(windows):
        first = where_worker(window < place, rollout(first), first)
    return lambda: jax.block_until_ready(rollout(first))


def run(quick: bool = False, rounds: int = 5) -> list[dict]:
    """Measure both in turn, and keep the best of several rounds for each."""
    rows = []
    for name, (make, few, many, count) in list(ENVIRONMENTS.items())[: 1 if quick else None]:
        workers = few if jax.default_backend() == "cpu" else many
        system, reset, step = make()
        estimator = nres.NRES(system, workers=workers, window=WINDOW, sigma=0.1)
        updates = training(estimator, system.initial_theta(jax.random.key(0)), count)
        floor = bare(system, reset, step, 2 * workers)
        updates()
        steps = 2 * workers * WINDOW
        ways = {
            "nres": lambda u=updates, n=count, s=steps: n * s / u(),
            "bare": lambda f=floor, n=count, s=steps: s / seconds(f, n),
        }
        best = fastest(1 if quick else rounds, ways)
        rows.append(
            {"environment": name, "workers": workers, "window": WINDOW}
            | {f"{who}_steps_per_second": speed for who, speed in best.items()}
            | {"of_bare": best["nres"] / best["bare"]}
        )
    return rows


def main() -> None:
    file = f"environments_{jax.default_backend()}.json"
    publish(__doc__, run, "Environment steps per second", "environments", file, ",.2f")


if __name__ == "__main__":
    main()
