"""Starting points that are spread evenly over the windows of an episode."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nres
from helpers import quadratic, quadratic_theta, raises_naming, samples, z_scores
from nres.workers import spread_evenly

KEY = jax.random.key(3)


class Ramp(nres.System):
    """A loss whose slope grows during the episode: windows differ in their mean gradients."""

    horizon: int = 6

    def init(self, theta, key):
        return jnp.zeros(())

    def step(self, state, theta, t, key):
        return state, (t.astype(float) + 1.0) * theta[0]


@pytest.mark.parametrize(
    ("workers", "windows"), [(12, 4), (10, 4), (3, 10), (7, 7), (1, 5), (5, 1), (9, 2)]
)
def test_windows_have_equally_many_workers(workers, windows):
    counts = np.bincount(spread_evenly(KEY, workers, windows), minlength=windows)
    assert counts.max() - counts.min() <= 1
    if workers < windows:
        places = np.sort(np.flatnonzero(counts))
        gaps = np.diff([*places, places[0] + windows])
        assert gaps.max() - gaps.min() <= 1


def test_each_worker_is_at_a_uniformly_random_window():
    draws = jax.vmap(lambda key: spread_evenly(key, 5, 3))(jax.random.split(KEY, 3000))
    for window in range(3):
        assert np.abs(z_scores(np.asarray(draws) == window, 1 / 3)).max() < 4


def test_unbiased():
    system, theta = quadratic(4, 3), quadratic_theta(3)
    estimator = nres.PES(system, workers=5, window=1, sigma=0.5)
    z = z_scores(samples(estimator, theta, updates=2), system.exact_gradient(theta))
    assert np.abs(z).max() < 4


def test_the_variance_between_windows_is_gone():
    theta, found = jnp.zeros(1), {}
    for phases in ("even", "independent"):
        estimator = nres.TBPTT(Ramp(), workers=6, window=1, phases=phases)
        found[phases] = nres.variance.measure(estimator, theta, KEY, samples=1200, together=True)
    slopes = np.arange(1.0, 7.0)
    low, high = found["independent"].interval
    assert low < slopes.var() / 6 < high
    np.testing.assert_allclose(found["even"].variance, 0, atol=1e-6)
    np.testing.assert_allclose(found["even"].mean, slopes.mean(), rtol=1e-6)


def test_other_words_are_refused():
    with raises_naming(ValueError, "phases", "even", "independent", "'odd'"):
        nres.NRES(Ramp(), workers=2, window=2, sigma=0.1, phases="odd")
