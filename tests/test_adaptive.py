"""A sigma that adapts to the losses."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import nres
from helpers import (
    SETTINGS,
    Spiral,
    as_users_run,
    assert_same,
    create_run,
    raises_naming,
    slow,
    slow_except,
    spiral_theta,
)
from nres import runs
from nres.noise.adaptive import MEAN_DECAY
from nres.runs import SettingsError
from table import STRATEGIES

KEY = jax.random.key(6)
STEPS, WINDOW, SIGMA = 8, 2, {"a": 0.5, "b": 0.2}
THETA = {"a": jnp.array([0.3, -0.2]), "b": jnp.array(0.1)}


class Sums(nres.System):
    r"""The state adds up the parameters, and the loss is half its squared length plus t.

    With one noise per episode, its mean is $t + \frac12 t^2 (\theta^2 + \sum_j \sigma_j^2)$.
    """

    horizon: int = STEPS

    def init(self, theta, key):
        return jax.tree.map(jnp.zeros_like, theta)

    def step(self, state, theta, t, key):
        state = jax.tree.map(jnp.add, state, theta)
        squares = sum(jnp.sum(x**2) for x in jax.tree.leaves(state))
        return state, squares / 2 + t.astype(squares.dtype)


def _slopes(estimator, theta, key, updates):
    """Return the slopes by log sigma that the estimates of one run give."""

    def one(state, _):
        new = estimator.estimate(theta, state).state
        decayed = jax.tree.map(lambda m: MEAN_DECAY * m, state.adaptation.mean)
        slope = jax.tree.map(lambda m, d: (m - d) / (1 - MEAN_DECAY), new.adaptation.mean, decayed)
        return new, slope

    return jax.lax.scan(one, estimator.init(theta, key), length=updates)[1]


def _expected(make, sigma):
    """Return the slope of the smoothed loss by log sigma, in closed form."""
    t = np.arange(1, STEPS + 1)
    if make is nres.PES:  # noises of earlier windows weigh WINDOW steps each
        squares = WINDOW**2 * ((t - 1) // WINDOW) + ((t - 1) % WINDOW + 1) ** 2
    elif make is nres.TES:  # states before the window are not perturbed
        squares = ((t - 1) % WINDOW + 1) ** 2
    else:
        squares = t**2
    counts = {"a": 2, "b": 1}
    return {name: counts[name] * sigma[name] ** 2 * squares.mean() for name in counts}


@pytest.mark.parametrize(
    "law", slow_except({"Gaussian"}, {"Gaussian": nres.Gaussian(), "Orthogonal": nres.Orthogonal()})
)
@pytest.mark.parametrize(
    "make",
    slow_except(
        {"NRES"},
        {"NRES": nres.NRES, "PES": nres.PES, "TES": nres.TES, "FullES": nres.FullES},
    ),
)
def test_the_slope_is_unbiased(make, law):
    """Its mean over independent runs agrees with the closed form, for each element of sigma."""
    window = {} if make is nres.FullES else {"window": WINDOW}
    sigma = nres.AdaptiveSigma(SIGMA, rate=1e-9)
    estimator = make(Sums(), workers=60, sigma=sigma, noise=law, **window)
    keys = jax.random.split(KEY, 80)
    slopes = jax.jit(jax.vmap(lambda key: _slopes(estimator, THETA, key, 24)))(keys)
    # The first windows have no losses to compare with.
    means = jax.tree.map(lambda s: np.asarray(s)[:, 8:].mean(axis=1), slopes)
    for name, expected in _expected(make, SIGMA).items():
        found = means[name]
        error = found.std(ddof=1) / np.sqrt(len(found))
        assert abs(found.mean() - expected) < 4 * error
        assert error < 0.1 * expected  # else the test could not fail


def test_sigma_shrinks_on_a_bowl_and_stays_within_its_bounds():
    sigma = nres.AdaptiveSigma(0.5, rate=0.1, span=3)
    estimator = nres.NRES(Sums(), workers=40, window=WINDOW, sigma=sigma)
    theta = jax.tree.map(jnp.zeros_like, THETA)
    result = nres.train(estimator, optax.sgd(0.0), theta, updates=120, key=KEY)
    np.testing.assert_allclose(result.state.estimator.adaptation.sigma, 0.5 / 3, rtol=1e-5)
    recorded = result.history.diagnostics["sigma"]
    np.testing.assert_allclose(recorded[[0, -1]], [0.5, 0.5 / 3], rtol=1e-5)
    assert (np.diff(recorded) <= 1e-6).mean() > 0.9


class Hill(Sums):
    """The negative of `Sums`, on which more noise lowers the loss."""

    def step(self, state, theta, t, key):
        state, loss = super().step(state, theta, t, key)
        return state, -loss


@pytest.mark.slow
def test_sigma_grows_on_a_hill():
    sigma = nres.AdaptiveSigma(SIGMA, rate=0.1, span=2)
    estimator = nres.NRES(Hill(), workers=40, window=WINDOW, sigma=sigma)
    theta = jax.tree.map(jnp.zeros_like, THETA)
    result = nres.train(estimator, optax.sgd(0.0), theta, updates=120, key=KEY)
    found = result.state.estimator.adaptation.sigma
    assert_same(found, {"a": 1.0, "b": 0.4}, rtol=1e-5)


@pytest.mark.parametrize("stored", [slow(True), False])
@pytest.mark.parametrize("make", slow_except({"NRES"}, STRATEGIES))
def test_a_fixed_sigma_gives_the_same_gradients(make, stored):
    """With a rate close to zero, gradients are those of a number, also if noise is regenerated."""
    theta = spiral_theta()
    fixed = make(Spiral())
    adaptive = nres.AdaptiveSigma(fixed.sigma, rate=1e-12)
    here = dataclasses.replace(fixed, sigma=adaptive, store_noise=stored)
    a, b = fixed.init(theta, KEY), here.init(theta, KEY)
    for _ in range(4):
        first, second = fixed.estimate(theta, a), here.estimate(theta, b)
        assert_same(first.grad, second.grad, rtol=1e-5)
        a, b = first.state, second.state


def test_training_resumes_exactly():
    sigma = nres.AdaptiveSigma(SIGMA, rate=0.05)
    estimator = nres.NRES(Sums(), workers=6, window=WINDOW, sigma=sigma)
    optimizer = optax.sgd(1e-3)
    whole = nres.train(estimator, optimizer, THETA, updates=12, key=KEY)
    half = nres.train(estimator, optimizer, THETA, updates=5, key=KEY)
    rest = nres.train(estimator, optimizer, half.theta, updates=7, state=half.state)
    assert_same(rest.theta, whole.theta, rtol=0)
    assert_same(rest.state.estimator.adaptation, whole.state.estimator.adaptation, rtol=0)


def test_a_lost_window_leaves_sigma_as_it_is():
    class Lost(Sums):
        def step(self, state, theta, t, key):
            return state, jnp.nan * theta["b"]

    estimator = nres.NRES(
        Lost(), workers=4, window=WINDOW, sigma=nres.AdaptiveSigma(SIGMA, rate=0.5)
    )
    state = estimator.init(THETA, KEY)
    after = estimator.estimate(THETA, state).state
    assert_same(after.adaptation.sigma, state.adaptation.sigma, rtol=0)


@pytest.mark.parametrize(
    ("initial", "options", "culprits"),
    [
        (0.0, {}, ["sigma", "0"]),
        ({"a": 0.1, "b": -1}, {}, ["sigma['b']", "-1"]),
        (0.1, {"rate": 0.0}, ["rate", "0"]),
        (0.1, {"span": 0.5}, ["span", "0.5"]),
    ],
)
def test_other_values_are_refused(initial, options, culprits):
    with raises_naming(ValueError, *culprits):
        nres.AdaptiveSigma(initial, **options)


@pytest.mark.slow
def test_a_run_adapts_sigma_and_refuses_a_schedule(tmp_path):
    """A run that is extended ends with the same sigma as one that was not."""
    with as_users_run():
        whole = runs.execute(create_run(tmp_path / "whole", adapt_sigma=True, updates=24))
        runs.execute(create_run(tmp_path / "half", adapt_sigma=True, updates=10))
        half = runs.execute(runs.Run.open(tmp_path / "half"), updates=24)
    first, second = (x.result.state.estimator.adaptation for x in (whole, half))
    assert_same(first, second, rtol=0)
    assert abs(first.sigma / SETTINGS["sigma"] - 1) > 0.01
    with raises_naming(SettingsError, "0.1,5:0.05", "adapt_sigma"):
        create_run(tmp_path / "schedule", adapt_sigma=True, sigma="0.1,5:0.05")
