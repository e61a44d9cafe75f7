# %% [markdown]
# # First steps
#
# Foxes eat rabbits. This notebook recovers four rates of a predator-prey model from the sizes of
# both populations. The parameters $\theta$ are the logarithms of the rates.
#
# ## Define a system
#
# A system defines how an episode starts and how it takes one step. `step` returns the new state and
# the loss of the step. Parameters and states may be any pytrees.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

import nres

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
# `nres.evaluate` runs whole episodes. Its result shows the mean loss per step.

# %%
system, key = LotkaVolterra(), jax.random.key(0)
start = TRUTH + jnp.array([0.3, -0.3, 0.3, -0.3])
print(nres.evaluate(system, start, key))

# %% [markdown]
# ## Train
#
# `NRES` runs 100 workers, each of which is a pair of unrolls with parameters $\theta + \epsilon$
# and $\theta - \epsilon$. Every update advances all workers by 20 steps of their episodes, so there
# are 25 updates per episode. `sigma` is the standard deviation of the noise $\epsilon$. `train`
# takes any optax optimizer.

# %%
updates = 3000
estimator = nres.NRES(system, workers=100, window=20, sigma=0.03)
optimizer = optax.adam(optax.cosine_decay_schedule(3e-3, updates))


def loss(theta):
    return nres.evaluate(system, theta, key).loss


result = nres.train(estimator, optimizer, start, updates=updates, key=key, eval_fn=loss)
print(result.history.summary())

# %% [markdown]
# The history records every update. The training loss is the loss of the perturbed unrolls, so noise
# keeps it above the loss at $\theta$ itself (`eval`).

# %%
panel = result.history.plot()

# %% [markdown]
# ## Look at the result

# %%
_, panel = plt.subplots(layout="constrained")
for theta, style, label in (
    (start, "C7-", "before the fit"),
    (result.theta, "C3-", "after the fit"),
    (TRUTH, "C0:", "truth"),
):
    state = jnp.array([10.0, 5.0])
    path = [state := populations(state, theta) for _ in range(system.horizon)]
    lines = panel.plot(0.02 * np.arange(system.horizon), np.stack(path), style)
    lines[0].set_label(label)
panel.set(xlabel="time", ylabel="rabbits and foxes")
panel.legend()
print("estimated rates:", np.exp(result.theta).round(2))
print("true rates:     ", np.exp(TRUTH).round(2))

# %% [markdown]
# ## Continue and save
#
# The result contains the state of the run. Pass it to `train` to continue exactly where the run
# stopped. `save` and `load` keep parameters in a file.

# %%
more = nres.train(estimator, optimizer, result.theta, updates=10, state=result.state)
nres.save("rates.npz", more.theta)
print(nres.load("rates.npz", like=start))

# %% [markdown]
# To use another method, replace `NRES`: `PES`, `FullES`, `TBPTT` and the others have the same
# interface. The other notebooks show how to train with your own simulator, and how to choose
# `sigma`, `window` and `workers`.
