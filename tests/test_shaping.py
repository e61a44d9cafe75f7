"""Loss differences as they are, scaled by their size, or as signs."""

import jax
import numpy as np
import pytest

import nres
from helpers import THETA, Faller, raises_naming
from numpy_pool import NumpyPool

KEY = jax.random.key(5)


def estimate(shaping, workers, method=nres.NRES, **options):
    options = {"window": 5, "sigma": 0.1, "shaping": shaping} | options
    estimator = method(NumpyPool(Faller()), workers=workers, **options)
    theta = THETA[Faller]
    return estimator.estimate(theta, estimator.init(theta, KEY))


@pytest.mark.parametrize(("method", "options"), [(nres.NRES, {}), (nres.GPES, {"period": 10})])
def test_scaled_estimates_are_divided_by_the_size_of_the_differences(method, options):
    plain, scaled = (estimate(shaping, 6, method, **options) for shaping in ("none", "scaled"))
    size = np.sqrt(plain.info.odd)
    np.testing.assert_allclose(scaled.grad * size, plain.grad, rtol=1e-5)
    np.testing.assert_array_equal(scaled.info.odd, plain.info.odd)
    np.testing.assert_allclose(scaled.info.snr, plain.info.snr, rtol=1e-3)
    np.testing.assert_allclose(scaled.info.variance * size**2, plain.info.variance, rtol=1e-3)


class Costly(NumpyPool):
    """A pool whose losses are so large that their squares are not."""

    def advance(self, *arguments):
        window = super().advance(*arguments)
        return nres.Window(window.state, window.loss * 1e21, window.steps)


def test_the_size_of_huge_differences_is_finite():
    found = []
    for pool in (NumpyPool, Costly):
        estimator = nres.NRES(pool(Faller()), workers=6, window=5, sigma=0.1, shaping="scaled")
        state = estimator.init(THETA[Faller], KEY)
        found.append(estimator.estimate(THETA[Faller], state).grad)
    assert np.any(found[0])
    np.testing.assert_allclose(found[1], found[0], rtol=1e-4)


def test_signs_count_the_same():
    """One pair's estimate, divided by its own difference, is that of its sign."""
    plain, signs = (estimate(shaping, 1) for shaping in ("none", "signs"))
    assert plain.info.odd > 0
    np.testing.assert_allclose(signs.grad * np.sqrt(plain.info.odd), plain.grad, rtol=1e-5)
    several = estimate("signs", 6)
    norms = np.asarray(several.info.contribution_norm)
    epsilon = norms * 0.1  # each contribution is ±ε/σ², where ε has the size σ √d
    assert 0.1 < epsilon.mean() / np.sqrt(THETA[Faller].size) < 3
    assert np.isnan(several.info.linear_share)


def test_other_words_are_refused():
    with raises_naming(ValueError, "shaping", "ranks", "signs"):
        estimate("ranks", 2)
