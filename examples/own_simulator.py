# %% [markdown]
# # Your own simulator
#
# Evolution strategies need only losses, so a simulator may be anything that you can call from
# Python: NumPy code, a C++ library, a game, a remote service. This notebook trains a controller for
# a pendulum that is simulated in NumPy.
#
# ## The simulator
#
# It steps many pendulums at once, as elements of arrays. The motor is too weak to lift a pendulum
# that has fallen. The controller has three parameters: torque = 2 tanh(θ · features).

# %%
import jax
import matplotlib.pyplot as plt
import numpy as np
import optax

import nres


def simulate(angle, speed, theta):
    """Take one step, and return the new angle, the new speed and the loss."""
    features = np.stack([np.sin(angle), np.cos(angle), speed], axis=-1)
    torque = 2 * np.tanh((theta * features).sum(axis=-1))
    speed = speed + 0.05 * (15 * np.sin(angle) + 3 * torque)
    angle = angle + 0.05 * np.clip(speed, -8, 8)
    return angle, speed, 1 - np.cos(angle) + 0.01 * speed**2


# %% [markdown]
# ## The pool
#
# A pool advances a batch of unrolls by one window. The leading axes of every array are members and
# workers: the members of a worker differ only in their parameters. `keys` has one row per worker.
# All randomness must follow from that row and the step, so that members share it.

# %%


class Pendulums(nres.Pool):
    horizon = 200
    can_fork = True  # a state is two arrays, which can be kept, copied and saved

    def check(self, theta):
        if np.shape(theta) != (3,):
            raise ValueError(f"theta must have shape (3,), got {np.shape(theta)}.")

    def advance(self, state, thetas, keys, start, window, length=None):
        members, workers, _ = thetas.shape
        length = np.full(workers, window) if length is None else length
        if state is None:
            state = np.zeros((members, workers)), np.zeros((members, workers))
        angle, speed = (x.copy() for x in state)  # do not modify the given state
        for w in np.flatnonzero(start == 0):  # a new episode: all members start alike
            angle[:, w] = 0.1 * np.random.default_rng(keys[w]).standard_normal()
            speed[:, w] = 0.0
        total = np.zeros((members, workers))
        for i in range(window):
            going = i < length  # some workers may take fewer steps than others
            moved, driven, loss = simulate(angle, speed, thetas)
            angle, speed = np.where(going, moved, angle), np.where(going, driven, speed)
            total += np.where(going, loss, 0.0)
        return nres.Window((angle, speed), total, np.broadcast_to(length, total.shape))

    def fork(self, state, member):
        return tuple(np.broadcast_to(x[member], x.shape) for x in state)


# %% [markdown]
# ## Check the pool
#
# Two properties are easy to get wrong: members with equal parameters must have equal losses, and
# ten short windows must give the same loss as one long window.

# %%
pool, key = Pendulums(), jax.random.key(0)
keys = np.asarray(jax.random.key_data(jax.random.split(key, 6)))  # for six workers
zero = np.zeros(3, np.float32)
thetas = np.broadcast_to(zero, (2, 6, 3))

whole = pool.advance(None, thetas, keys, np.zeros(6, int), pool.horizon)
np.testing.assert_array_equal(whole.loss[0], whole.loss[1])

state, parts = None, 0
for t in range(0, pool.horizon, 20):
    window = pool.advance(state, thetas, keys, np.full(6, t), 20)
    state, parts = window.state, parts + window.loss
np.testing.assert_allclose(parts, whole.loss)

# %% [markdown]
# ## Train
#
# From here on, a pool is used like a system.

# %%
updates = 400
estimator = nres.NRES(pool, workers=50, window=20, sigma=0.3)


def loss(theta):
    return nres.evaluate(pool, theta, key, episodes=20).loss


result = nres.train(estimator, optax.adam(0.05), zero, updates=updates, key=key, eval_fn=loss)
print(result.history.summary())
panel = result.history.plot()

# %% [markdown]
# Six pendulums fall without a controller, and stay upright with the one that was learned:

# %%
_, panel = plt.subplots(layout="constrained")
for theta, colour, label in ((zero, "C7", "before"), (result.theta, "C3", "after")):
    state, heights = None, []
    for t in range(pool.horizon):
        thetas = np.broadcast_to(np.asarray(theta), (1, 6, 3))
        state = pool.advance(state, thetas, keys, np.full(6, t), 1).state
        heights.append(np.cos(state[0][0]))
    lines = panel.plot(heights, color=colour)
    lines[0].set_label(label)
panel.set(xlabel="step", ylabel="height (1 is upright)")
panel.legend()
print("theta:", np.array(result.theta).round(2))

# %% [markdown]
# ## Where to go from here
#
# - If your simulator is a gymnasium environment, or can be wrapped in one, `nres.pools.GymPool`
#   needs no pool of your own. It also distributes environments among processes.
# - If episodes may end early, count the steps that were taken, and add a constant loss for each of
#   the remaining steps.
# - If states cannot be copied, set `can_fork = False`.
