"""Predicted variances: the theorem, smoothing, and the limits of derivatives."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nres
from helpers import THETA, Wave, quadratic, quadratic_theta, raises_naming, slow
from numpy_pool import NumpyPool
from reference import theorem

KEY = jax.random.key(8)
SYSTEM, PLACE = quadratic(12, 4), quadratic_theta(4)


# T, d, W and the periods: windows and periods that divide the horizon, and that do not.
CASES = [
    (12, 4, 1, (1, 2, 4, 5, 12)),
    slow(12, 4, 3, (3, 6, 9, 12)),
    (12, 4, 5, (5, 10, 12)),
    (7, 2, 2, (2, 4, 7)),
]


@pytest.mark.parametrize(("horizon", "d", "window", "periods"), CASES)
def test_prediction_is_the_theorem(horizon, d, window, periods):
    system, theta = quadratic(horizon, d), quadratic_theta(d)
    predicted = nres.variance.predict(system, theta, period=periods, window=window)
    expected = [theorem(system, theta, period, window) for period in periods]
    np.testing.assert_allclose(predicted.variance, expected, rtol=1e-4)
    np.testing.assert_allclose(predicted.nres, expected[-1], rtol=1e-4)
    gradient = np.asarray(system.exact_gradient(theta), np.float64)
    np.testing.assert_allclose(predicted.fulles, (d + 1) * gradient @ gradient, rtol=1e-4)
    # NRES is the least of them.
    assert all(predicted.nres <= v for v in predicted.variance)


def test_one_period_gives_a_number():
    one = nres.variance.predict(SYSTEM, PLACE, period=12, window=3)
    assert isinstance(one.variance, float)
    assert one.variance == one.nres


def opposed(seed):
    """Make a system in which the parameters act with the opposite sign every other step."""
    system = quadratic(12, 4, seed)
    changed = (-0.98 * jnp.eye(3), jnp.zeros_like(system.B), 0.01 * system.Q)
    return eqx.tree_at(lambda s: (s.A, s.B, s.Q), system, changed)


@pytest.mark.parametrize(
    ("system", "agree"),
    [(quadratic(12, 4, seed), True) for seed in range(3)]
    + [(opposed(seed), False) for seed in range(2)],
)
def test_nres_against_fulles(system, agree):
    """At equal compute, measurements agree with both formulas and the condition between them."""
    theta, window = quadratic_theta(4), 3
    predicted = nres.variance.predict(system, theta, period=12, window=window)
    assert (predicted.direction >= 1) == agree
    table = nres.variance.sweep(
        system, theta, KEY, sigmas=[0.5], windows=[window, 12], workers=[1, 4], samples=4096
    )
    (nres_row,) = table.where(window=window, workers=4).rows
    (full_row,) = table.where(window=12, workers=1).rows
    assert nres_row.method == "NRES"
    assert full_row.method == "FullES"
    assert nres_row.total_steps == full_row.total_steps
    assert nres_row.low < predicted.nres / 4 < nres_row.high
    assert full_row.low < predicted.fulles < full_row.high
    # The condition suffices; with d + 1 + W/T instead of d + 1 it would be exact.
    exact = predicted.direction * (4 + 1 + 1 / 4) / (4 + 1)
    assert (exact >= 1) == (predicted.nres / 4 <= predicted.fulles) == agree
    assert (nres_row.high < full_row.low) == agree


def test_smoothed_prediction():
    """Without derivatives, from pairs of samples: on the quadratic smoothing changes nothing."""
    periods = (2, 6, 12)
    result = nres.variance.predict(
        SYSTEM, PLACE, period=periods, window=2, key=KEY, episodes=12, sigma=0.5, samples=300
    )
    expected = nres.variance.predict(SYSTEM, PLACE, period=periods, window=2)
    assert np.abs((result.variance - expected.variance) / result.stderr).max() < 4
    assert np.abs(result.stderr / expected.variance).max() < 0.1
    np.testing.assert_allclose(result.fulles, expected.fulles, rtol=0.2)
    np.testing.assert_allclose(result.direction, expected.direction, rtol=0.2)
    np.testing.assert_allclose(result.linearity, 1, atol=0.1)
    assert expected.linearity == 1


@pytest.mark.slow
def test_randomness_of_the_system_counts():
    system = quadratic(6, 3, disturbance=1.5)
    theta = quadratic_theta(3)
    still = nres.variance.predict(quadratic(6, 3), theta, period=6, window=2).nres
    predicted = nres.variance.predict(system, theta, period=6, window=2, key=KEY, episodes=400)
    estimator = nres.NRES(system, window=2, workers=1, sigma=0.5)
    result = nres.variance.measure(estimator, theta, KEY, samples=4096)
    stderr = (result.interval[1] - result.interval[0]) / (2 * 1.96)
    assert abs(predicted.variance - result.variance) < 4 * np.hypot(stderr, predicted.stderr)
    assert result.variance > 1.2 * still


@pytest.mark.slow
def test_derivatives_predict_small_noise_and_no_other():
    """A chaotic trajectory bends within the reach of sigma = 0.04, and not within 1e-5."""
    system, theta = nres.systems.Lorenz(), jnp.array([3.3, 2.35])
    predicted = nres.variance.predict(system, theta, period=[500, 2000], window=100)
    table = nres.variance.sweep(
        system,
        theta,
        KEY,
        sigmas=[1e-5, 0.04],
        windows=[100],
        periods=[500, 2000],
        samples=2048,
        level=0.999,
    )
    for row, expected in zip(table.where(sigma=1e-5).rows, predicted.variance, strict=True):
        assert row.low < expected < row.high
    for row, expected in zip(table.where(sigma=0.04).rows, predicted.variance, strict=True):
        assert row.high < expected / 50
    smoothed = [
        nres.variance.predict(
            system, theta, period=2000, window=100, sigma=sigma, samples=200
        ).linearity
        for sigma in (1e-5, 0.04)
    ]
    assert smoothed[0] > 0.9
    assert smoothed[1] < 0.5


class Nested(nres.System):
    """Parameters of two leaves and of any precision; the loss is quadratic."""

    horizon: int = 6

    def init(self, theta, key):
        return theta["start"][0]

    def step(self, state, theta, t, key):
        state = 0.9 * state + theta["push"].sum()
        return state, 0.5 * state**2


@pytest.mark.parametrize(
    "dtype",
    [
        *map(slow, (jnp.float16, jnp.float32, jnp.bfloat16)),
    ],
)
def test_all_precisions_and_several_leaves(dtype):
    """Sums over parameters in half precision are taken in single precision."""
    theta = {"start": jnp.ones(1, dtype), "push": jnp.full((2, 2), 0.125, dtype)}
    predicted = nres.variance.predict(Nested(), theta, period=[2, 6], window=2)
    smoothed = nres.variance.predict(
        Nested(), theta, period=[2, 6], window=2, key=KEY, sigma=0.5, samples=256, episodes=4
    )
    np.testing.assert_allclose(smoothed.variance, predicted.variance, rtol=0.25)
    estimator = nres.NRES(Nested(), window=2, workers=1, sigma=0.5)
    result = nres.variance.measure(estimator, theta, KEY, samples=4096)
    assert jax.tree.structure(result.mean) == jax.tree.structure(theta)
    np.testing.assert_allclose(result.variance, predicted.nres, rtol=0.15)


@pytest.mark.slow
def test_settings_of_a_sweep_are_not_compiled_in(compilations):
    def run(**changed):
        settings = {"sigmas": [0.5], "windows": [3], "periods": [6], "samples": 64} | changed
        nres.variance.sweep(SYSTEM, PLACE, KEY, **settings)
        sigma = settings["sigmas"][0]
        nres.variance.predict(SYSTEM, PLACE, period=12, window=3, sigma=sigma, samples=16, key=KEY)

    run()
    compilations.clear()
    run(sigmas=[0.3])
    run(periods=[3, 9, 12])
    run(sigmas=[0.7], workers=[5])
    assert not compilations


def test_black_boxes_cannot_be_differentiated():
    with raises_naming(TypeError, "NumpyPool", "sigma"):
        nres.variance.predict(NumpyPool(Wave()), THETA[Wave], period=10, window=5)
