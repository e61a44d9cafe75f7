"""Bad input is refused before anything runs, by an error that names the culprit."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import nres
from helpers import THETA, Wave, raises_naming
from nres.pools.jax import as_pool
from numpy_pool import NumpyPool

GOOD = {"workers": 3, "window": 5, "sigma": 0.1}
KEY = jax.random.key(0)


@pytest.mark.parametrize(
    "change",
    [
        {"window": 11},
        {"window": 0},
        {"workers": 0},
        {"sigma": 0.0},
        {"sigma": -1.0},
        {"sigma": float("nan")},
        {"nonfinite": "ignore"},
    ],
    ids=str,
)
def test_settings_out_of_range_are_refused(change):
    ((name, value),) = change.items()
    with raises_naming(ValueError, name, value):
        nres.NRES(Wave(), **(GOOD | change))


def test_period_must_be_a_multiple_of_the_window():
    for period in (0, 7):
        with raises_naming(ValueError, "period", period):
            nres.GPES(Wave(), period=period, **GOOD)


def test_objects_that_are_not_systems_are_refused():
    with raises_naming(TypeError, "function"):
        as_pool(lambda x: x)
    with raises_naming(TypeError, "Wave"):
        as_pool(Wave)
    with raises_naming(TypeError, "NumpyPool"):
        nres.JaxPool(NumpyPool(Wave()))
    with raises_naming(ValueError, "horizon", 0):
        nres.NRES(Wave(0), **GOOD)
    with raises_naming(ValueError, "unroll", 0):
        nres.JaxPool(Wave(), unroll=0)


def test_tes_needs_a_pool_that_can_copy_states():
    pool = NumpyPool(Wave())
    pool.can_fork = False
    with raises_naming(ValueError, "NumpyPool"):
        nres.TES(pool, **GOOD)


@pytest.mark.parametrize(
    ("theta", "culprits"),
    [
        ({}, ["theta"]),
        (jnp.array([1, 2]), ["theta", "int32"]),
        ({"a": jnp.ones(2), "b": jnp.array([True])}, ["theta['b']", "bool"]),
        ({"a": jnp.zeros((0, 2))}, ["theta['a']"]),
        ({"a": "text"}, ["theta['a']", "str"]),
    ],
)
def test_bad_theta_is_refused(theta, culprits):
    with raises_naming(ValueError, *culprits):
        nres.NRES(Wave(), **GOOD).init(theta, KEY)


def test_theta_must_have_the_structure_it_had_at_init():
    estimator = nres.NRES(Wave(), **GOOD)
    state = estimator.init(THETA[Wave], KEY)
    for other in ((THETA[Wave],), jnp.ones(3), np.ones(2, np.float16)):
        with raises_naming(ValueError, "theta"):
            estimator.estimate(other, state)


def test_a_state_of_another_estimator_is_refused():
    state = nres.NRES(Wave(), **GOOD).init(THETA[Wave], KEY)
    for other in (
        nres.NRES(Wave(), **(GOOD | {"workers": 4})),
        nres.NRES(Wave(), **(GOOD | {"window": 2})),
        nres.NRES(Wave(20), **GOOD),
        nres.PES(Wave(), **GOOD),
    ):
        with raises_naming(ValueError, "NRES(workers=3, window=5, horizon=10"):
            other.estimate(THETA[Wave], state)


def test_bad_keys_are_refused():
    with raises_naming(TypeError, "key"):
        nres.NRES(Wave(), **GOOD).init(THETA[Wave], 0)
    with raises_naming(TypeError, "key"):
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
    ("mistake", "culprits"),
    [
        ("loss shape", ["loss", "(2,)"]),
        ("loss dtype", ["loss", "int32"]),
        ("structure", ["state"]),
        ("shape", ["state['x']", "float32[2]", "float32[2, 2]"]),
        ("dtype", ["state['n']", "int32[]", "float32[]"]),
        ("result", ["(state, loss)"]),
        ("ended", ["(2,)"]),
    ],
)
def test_mistakes_in_a_step_are_named(mistake, culprits):
    with raises_naming(ValueError, "Broken.step", *culprits):
        nres.NRES(Broken(mistake), **GOOD).init(jnp.ones(2), KEY)


def test_a_state_may_start_from_python_numbers():
    estimator = nres.NRES(Broken(), **GOOD)
    estimator.estimate(jnp.ones(2), estimator.init(jnp.ones(2), KEY))


def test_bad_arguments_of_train_and_evaluate_are_refused():
    estimator, theta = nres.NRES(Wave(), **GOOD), THETA[Wave]
    for arguments, culprits in [
        ({"updates": -1, "key": KEY}, ["updates", -1]),
        ({"updates": 1, "key": KEY, "eval_every": 0}, ["eval_every", 0]),
        ({"updates": 1}, ["key"]),
    ]:
        with raises_naming(ValueError, *culprits):
            nres.train(estimator, optax.sgd(0.1), theta, **arguments)
    with raises_naming(ValueError, "episodes", 0):
        nres.evaluate(Wave(), theta, KEY, episodes=0)
    with raises_naming(ValueError, "sigma", -0.1):
        nres.evaluate(Wave(), theta, KEY, sigma=-0.1)


def test_a_pool_that_returns_the_wrong_shape_is_refused():
    class Flat(NumpyPool):
        def advance(self, *arguments):
            window = super().advance(*arguments)
            return nres.Window(window.state, window.loss[:1], window.steps[:1])

    estimator = nres.NRES(Flat(Wave()), **GOOD)
    with raises_naming(ValueError, "Flat.advance", (2, 3)):
        estimator.estimate(THETA[Wave], estimator.init(THETA[Wave], jax.random.key(6)))
