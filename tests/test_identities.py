"""Exact relations between estimators, given the same keys."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nres
from helpers import (
    THETA,
    Faller,
    Spiral,
    Wave,
    assert_same,
    gradients,
    slow,
    spiral_theta,
    state_at_step_0,
)
from nres import execution

KEY = jax.random.key(11)


def test_pes_is_gpes_with_the_window_as_period():
    common = {"workers": 4, "window": 3, "sigma": 0.2}
    gpes = nres.GPES(Wave(), period=3, **common)
    pes = nres.PES(Wave(), **common)
    assert_same(gradients(pes, THETA[Wave], 6), gradients(gpes, THETA[Wave], 6))


def test_nres_is_gpes_with_the_horizon_as_period():
    common = {"workers": 4, "window": 3, "sigma": 0.2}
    gpes = nres.GPES(Wave(), period=12, **common)
    reuse = nres.NRES(Wave(), **common)
    # GPES divides noise by sigma² before it is weighed, NRES afterwards.
    assert_same(gradients(reuse, THETA[Wave], 6), gradients(gpes, THETA[Wave], 6), rtol=1e-6)


def test_nres_over_whole_episodes_is_full_es():
    nres_ = nres.NRES(Wave(), workers=4, window=10, sigma=0.2)
    full = nres.FullES(Wave(), workers=4, sigma=0.2)
    assert_same(gradients(nres_, THETA[Wave], 3), gradients(full, THETA[Wave], 3))


@pytest.mark.parametrize("window", [slow(2), 3])
@pytest.mark.parametrize("kind", [Wave, Faller])
def test_episode_average_of_nres_is_full_es(kind, window):
    theta, windows = THETA[kind], -(-10 // window)
    online = nres.NRES(kind(), workers=1, window=window, sigma=0.2)
    offline = nres.FullES(kind(), workers=1, sigma=0.2)
    state, full_state = (state_at_step_0(e, theta, KEY) for e in (online, offline))
    total = jnp.zeros_like(theta)
    for _ in range(windows):
        estimate = online.estimate(theta, state)
        total, state = total + estimate.grad, estimate.state
    expected = offline.estimate(theta, full_state).grad
    np.testing.assert_allclose(total / windows, expected, rtol=1e-5)


METHODS = {
    "FullES": (nres.FullES, {}),
    "NRES": (nres.NRES, {"window": 3}),
    "PES": (nres.PES, {"window": 3}),
    "GPES": (nres.GPES, {"window": 3, "period": 6}),
    "TES": (nres.TES, {"window": 3}),
}


@pytest.mark.parametrize("name", ["NRES", "GPES", slow("FullES"), slow("PES"), slow("TES")])
def test_regenerated_noise_is_kept_noise(name):
    method, arguments = METHODS[name]
    make = lambda store: method(  # noqa: E731
        Wave(), workers=4, sigma=0.2, store_noise=store, **arguments
    )
    kept = gradients(make(True), THETA[Wave], 5)
    # The same noise; but compilers may round sigma * normal + theta once or twice.
    assert_same(kept, gradients(make(False), THETA[Wave], 5), rtol=3e-6)


def test_only_what_is_needed_is_carried():
    theta = spiral_theta()
    carry = {}
    for store in (True, False):
        for name, (method, arguments) in METHODS.items():
            estimator = method(Spiral(), workers=4, sigma=0.2, store_noise=store, **arguments)
            begin = functools.partial(state_at_step_0, estimator)
            carry[name, store] = jax.eval_shape(begin, theta, KEY).carry
    assert carry["FullES", True] is None
    assert carry["NRES", True].noise.score is None
    assert carry["NRES", True].noise.epsilon is not None
    assert carry["NRES", False].noise.epsilon is None
    assert carry["NRES", False].noise.score is None
    assert carry["GPES", False].noise.epsilon is None
    assert carry["GPES", False].noise.score is not None
    assert carry["TES", True].noise.score is None


@pytest.mark.slow
@pytest.mark.parametrize("name", ["FullES", "GPES", "TES"])
def test_blocks_of_workers_change_nothing(name, monkeypatch):
    method, arguments = METHODS[name]
    make = lambda policy: method(  # noqa: E731
        Wave(), workers=5, sigma=0.2, nonfinite=policy, **arguments
    )
    whole = gradients(make("skip"), THETA[Wave], 5)
    monkeypatch.setitem(execution.BLOCK_ELEMENTS, "cpu", 4)  # two workers at a time, and one over
    # Another policy, so that it is compiled anew.
    assert_same(whole, gradients(make("raise"), THETA[Wave], 5), rtol=1e-6)
