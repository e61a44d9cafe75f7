"""Step a whole batch of simulations in one call.

An `nres.System` describes one trajectory, and `nres.JaxPool` turns it into a batch with `vmap`. A
JAX simulator that already works on batches inherits from `nres.pools.TraceablePool` instead: its
`begin` and `run` get all members of all workers at once. It works with every estimator, placement
and command:

    nres train examples/batch_pool.py:Pendulums --sigma 0.1 --lr 0.05 --updates 300
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

import nres


class Pendulums(eqx.Module, nres.pools.TraceablePool):
    """Upright pendulums, each balanced by linear feedback with the gains `theta`."""

    horizon: int = 60

    def initial_theta(self, key):
        return jnp.zeros(2)

    def begin(self, state, thetas, keys, start):
        def draw(key):  # all members of a worker start from the same state
            return jax.random.uniform(jax.random.fold_in(key, 0), (2,), minval=-0.5, maxval=0.5)

        fresh = jnp.broadcast_to(jax.vmap(draw)(keys), (*thetas.shape[:2], 2))
        return fresh if state is None else jnp.where((start == 0)[None, :, None], fresh, state)

    def run(self, state, thetas, keys, start, window, length=None):
        lengths = jnp.full_like(start, window) if length is None else length

        def step(carry, i):
            state, total = carry
            angle, speed = state[..., 0], state[..., 1]
            push = jnp.einsum("mwk,mwk->mw", thetas, state)  # for the whole batch
            speed = speed + 0.1 * (jnp.sin(angle) - push)
            new = jnp.stack([angle + 0.1 * speed, speed], axis=-1)
            active = i < lengths  # some workers may take fewer steps than others
            loss = jnp.where(active[None], new[..., 0] ** 2 + 0.01 * push**2, 0)
            return (jnp.where(active[None, :, None], new, state), total + loss), None

        offsets = jnp.arange(window, dtype=start.dtype)
        (state, total), _ = jax.lax.scan(step, (state, jnp.zeros(thetas.shape[:2])), offsets)
        return nres.Window(state, total, jnp.broadcast_to(lengths, thetas.shape[:2]))


if __name__ == "__main__":
    pool = Pendulums()
    estimator = nres.NRES(pool, workers=100, window=6, sigma=0.1)
    theta = pool.initial_theta(None)
    result = nres.train(estimator, optax.adam(0.05), theta, updates=300, key=jax.random.key(0))
    print(result)
    print("gains:", result.theta)
