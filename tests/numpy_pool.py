"""A pool that is not written in JAX: it steps the NumPy twins of the tests' systems."""

import jax
import numpy as np

import nres
from helpers import Twin


class NumpyPool:
    """Keeps its state in place, as a simulator would, and hands out a token for it."""

    can_fork = True

    def __init__(self, system):
        self.horizon = system.horizon
        self.twin = Twin(system)

    def check(self, theta):
        pass

    def advance(self, state, thetas, keys, start, window, length=None):
        for given in (*jax.tree.leaves(thetas), keys, start, length):
            assert isinstance(given, np.ndarray)
        lanes = thetas.shape[:2]
        if state is None:
            self.states = np.empty(lanes, object)
            self.ended = np.zeros(lanes, bool)
        loss, steps = np.zeros(lanes, np.float32), np.zeros(lanes, np.int32)
        for m, w in np.ndindex(lanes):
            theta = thetas[m, w].astype(np.float64)
            if start[w] == 0:
                self.states[m, w], self.ended[m, w] = self.twin.init(theta, keys[w]), False
            total = 0.0
            for t in range(start[w], start[w] + length[w]):
                if self.ended[m, w]:
                    total += self.twin.absorbing_loss
                    continue
                self.states[m, w], cost, self.ended[m, w] = self.twin.step(
                    self.states[m, w], theta, t, keys[w]
                )
                total += cost
                steps[m, w] += 1
            loss[m, w] = total
        return nres.Window("token", loss, steps, self.ended.copy())

    def fork(self, state, member):
        assert state == "token"
        self.states[:] = self.states[member]
        self.ended[:] = self.ended[member]
        return state
