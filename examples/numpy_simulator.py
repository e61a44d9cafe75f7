"""Train a controller for a simulator that is not written in JAX: a pendulum in NumPy.

All unrolls advance together, as elements of arrays. The two members of a worker differ only in
theta.
"""

import sys

import jax
import numpy as np
import optax

import nres


class Pendulum(nres.Pool):
    """Keep a pendulum upright with a weak motor: torque = 2 tanh(theta @ features)."""

    horizon = 200
    can_fork = True

    def check(self, theta):
        """Raise a ValueError if theta does not fit."""
        if np.shape(theta) != (3,):
            raise ValueError(f"theta must have shape (3,), got {np.shape(theta)}.")

    def advance(self, state, thetas, keys, start, window, length=None):
        """Step every member of every worker, on a copy of the state."""
        members, workers, _ = thetas.shape
        length = np.full(workers, window) if length is None else length
        if state is None:
            state = np.zeros((members, workers)), np.zeros((members, workers))
        angle, speed = (x.copy() for x in state)
        for w in np.flatnonzero(start == 0):  # a new episode: both members start alike
            angle[:, w] = 0.2 * np.random.default_rng(keys[w]).standard_normal()
            speed[:, w] = 0.0
        loss = np.zeros((members, workers), np.float32)
        for i in range(window):
            going = i < length
            features = np.stack([np.sin(angle), np.cos(angle), speed], axis=-1)
            torque = 2 * np.tanh((thetas * features).sum(axis=-1))
            speed += going * 0.05 * (15 * np.sin(angle) + 3 * torque)
            angle += going * 0.05 * np.clip(speed, -8, 8)
            loss += going * (1 - np.cos(angle) + 0.01 * speed**2)
        steps = np.broadcast_to(length, loss.shape).astype(np.int32)
        return nres.Window((angle, speed), loss, steps)

    def fork(self, state, member):
        """Let all members continue from the state of one of them."""
        return tuple(np.broadcast_to(x[member], x.shape) for x in state)


if __name__ == "__main__":
    updates = 3 if "--quick" in sys.argv else 400
    estimator = nres.NRES(Pendulum(), workers=50, window=20, sigma=0.3)
    theta, key = np.zeros(3, np.float32), jax.random.key(0)
    result = nres.train(estimator, optax.adam(0.05), theta, updates=updates, key=key)
    loss = nres.evaluate(Pendulum(), result.theta, key, episodes=20).loss
    print(f"loss {result.history.loss[0]:.2f} -> {loss:.2f}, theta {np.round(result.theta, 2)}")
