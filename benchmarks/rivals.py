"""NRES on Lorenz without nres: hand-written JAX as the floor, and evosax.

Each function returns a runner, which makes `updates` updates and returns the final parameters.
"""

import functools

import jax
import jax.numpy as jnp

T, W, SIGMA, RATE = 2000, 100, 0.04, 1e-5
DT, B = 0.005, 8 / 3
START = (1.2, 1.3, 1.6)
THETA = (3.7, 3.116)


def euler(x, y, z, r, a):
    return x + a * (y - x) * DT, y + (x * (r - z) - y) * DT, z + (x * y - B * z) * DT


def true_z():
    def step(s, _):
        s = euler(s[0], s[1], s[2], 28.0, 10.0)
        return s, s[2]

    return jax.jit(lambda: jax.lax.scan(step, tuple(map(jnp.float32, START)), length=T)[1])()


def floor(workers: int, unroll: int):
    """Return a runner of step-unlocked NRES with SGD, hand-written for this one problem."""
    table = true_z()

    def window(theta, state, noise, start, table):
        r = jnp.exp(jnp.stack([theta[0] + noise[0], theta[0] - noise[0]]))
        a = jnp.exp(jnp.stack([theta[1] + noise[1], theta[1] - noise[1]]))

        def step(carry, i):
            x, y, z, total = carry
            x, y, z = euler(x, y, z, r, a)
            return (x, y, z, total + (z - table[start + i]) ** 2), None

        zero = jnp.zeros((2, workers))
        (x, y, z, total), _ = jax.lax.scan(step, (*state, zero), jnp.arange(W), unroll=unroll)
        return (x, y, z), total

    def update(carry, _, table):
        theta, state, noise, start, key = carry
        key, noise_key = jax.random.split(key)
        fresh = start == 0
        noise = jnp.where(fresh, SIGMA * jax.random.normal(noise_key, (2, workers)), noise)
        state = tuple(jnp.where(fresh, s0, s) for s0, s in zip(START, state, strict=True))
        state, total = window(theta, state, noise, start, table)
        grad = (noise * (total[0] - total[1])).mean(axis=1) / (2 * SIGMA**2 * W)
        return (theta - RATE * grad, state, noise, (start + W) % T, key), None

    @functools.partial(jax.jit, static_argnames="updates", donate_argnums=0)
    def run(carry, table, updates):
        return jax.lax.scan(lambda c, x: update(c, x, table), carry, length=updates)[0]

    key = jax.random.key(0)
    start = W * jax.random.randint(jax.random.key(1), (workers,), 0, T // W)
    lanes = jnp.zeros((2, workers))
    first = (jnp.asarray(THETA), (lanes,) * 3, jnp.zeros((2, workers)), start, key)

    def runner(updates: int):
        # A copy of each array, because the call donates them.
        return run(jax.tree.map(jnp.copy, first), table, updates)[0]

    return runner


def evosax(workers: int, unroll: int, scanned: bool = False):
    """Return a runner of evosax's NoiseReuseES, in which all workers are step-locked.

    Each generation is one compiled call. With `scanned`, all generations are one call, which
    evosax leaves to its users.
    """
    import optax
    from evosax.algorithms import NoiseReuseES

    table = true_z()
    population = 2 * workers
    strategy = NoiseReuseES(
        population_size=population,
        solution=jnp.zeros(2),
        optimizer=optax.sgd(RATE),
        std_schedule=optax.constant_schedule(SIGMA),
    )
    params = strategy.default_params.replace(T=T, K=W)

    def window(theta, state, start, table):
        r, a = jnp.exp(theta[:, 0]), jnp.exp(theta[:, 1])

        def step(carry, i):
            x, y, z, total = carry
            x, y, z = euler(x, y, z, r, a)
            return (x, y, z, total + (z - table[start + i]) ** 2), None

        carry = (*state, jnp.zeros(population))
        (x, y, z, total), _ = jax.lax.scan(step, carry, jnp.arange(W), unroll=unroll)
        return (x, y, z), total / W

    def update(carry, _, table):
        strategy_state, state, start, key = carry
        key, ask_key, tell_key = jax.random.split(key, 3)
        state = tuple(jnp.where(start == 0, s0, s) for s0, s in zip(START, state, strict=True))
        theta, strategy_state = strategy.ask(ask_key, strategy_state, params)
        state, fitness = window(theta, state, start, table)
        strategy_state, _ = strategy.tell(tell_key, theta, fitness, strategy_state, params)
        return (strategy_state, state, (start + W) % T, key), None

    @functools.partial(jax.jit, static_argnames="updates")
    def run(carry, table, updates):
        return jax.lax.scan(lambda c, x: update(c, x, table), carry, length=updates)[0]

    @jax.jit
    def generation(carry, table):
        return update(carry, None, table)[0]

    key = jax.random.key(0)
    strategy_state = strategy.init(key, jnp.asarray(THETA), params)
    lanes = (jnp.zeros(population),) * 3
    first = (strategy_state, lanes, jnp.zeros((), jnp.int32), key)

    def runner(updates: int):
        if scanned:
            return run(first, table, updates)[0].mean
        carry = first
        for _ in range(updates):
            carry = generation(carry, table)
        return carry[0].mean

    return runner
