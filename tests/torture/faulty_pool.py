"""A small pool that returns wrong windows, for tests of what is said of them."""

import jax
import numpy as np

import nres

# Results of `advance`, most of them wrong.
WINDOWS = {
    "good": lambda loss, steps, ended: nres.Window((), loss, steps, ended),
    "tuple": lambda loss, steps, ended: ((), loss, steps, ended),
    "none": lambda loss, steps, ended: None,
    "shape": lambda loss, steps, ended: nres.Window((), loss[:1], steps, ended),
    "flat": lambda loss, steps, ended: nres.Window((), loss.ravel(), steps.ravel(), ended.ravel()),
    "scalar": lambda loss, steps, ended: nres.Window((), 1.0, 1, False),
    "negative": lambda loss, steps, ended: nres.Window((), loss, -steps - 1, ended),
    "many": lambda loss, steps, ended: nres.Window((), loss, steps + 10**6, ended),
    "whole": lambda loss, steps, ended: nres.Window((), loss.astype(int), steps, ended),
    "text": lambda loss, steps, ended: nres.Window((), "loss", steps, ended),
    "nothing": lambda loss, steps, ended: nres.Window((), None, None, None),
    "ragged": lambda loss, steps, ended: nres.Window((), [[1.0], [1.0, 2.0]], steps, ended),
    "objects": lambda loss, steps, ended: nres.Window((), loss.astype(object), steps, ended),
    "complex": lambda loss, steps, ended: nres.Window((), loss * 1j, steps, ended),
    "ended": lambda loss, steps, ended: nres.Window((), loss, steps, "no"),
    "ended-shape": lambda loss, steps, ended: nres.Window((), loss, steps, ended[:1, :1]),
    "ended-whole": lambda loss, steps, ended: nres.Window((), loss, steps, ended.astype(int)),
    "half-steps": lambda loss, steps, ended: nres.Window((), loss, steps / 2, ended),
    "float-steps": lambda loss, steps, ended: nres.Window((), loss, steps.astype(float), ended),
    "nan": lambda loss, steps, ended: nres.Window((), loss * np.nan, steps, ended),
    "state": lambda loss, steps, ended: nres.Window(object(), loss, steps, ended),
    "lists": lambda loss, steps, ended: nres.Window(
        (), loss.tolist(), steps.tolist(), ended.tolist()
    ),
}


class FaultyPool:
    """A NumPy pool without a mistake, unless its `advance` is told to make one."""

    can_fork = True

    def __init__(self, mistake="good", horizon=12):
        self.mistake, self.horizon = mistake, horizon

    def check(self, theta):
        pass

    def fork(self, state, member):
        return state

    def advance(self, state, thetas, keys, start, window, length=None):
        lanes = jax.tree.leaves(thetas)[0].shape[:2]
        length = np.full(lanes[1], window) if length is None else np.asarray(length)
        loss, ended = np.ones(lanes), np.zeros(lanes, bool)
        steps = np.broadcast_to(length, lanes).copy()
        return WINDOWS[self.mistake](loss, steps, ended)
