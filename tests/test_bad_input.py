"""Bad input is refused before anything runs, with words that say what to mend."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import nres
from helpers import THETA, Wave
from nres.pools.jax import as_pool
from numpy_pool import NumpyPool

GOOD = {"workers": 3, "window": 5, "sigma": 0.1}
KEY = jax.random.key(0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"window": 11}, "at most the horizon"),
        ({"window": 0}, "window must be at least 1"),
        ({"workers": 0}, "workers must be at least 1"),
        ({"sigma": 0.0}, "sigma must be positive"),
        ({"sigma": -1.0}, "sigma must be positive"),
        ({"sigma": float("nan")}, "sigma must be positive"),
        ({"nonfinite": "ignore"}, '"skip" or "raise"'),
    ],
)
def test_settings(change, words):
    with pytest.raises(ValueError, match=words):
        nres.NRES(Wave(), **(GOOD | change))


def test_period_must_be_a_multiple_of_the_window():
    for period in (0, 7):
        with pytest.raises(ValueError, match="period"):
            nres.GPES(Wave(), period=period, **GOOD)


def test_what_is_not_a_system():
    with pytest.raises(TypeError, match=r"nres\.Pool, got function"):
        as_pool(lambda x: x)
    with pytest.raises(TypeError, match=r"got the class Wave: write Wave\(\.\.\.\)"):
        as_pool(Wave)
    with pytest.raises(TypeError, match=r"needs an nres\.System"):
        nres.JaxPool(NumpyPool(Wave()))
    with pytest.raises(ValueError, match="horizon must be at least 1"):
        nres.NRES(Wave(0), **GOOD)
    with pytest.raises(ValueError, match="unroll must be at least 1"):
        nres.JaxPool(Wave(), unroll=0)


def test_tes_needs_a_pool_that_can_copy_states():
    pool = NumpyPool(Wave())
    pool.can_fork = False
    with pytest.raises(ValueError, match="NumpyPool cannot copy states"):
        nres.TES(pool, **GOOD)


@pytest.mark.parametrize(
    ("theta", "words"),
    [
        ({}, "no arrays"),
        (jnp.array([1, 2]), "theta must be a floating-point array, got dtype int32"),
        ({"a": jnp.ones(2), "b": jnp.array([True])}, r"theta\['b'\] must be a floating-point"),
        ({"a": jnp.zeros((0, 2))}, r"theta\['a'\] is empty"),
        ({"a": "text"}, r"theta\['a'\] must be a floating-point array, got str"),
    ],
)
def test_theta(theta, words):
    with pytest.raises(ValueError, match=words):
        nres.NRES(Wave(), **GOOD).init(theta, KEY)


def test_theta_of_another_structure_than_at_init():
    estimator = nres.NRES(Wave(), **GOOD)
    state = estimator.init(THETA[Wave], KEY)
    for other in ((THETA[Wave],), jnp.ones(3), np.ones(2, np.float16)):
        with pytest.raises(ValueError, match="theta or estimator differs"):
            estimator.estimate(other, state)


def test_a_state_of_another_estimator():
    state = nres.NRES(Wave(), **GOOD).init(THETA[Wave], KEY)
    for other in (
        nres.NRES(Wave(), **(GOOD | {"workers": 4})),
        nres.NRES(Wave(), **(GOOD | {"window": 2})),
        nres.NRES(Wave(20), **GOOD),
        nres.PES(Wave(), **GOOD),
    ):
        with pytest.raises(ValueError, match=r"instead of NRES\(workers=3, window=5, horizon=10"):
            other.estimate(THETA[Wave], state)


def test_keys():
    with pytest.raises(TypeError, match="one JAX random key"):
        nres.NRES(Wave(), **GOOD).init(THETA[Wave], 0)
    with pytest.raises(TypeError, match="one JAX random key"):
        nres.NRES(Wave(), **GOOD).init(THETA[Wave], jax.random.split(KEY))


class Broken(nres.System):
    """A system with one of several mistakes."""

    mistake: str = "none"
    horizon: int = 10

    def init(self, theta, key):
        return {"x": jnp.zeros(2), "n": 0}

    def step(self, state, theta, t, key):
        x, n = state["x"] + theta, state["n"] + 1
        loss = jnp.sum(x)
        match self.mistake:
            case "loss shape":
                loss = x
            case "loss dtype":
                loss = n
            case "structure":
                return {"x": x}, loss
            case "shape":
                x = jnp.stack([x, x])
            case "dtype":
                n = n.astype(jnp.float32)
            case "result":
                return {"x": x, "n": n}
            case "ended":
                return {"x": x, "n": n}, loss, x > 0
        return {"x": x, "n": n}, loss


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        ("loss shape", r"scalar floating-point loss, got shape \(2,\)"),
        ("loss dtype", r"scalar floating-point loss, got shape \(\) and dtype int32"),
        ("structure", "changes the structure of the state"),
        ("shape", r"changes state\['x'\]: init gives float32\[2\], step gives float32\[2, 2\]"),
        ("dtype", r"changes state\['n'\]: init gives int32\[\], step gives float32\[\]"),
        ("result", r"must return \(state, loss\) or"),
        ("ended", "scalar boolean as its third value"),
    ],
)
def test_mistakes_in_a_step(mistake, words):
    with pytest.raises(ValueError, match=f"Broken.step .*{words}"):
        nres.NRES(Broken(mistake), **GOOD).init(jnp.ones(2), KEY)


def test_a_state_may_start_from_python_numbers():
    estimator = nres.NRES(Broken(), **GOOD)
    estimator.estimate(jnp.ones(2), estimator.init(jnp.ones(2), KEY))


def test_training_and_evaluation():
    estimator, theta = nres.NRES(Wave(), **GOOD), THETA[Wave]
    for arguments, words in [
        ({"updates": -1, "key": KEY}, "updates must be at least 0"),
        ({"updates": 1, "key": KEY, "eval_every": 0}, "eval_every must be at least 1"),
        ({"updates": 1}, "needs a key"),
    ]:
        with pytest.raises(ValueError, match=words):
            nres.train(estimator, optax.sgd(0.1), theta, **arguments)
    with pytest.raises(ValueError, match="episodes must be at least 1"):
        nres.evaluate(Wave(), theta, KEY, episodes=0)
    with pytest.raises(ValueError, match="sigma must not be negative"):
        nres.evaluate(Wave(), theta, KEY, sigma=-0.1)


def test_a_pool_that_returns_the_wrong_shape():
    class Flat(NumpyPool):
        def advance(self, *arguments):
            window = super().advance(*arguments)
            return nres.Window(window.state, window.loss[:1], window.steps[:1])

    estimator = nres.NRES(Flat(Wave()), **GOOD)
    with pytest.raises(ValueError, match=r"Flat.advance must return .* shape \(2, 3\)"):
        estimator.estimate(THETA[Wave], estimator.init(THETA[Wave], jax.random.key(6)))
