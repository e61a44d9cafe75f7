"""Advice from variances: windows, noise, the cost of hysteresis, and refused input."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import nres
from helpers import as_users_run, quadratic, quadratic_theta, raises_naming
from nres.variance import measured
from nres.variance.advice import candidate_windows

KEY = jax.random.key(8)
SYSTEM, PLACE = quadratic(12, 4), quadratic_theta(4)
FULL = nres.FullES(SYSTEM, workers=1, sigma=1.0)


def hysteretic_gradient(system, thetas, window):
    """Compute the mean of NRES if each of the last windows used other parameters, newest last."""
    g, windows = np.zeros(thetas.shape[1]), system.horizon // window
    A, B, C = (np.asarray(x, np.float64) for x in (system.A, system.B, system.C))
    for position in range(windows):
        path = thetas[len(thetas) - 1 - position :]
        state = np.asarray(system.start, np.float64) + C @ path[0]
        jacobian = C
        for t in range((position + 1) * window):
            state = A @ state + B @ path[t // window]
            jacobian = A @ jacobian + B
            if t >= position * window:
                slope = np.asarray(system.Q, np.float64) @ state + np.asarray(system.q)
                g += jacobian.T @ slope / system.horizon
    return g


@pytest.mark.slow
def test_hysteresis(monkeypatch):
    monkeypatch.setattr(measured, "BATCHES", 16)
    estimator = nres.NRES(SYSTEM, window=3, workers=20, sigma=0.1)
    with as_users_run():
        rows = nres.variance.hysteresis(
            estimator, optax.sgd, PLACE, KEY, rates=[0.0, 0.03], updates=6, samples=16384
        )
        # The same training again, by hand, for the parameters on the way.
        theta = PLACE
        state, path = estimator.init(theta, jax.random.split(KEY, 3)[0]), [theta]
        for _ in range(6):
            estimate = estimator.estimate(theta, state)
            theta, state = theta - 0.03 * estimate.grad, estimate.state
            path.append(theta)
    still, moving = rows
    assert still.drift == 0
    assert still.bias < 3 * still.bias_stderr
    assert still.cosine > 0.99
    path = np.asarray(path, np.float64)
    np.testing.assert_allclose(moving.drift, np.linalg.norm(path[-1] - path[-5]), rtol=1e-3)
    expected = hysteretic_gradient(SYSTEM, path, 3)
    fresh = np.asarray(SYSTEM.exact_gradient(jnp.asarray(path[-1], jnp.float32)), np.float64)
    np.testing.assert_allclose(moving.fresh, fresh, atol=4 * moving.bias_stderr)
    np.testing.assert_allclose(moving.running, expected, atol=4 * moving.bias_stderr)
    bias = np.linalg.norm(expected - fresh)
    assert bias > 5 * moving.bias_stderr
    np.testing.assert_allclose(moving.bias, bias, atol=4 * moving.bias_stderr)
    np.testing.assert_allclose(moving.relative, bias / np.linalg.norm(fresh), rtol=0.3)


@pytest.mark.slow
def test_advice():
    """On a quadratic the loss bends with distance alone: the most noise sees the furthest."""
    fractions = []
    advice = nres.variance.advise(
        SYSTEM,
        PLACE,
        KEY,
        budget=(48_000, 1200),
        sigmas=(0.01, 0.1),
        samples=512,
        callback=fractions.append,
    )
    assert advice.method == "NRES"
    assert advice.workers == 20
    assert advice.sigma == 0.1
    assert advice.updates == (1200 - 12) // advice.window
    # The longest of the windows that come within a fifth of the best one.
    worth = {
        row.window: nres.variance.effective_updates(
            row, 1200, 12, advice.gains[0.1].relative_curvature
        )
        for row in advice.table.where(sigma=0.1, method="NRES").rows
    }
    good = [window for window, value in worth.items() if value >= 0.8 * max(worth.values())]
    assert advice.window == max(good)
    assert advice.effective_updates == worth[advice.window]
    assert len(worth) > len(good)
    assert {row.method for row in advice.table.rows} == {"NRES", "PES", "FullES"}
    assert any(reason.startswith("PES") for reason in advice.reasons)
    assert sorted(fractions) == fractions
    # What a step of length sigma does, by hand.
    gradient = advice.table.gradients[12, 0.1]
    moved = PLACE - jnp.asarray(0.1 * gradient / np.linalg.norm(gradient), jnp.float32)
    after = float(nres.evaluate(SYSTEM, moved, KEY).loss)
    gain = advice.gains[0.1]
    np.testing.assert_allclose(gain.after, after, rtol=0.02)
    # The Hessian is known here, and so is how much noise harms.
    hessian = np.asarray(jax.hessian(lambda th: nres.evaluate(SYSTEM, th, KEY).loss)(PLACE))
    exact = np.asarray(SYSTEM.exact_gradient(PLACE), np.float64)
    along = exact @ hessian @ exact / (exact @ exact)
    np.testing.assert_allclose(gain.relative_curvature, np.trace(hessian) / 4 / along, rtol=0.3)


def test_effective_updates():
    """Shorter windows are worth more, until the noise of an episode is what counts."""
    table = nres.variance.sweep(
        SYSTEM, PLACE, KEY, sigmas=[0.1], windows=[1, 3, 12], workers=[1, 10_000], samples=512
    )
    worth = {
        (row.window, row.workers): nres.variance.effective_updates(row, 1200, 12, 1.0)
        for row in table.rows
    }
    assert worth[1, 10_000] > 10 * worth[12, 10_000]
    assert worth[1, 10_000] > 0.9 * (1200 - 12)
    # An episode's estimates of one worker are as noisy as FullES, however they are cut.
    np.testing.assert_allclose(worth[1, 1], worth[12, 1], rtol=0.25)
    (full,) = table.where(window=12, workers=1).rows
    np.testing.assert_allclose(full.episode_variance, full.variance, rtol=1e-3)


@pytest.mark.parametrize(
    ("horizon", "base", "expected"),
    [(12, 1, [1, 2, 5, 10, 12]), (1000, 20, [20, 40, 100, 200, 400, 1000]), (1, 1, [1])],
)
def test_candidate_windows(horizon, base, expected):
    assert candidate_windows(horizon, base) == expected


class Flat(nres.System):
    """A system whose loss is zero everywhere."""

    horizon: int = 4

    def init(self, theta, key):
        return jnp.zeros(())

    def step(self, state, theta, t, key):
        return state, jnp.zeros(())


@pytest.mark.parametrize(
    ("call", "culprits"),
    [
        (lambda v: v.measure(FULL, PLACE, KEY, samples=7), ["samples", 7]),
        (lambda v: v.measure(FULL, PLACE, KEY, samples=8, level=95.0), ["level", 95.0]),
        (lambda v: v.predict(SYSTEM, PLACE, period=4, window=3), ["period", 4, "window", 3]),
        (lambda v: v.predict(SYSTEM, PLACE, period=12, window=13), ["window", 13, "horizon", 12]),
        (lambda v: v.predict(SYSTEM, PLACE, period=12, window=3, episodes=0), ["episodes", 0]),
        (lambda v: v.predict(SYSTEM, PLACE, period=12, window=3, sigma=-1.0), ["sigma", -1.0]),
        (lambda v: v.sweep(SYSTEM, PLACE, KEY, sigmas=[0.0], windows=[3]), ["sigma", 0.0]),
        (
            lambda v: v.sweep(SYSTEM, PLACE, KEY, sigmas=[0.1], windows=[3], periods=[4]),
            ["period", 4, "window", 3],
        ),
        (lambda v: v.sweep(SYSTEM, PLACE, KEY, sigmas=[0.1], windows=[0]), ["window", 0]),
        (lambda v: v.sweep(SYSTEM, PLACE, KEY, sigmas=[0.1], windows=[]), ["windows"]),
        (
            lambda v: v.sweep(SYSTEM, PLACE, KEY, sigmas=[0.1], windows=[3], periods=[0]),
            ["periods", 0],
        ),
        (lambda v: v.advise(SYSTEM, PLACE, KEY, budget=(1000, 100), sigmas=[]), ["sigmas"]),
        (lambda v: v.advise(SYSTEM, PLACE, KEY, budget=(100, 20)), ["budget", 20, 12]),
        (lambda v: v.advise(SYSTEM, PLACE, KEY, budget=(100, 60)), ["budget", 100]),
        (
            lambda v: v.advise(Flat(), PLACE, KEY, budget=(1000, 100), sigmas=[0.1], samples=16),
            ["sigma"],
        ),
        (lambda v: v.hysteresis(FULL, optax.sgd, PLACE, KEY, rates=[0.1]), ["FullES"]),
        (
            lambda v: v.hysteresis(
                nres.NRES(SYSTEM, window=3, workers=1, sigma=1.0),
                optax.sgd,
                PLACE,
                KEY,
                rates=[0.1],
                updates=3,
            ),
            ["updates", 4, 3],
        ),
    ],
)
def test_bad_input_is_refused(call, culprits):
    with raises_naming(ValueError, *culprits):
        call(nres.variance)
