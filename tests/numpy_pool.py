"""A pool that is not written in JAX: it steps the NumPy twins of the tests' systems."""

import jax
import numpy as np

import nres
from helpers import Twin


class NumpyPool(nres.Pool):
    """Its state is a value: two arrays, copied before they are changed."""

    can_fork = True

    def __init__(self, system):
        self.horizon = system.horizon
        self.twin = Twin(system)

    def advance(self, state, thetas, keys, start, window, length=None):
        for given in (*jax.tree.leaves(thetas), keys, start, length):
            assert isinstance(given, np.ndarray)
        lanes = thetas.shape[:2]
        size = np.size(self.twin.init(thetas[0, 0], keys[0]))
        states, ended = state or (np.zeros((*lanes, size)), np.zeros(lanes, bool))
        states, ended = states.copy(), ended.copy()
        loss, steps = np.zeros(lanes, np.float32), np.zeros(lanes, np.int32)
        for m, w in np.ndindex(lanes):
            theta = thetas[m, w].astype(np.float64)
            if start[w] == 0:
                states[m, w], ended[m, w] = self.twin.init(theta, keys[w]), False
            total = 0.0
            for t in range(start[w], start[w] + length[w]):
                if ended[m, w]:
                    total += self.twin.absorbing_loss
                    continue
                current = states[m, w] if size > 1 else states[m, w, 0]
                states[m, w], cost, ended[m, w] = self.twin.step(current, theta, t, keys[w])
                total += cost
                steps[m, w] += 1
            loss[m, w] = total
        return nres.Window((states, ended), loss, steps)

    def fork(self, state, member):
        return tuple(np.broadcast_to(part[member], part.shape) for part in state)
