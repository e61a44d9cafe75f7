"""The mean of estimates: unbiased where it should be, biased where it must be.

A test draws many independent estimates at a fixed theta: a large pool of workers with fresh
histories, averaged in groups.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nres
from helpers import samples, slow, z_scores
from reference import cliff_gradient, truncated_gradient

SYSTEM = nres.systems.Quadratic.random(
    jax.random.key(5), horizon=6, states=2, parameters=3, disturbance=0.3
)
THETA = jnp.array([0.3, -0.5, 0.8])
WORKERS = 50


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        (nres.FullES, {}),
        slow(nres.NRES, {"window": 2}),
        (nres.NRES, {"window": 4}),
        (nres.PES, {"window": 1}),
        slow(nres.PES, {"window": 4}),
        slow(nres.GPES, {"window": 1, "period": 2}),
        (nres.GPES, {"window": 2, "period": 4}),
    ],
)
def test_unbiased_on_the_quadratic(method, arguments):
    estimator = method(SYSTEM, workers=WORKERS, sigma=0.5, **arguments)
    z = z_scores(samples(estimator, THETA), SYSTEM.exact_gradient(THETA))
    assert np.abs(z).max() < 4


def test_unbiased_after_workers_were_moved_apart():
    """`init` puts every worker into a window at random; one estimate is then unbiased."""
    estimator = nres.PES(SYSTEM, workers=WORKERS, window=4, sigma=0.5)
    z = z_scores(samples(estimator, THETA, updates=1), SYSTEM.exact_gradient(THETA))
    assert np.abs(z).max() < 4


@pytest.mark.slow
def test_unbiased_under_a_schedule_of_sigma():
    sigma = lambda update: jnp.array([0.2, 0.8, 0.2, 0.6])[update]  # noqa: E731
    for method, arguments in [
        (nres.NRES, {"window": 1}),
        (nres.GPES, {"window": 1, "period": 2}),
        (nres.PES, {"window": 4}),
    ]:
        estimator = method(SYSTEM, workers=WORKERS, sigma=sigma, **arguments)
        z = z_scores(samples(estimator, THETA, updates=4), SYSTEM.exact_gradient(THETA))
        assert np.abs(z).max() < 4


@pytest.mark.parametrize("window", [slow(2), 3])
def test_truncated_es_is_biased_towards_the_truncated_gradient(window):
    estimator = nres.TES(SYSTEM, workers=WORKERS, window=window, sigma=0.5)
    draws = samples(estimator, THETA)
    assert np.abs(z_scores(draws, SYSTEM.exact_gradient(THETA))).max() > 8
    assert np.abs(z_scores(draws, truncated_gradient(SYSTEM, THETA, window))).max() < 4


class Cliff(nres.System):
    """Two steps; falls off, at a cost, if the first goes too far. Small enough to integrate."""

    horizon: int = 4
    absorbing_loss: float = 1.5

    def init(self, theta, key):
        return jnp.zeros(())

    def step(self, state, theta, t, key):
        state = state + theta[0]
        return state, (state - 1.0) ** 2, state > 1.2


@pytest.mark.parametrize(
    ("method", "arguments", "shared"),
    [
        (nres.FullES, {}, True),
        slow(nres.NRES, {"window": 1}, True),
        (nres.NRES, {"window": 3}, True),
        slow(nres.PES, {"window": 2}, False),
        (nres.GPES, {"window": 1, "period": 2}, False),
    ],
)
def test_unbiased_when_members_end_early(method, arguments, shared):
    sigma, theta = 0.3, 0.55
    estimator = method(Cliff(), workers=WORKERS, sigma=sigma, **arguments)
    draws = samples(estimator, jnp.array([theta]))
    assert np.abs(z_scores(draws, [cliff_gradient(theta, sigma, shared)])).max() < 4
