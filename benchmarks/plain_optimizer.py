"""Straightforward implementation of learned optimizers in plain JAX, without optimizations.

It is NRES with W = 1: one vmap over all unrolls, one tensor of the model after another, and all
nineteen inputs for every parameter.
"""

import itertools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax

from nres.data import fashion_mnist

DECAYS = np.array([0.1, 0.5, 0.9, 0.99, 0.999, 0.9999], np.float32)
TIMES = np.array([1, 3, 10, 30, 100, 300, 1e3, 3e3, 1e4, 3e4, 1e5], np.float32)
SIZES = (64, 32, 32, 32, 10)


def network(theta, width):
    layers, at = [], 0
    for m, n in ((19, width), (width, width), (width, 2)):
        end = at + m * n
        layers.append((theta[at:end].reshape(m, n), theta[end : end + n]))
        at = end + n
    return layers


def improve(theta, width, params, grads, memory, t):
    time = jnp.tanh(t / TIMES - 1)

    def one(p, g, m):
        m = DECAYS * m + (1 - DECAYS) * g[..., None]
        x = jnp.concatenate([g[..., None], p[..., None], m], axis=-1)
        x = x / jnp.sqrt(1e-5 + jnp.mean(x**2, axis=tuple(range(p.ndim)), keepdims=True))
        x = jnp.concatenate([x, jnp.broadcast_to(time, (*p.shape, 11))], axis=-1)
        for i, (w, b) in enumerate(network(theta, width)):
            x = x @ w + b
            x = jax.nn.relu(x) if i < 2 else x
        return p - x[..., 0] * jnp.exp(0.001 * x[..., 1]) * 0.001, m

    both = [one(p, g, m) for p, g, m in zip(params, grads, memory, strict=True)]
    return [p for p, _ in both], [m for _, m in both]


def loss(params, images, labels):
    x = images.reshape(images.shape[0], -1) / 255
    for i in range(0, len(params), 2):
        x = x @ params[i] + params[i + 1]
        x = jax.nn.gelu(x) if i < len(params) - 2 else x
    return optax.softmax_cross_entropy_with_integer_labels(x, labels).mean()


def step(theta, width, params, memory, t, train, validation, table):
    at = table[t]
    grads = jax.grad(loss)(params, *(x[at[0]] for x in train))
    params, memory = improve(theta, width, params, grads, memory, t)
    return params, memory, loss(params, *(x[at[1]] for x in validation))


def plain(workers: int, width: int, horizon: int) -> Callable[[int], jax.Array]:
    """Return a function that makes the given number of updates."""
    images, labels = fashion_mnist()
    data = (images.astype(np.float32), labels.astype(np.int32))
    train, validation = tuple(x[:48_000] for x in data), tuple(x[48_000:] for x in data)
    keys = jax.random.split(jax.random.key(0), 8)
    limits = jnp.array([48_000, 12_000])[None, :, None]
    table = jax.random.randint(keys[0], (horizon, 2, 128), 0, limits)
    start = []
    for i, (m, n) in enumerate(itertools.pairwise(SIZES)):
        start += [jax.random.normal(keys[i + 1], (m, n)) / m**0.5, jnp.zeros(n)]
    size = sum(m * n + n for m, n in ((19, width), (width, width), (width, 2)))
    theta = jax.random.normal(keys[5], (size,)) * 0.1
    optimizer = optax.adam(3e-4)

    def reset(t, new, old):
        return jnp.where((t == 0).reshape(-1, *[1] * (old.ndim - 1)), new, old)

    def update(carry, _, data):
        theta, state, params, memory, t, key, noise = carry
        key, fresh = jax.random.split(key)
        noise = reset(t, jax.random.normal(fresh, noise.shape) * 0.01, noise)
        both = jnp.concatenate([t, t])
        params = [reset(both, p0, p) for p0, p in zip(start, params, strict=True)]
        memory = [reset(both, 0.0, m) for m in memory]
        thetas = jnp.concatenate([theta + noise, theta - noise])
        lanes = jax.vmap(step, in_axes=(0, None, 0, 0, 0, None, None, None))
        params, memory, losses = lanes(thetas, width, params, memory, both, *data)
        difference = losses[:workers] - losses[workers:]
        change, state = optimizer.update(difference @ noise / (2 * 0.01**2 * workers), state)
        theta = optax.apply_updates(theta, change)
        return (theta, state, params, memory, (t + 1) % horizon, key, noise), losses.mean()

    lanes = [jnp.broadcast_to(p, (2 * workers, *p.shape)) for p in start]
    carry = (
        theta,
        optimizer.init(theta),
        lanes,
        [jnp.zeros((*p.shape, 6)) for p in lanes],
        jax.random.randint(keys[6], (workers,), 0, horizon),
        keys[7],
        jnp.zeros((workers, size)),
    )
    data = jax.tree.map(jnp.asarray, (train, validation, table))

    @jax.jit
    def run(carry, count, data):
        body = lambda _, both: update(both[0], None, data)  # noqa: E731
        return jax.lax.fori_loop(0, count, body, (carry, jnp.zeros(())))

    return lambda updates: run(carry, updates, data)
