"""The estimators that differentiate: exact gradients, memory, explosions, and refused input."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import nres
from helpers import (
    THETA,
    Faller,
    Wave,
    Well,
    assert_same,
    gradients,
    plain_loss,
    raises_naming,
    slow,
    slow_except,
    state_at_step_0,
)
from nres.estimators.backprop import even_segment
from numpy_pool import NumpyPool
from reference import truncated_gradient
from table import DIFFERENTIATING

KEY = jax.random.key(11)
QUADRATIC = nres.systems.Quadratic.random(jax.random.key(5), horizon=6, states=2, parameters=3)
POINT = jnp.array([0.3, -0.5, 0.8])
WELL = jnp.array([0.7, -0.4])


@pytest.mark.parametrize(
    ("system", "theta"), [(Wave(), THETA[Wave]), slow(Faller(), THETA[Faller]), slow(Well(), WELL)]
)
def test_bptt_is_the_gradient_of_the_plain_loop(system, theta, x64):
    theta = theta.astype(jnp.float64)
    estimator = nres.BPTT(system, workers=2)
    state = state_at_step_0(estimator, theta, KEY)
    estimate = estimator.estimate(theta, state)
    keys = state.workers.episode_keys()

    def loss(theta):
        return (plain_loss(system, theta, keys[0]) + plain_loss(system, theta, keys[1])) / 2

    np.testing.assert_allclose(estimate.grad, jax.grad(loss)(theta), rtol=1e-12)
    np.testing.assert_allclose(estimate.loss, loss(theta), rtol=1e-12)
    h = 1e-6
    differences = [(loss(theta + h * e) - loss(theta - h * e)) / (2 * h) for e in jnp.eye(2)]
    np.testing.assert_allclose(estimate.grad, jnp.stack(differences), rtol=1e-7)


def test_the_exact_gradient_of_the_quadratic():
    estimator = nres.BPTT(QUADRATIC)
    estimate = estimator.estimate(POINT, state_at_step_0(estimator, POINT, KEY))
    np.testing.assert_allclose(estimate.grad, QUADRATIC.exact_gradient(POINT), rtol=1e-5)
    assert estimate.steps == (6, 6)


@pytest.mark.parametrize("segment", [1, 3, 4])
@pytest.mark.slow
@pytest.mark.parametrize("system", [Wave(), Faller()])
def test_checkpointing_changes_no_gradient(system, segment):
    theta = THETA[type(system)]
    plain = nres.BPTT(system, workers=3, checkpoint_every=10)
    checkpointed = nres.BPTT(system, workers=3, checkpoint_every=segment)
    state = state_at_step_0(plain, theta, KEY)
    results = [estimator.estimate(theta, state) for estimator in (plain, checkpointed)]
    assert_same(results[0].grad, results[1].grad, rtol=1e-6)
    assert results[0].steps == results[1].steps
    windowed = nres.TBPTT(system, window=4, workers=3, checkpoint_every=segment)
    plain_windowed = nres.TBPTT(system, window=4, workers=3)
    assert_same(gradients(plain_windowed, theta, 4), gradients(windowed, theta, 4), rtol=1e-6)


def test_segments_divide_the_horizon_where_they_can():
    assert [even_segment(t) for t in (1, 2, 100, 2000, 10_000)] == [1, 1, 10, 40, 100]
    for horizon in range(1, 500):
        segment = even_segment(horizon)
        assert horizon**0.5 / 2 - 1 <= segment <= 2 * horizon**0.5 + 1
        near = range(max(1, int(horizon**0.5) // 2), int(horizon**0.5) + 1)
        assert -horizon % segment <= min(-horizon % other for other in near)


@pytest.mark.slow
def test_memory_of_bptt_grows_with_the_root_of_the_horizon():
    def temporary_bytes(horizon, **options):
        estimator = nres.BPTT(Wave(horizon), **options)
        state = state_at_step_0(estimator, THETA[Wave], KEY)
        run = jax.jit(lambda theta, state: estimator.estimate(theta, state).grad)
        plan = run.lower(THETA[Wave], state).compile().memory_analysis()
        return plan.temp_size_in_bytes

    needed = temporary_bytes(40_000)
    assert needed < 8 * temporary_bytes(1_600)
    assert needed < temporary_bytes(40_000, checkpoint_every=40_000) / 20


def test_tbptt_over_whole_episodes_is_bptt():
    whole, truncated = nres.BPTT(Wave(), workers=3), nres.TBPTT(Wave(), window=10, workers=3)
    assert_same(gradients(whole, THETA[Wave], 3), gradients(truncated, THETA[Wave], 3), rtol=1e-6)


@pytest.mark.parametrize("window", [2, 3])
def test_tbptt_sees_its_window_alone(window):
    """The mean over all windows of an episode: applications before the window do not count."""
    windows = 6 // window
    estimator = nres.TBPTT(QUADRATIC, window=window, workers=1)
    draws = gradients(estimator, POINT, windows)
    expected = truncated_gradient(QUADRATIC, POINT, window)
    np.testing.assert_allclose(draws.mean(axis=0), expected, rtol=1e-5)


class Exploding(nres.System):
    """A system with finite losses, whose derivatives overflow from a certain step on."""

    horizon: int = 12
    quiet: int = 0

    def init(self, theta, key):
        return theta

    def step(self, state, theta, t, key):
        factor = jnp.where(t < self.quiet, 1.0, 1e15)
        return jnp.sin(factor * state + theta), jnp.sum(state)


@pytest.mark.parametrize("name", [slow("TBPTT"), "DODGE", slow("UORO")])
def test_an_explosion_ends_with_its_episode(name):
    theta, estimator = jnp.array([0.1, 0.2]), DIFFERENTIATING[name](Exploding(quiet=8))
    state = state_at_step_0(estimator, theta, KEY)
    for _ in range(7):
        estimate = estimator.estimate(theta, state)
        state = estimate.state
        finite = np.isfinite(estimate.info.contribution_norm)
        np.testing.assert_array_equal(finite, estimate.info.window_start < 8)


def test_masks_do_not_multiply_memory():
    """Backpropagation keeps masks, not a copy of theta for every step that may be masked."""

    class Large(nres.System):
        horizon: int = 100

        def init(self, theta, key):
            return jnp.zeros(())

        def step(self, state, theta, t, key):
            state = jnp.tanh(state + jnp.sum(theta))
            return state, state**2, state > 2

    theta = jnp.ones(10_000)
    estimator = nres.BPTT(Large(), checkpoint_every=100)
    state = state_at_step_0(estimator, theta, KEY)
    run = jax.jit(lambda theta, state: estimator.estimate(theta, state).grad)
    plan = run.lower(theta, state).compile().memory_analysis()
    assert plan.temp_size_in_bytes < 40 * theta.nbytes


every_method = pytest.mark.parametrize("make", DIFFERENTIATING.values(), ids=DIFFERENTIATING)


@every_method
def test_black_boxes_are_refused(make):
    with raises_naming(TypeError, "NumpyPool", "nres.NRES(pool"):
        make(NumpyPool(Wave()))


@pytest.mark.parametrize("make", slow_except({"TBPTT", "DODGE"}, DIFFERENTIATING))
def test_an_exploding_gradient_is_reported(make):
    theta = jnp.array([0.1, 0.2])
    with pytest.warns(nres.NonFiniteWarning, match=r"worker \d"):
        result = nres.train(make(Exploding()), optax.sgd(0.1), theta, updates=4, key=KEY)
    assert np.isfinite(result.theta).all()
    assert result.history.nonfinite.sum() > 0
    with pytest.raises(nres.NonFiniteError, match=r"worker \d"):
        nres.train(make(Exploding(), nonfinite="raise"), optax.sgd(0.1), theta, updates=4, key=KEY)


class Ledge(nres.System):
    """A system that ends at the edge of its square root; later steps have no derivative."""

    horizon: int = 10

    def init(self, theta, key):
        return theta[0]

    def step(self, state, theta, t, key):
        state = jnp.sqrt(1.0 - state**2) - 0.5 * theta[1]
        state = jnp.where(t == 4, 1.5 + 0 * state, state)
        return state, (state - 0.2) ** 2, jnp.abs(state) > 1


@pytest.mark.parametrize("make", slow_except({"BPTT", "UORO"}, DIFFERENTIATING))
def test_steps_after_an_early_end_do_not_matter(make):
    theta = jnp.array([0.3, 0.4])
    estimator = make(Ledge())
    state = state_at_step_0(estimator, theta, KEY)
    for _ in range(4):
        estimate = estimator.estimate(theta, state)
        state = estimate.state
        assert int(estimate.info.nonfinite) == 0
        assert np.isfinite(estimate.grad).all()


def test_bad_settings_are_refused():
    with raises_naming(ValueError, "checkpoint_every", 10, 11):
        nres.BPTT(Wave(), checkpoint_every=11)
    with raises_naming(ValueError, "period", 6, "window", 4):
        nres.DODGE(Wave(), window=4, workers=1, period=6)
    with raises_naming(ValueError, "window", 11, "horizon", 10):
        nres.UORO(Wave(), window=11, workers=1)
    with raises_naming(ValueError, "workers", 0):
        nres.TBPTT(Wave(), window=2, workers=0)
