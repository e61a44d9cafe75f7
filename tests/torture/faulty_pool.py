"""A small pool that returns wrong windows, for tests of the errors about them."""

import jax
import numpy as np

import nres

# Results of `advance`, most of them wrong.
WINDOWS = {
    "good": lambda loss, steps: nres.Window((), loss, steps),
    "tuple": lambda loss, steps: ((), loss, steps),
    "none": lambda loss, steps: None,
    "shape": lambda loss, steps: nres.Window((), loss[:1], steps),
    "flat": lambda loss, steps: nres.Window((), loss.ravel(), steps.ravel()),
    "scalar": lambda loss, steps: nres.Window((), 1.0, 1),
    "negative": lambda loss, steps: nres.Window((), loss, -steps - 1),
    "many": lambda loss, steps: nres.Window((), loss, steps + 10**6),
    "whole": lambda loss, steps: nres.Window((), loss.astype(int), steps),
    "text": lambda loss, steps: nres.Window((), "loss", steps),
    "nothing": lambda loss, steps: nres.Window((), None, None),
    "ragged": lambda loss, steps: nres.Window((), [[1.0], [1.0, 2.0]], steps),
    "objects": lambda loss, steps: nres.Window((), loss.astype(object), steps),
    "complex": lambda loss, steps: nres.Window((), loss * 1j, steps),
    "half-steps": lambda loss, steps: nres.Window((), loss, steps / 2),
    "float-steps": lambda loss, steps: nres.Window((), loss, steps.astype(float)),
    "nan": lambda loss, steps: nres.Window((), loss * np.nan, steps),
    "state": lambda loss, steps: nres.Window(object(), loss, steps),
    "lists": lambda loss, steps: nres.Window((), loss.tolist(), steps.tolist()),
}


class FaultyPool(nres.Pool):
    """A NumPy pool whose `advance` makes the given mistake."""

    can_fork = True

    def __init__(self, mistake="good", horizon=12):
        self.mistake, self.horizon = mistake, horizon

    def fork(self, state, member):
        return state

    def advance(self, state, thetas, keys, start, window, length=None):
        lanes = jax.tree.leaves(thetas)[0].shape[:2]
        length = np.full(lanes[1], window) if length is None else np.asarray(length)
        loss = np.ones(lanes)
        steps = np.broadcast_to(length, lanes).copy()
        return WINDOWS[self.mistake](loss, steps)
