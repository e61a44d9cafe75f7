# %% [markdown]
# # Fit a system of your own
#
# Foxes eat rabbits. This example recovers four rates of a predator-prey model from the sizes of
# both populations. The parameters are the logarithms of the rates. A system says how an episode
# starts and how it takes one step; nres does the rest.

# %%
import sys

import jax
import jax.numpy as jnp
import optax

import nres

QUICK = "--quick" in sys.argv
TRUTH = jnp.log(jnp.array([1.1, 0.4, 0.4, 0.1]))  # births, hunts, deaths, meals


def populations(state, theta):
    rabbits, foxes = state
    births, hunts, deaths, meals = jnp.exp(theta)
    change = births * rabbits - hunts * rabbits * foxes, meals * rabbits * foxes - deaths * foxes
    return jnp.maximum(state + 0.02 * jnp.stack(change), 0.0)


class LotkaVolterra(nres.System):
    horizon: int = 500

    def init(self, theta, key):
        start = jnp.array([10.0, 5.0])
        return start, start  # of the model, and of the true populations

    def step(self, state, theta, t, key):
        model, true = populations(state[0], theta), populations(state[1], TRUTH)
        return (model, true), jnp.sum((jnp.log1p(model) - jnp.log1p(true)) ** 2)


# %% [markdown]
# NRES takes 20 steps per update, with 100 workers (antithetic pairs of unrolls) at different steps
# of their episodes.

# %%
system = LotkaVolterra()
estimator = nres.NRES(system, workers=100, window=20, sigma=0.03)
theta = TRUTH + jnp.array([0.3, -0.3, 0.3, -0.3])
updates, key = 20 if QUICK else 3000, jax.random.key(0)
before = nres.evaluate(system, theta, key).loss
optimizer = optax.adam(optax.cosine_decay_schedule(1e-2, updates))
result = nres.train(estimator, optimizer, theta, updates=updates, key=key)
after = nres.evaluate(system, result.theta, key).loss

# %%
print(f"loss {before:.3f} -> {after:.5f}")
print("estimated rates:", jnp.exp(result.theta).round(3))
print("true rates:     ", jnp.exp(TRUTH).round(3))
