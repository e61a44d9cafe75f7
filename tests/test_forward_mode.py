"""DODGE and UORO: relations with evolution strategies, pseudocode, means and variances."""

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
    Well,
    assert_same,
    gradients,
    plain_loss,
    raises_naming,
    samples,
    slow,
    slow_except,
    spiral_theta,
    state_at_step_0,
    z_scores,
)
from nres.noise import draw_signs

KEY = jax.random.key(11)
QUADRATIC = nres.systems.Quadratic.random(jax.random.key(5), horizon=6, states=2, parameters=3)
POINT = jnp.array([0.3, -0.5, 0.8])
WELL = jnp.array([0.7, -0.4])


PERIODS = [slow(None, nres.NRES, {}), slow(4, nres.GPES, {"period": 4}), (2, nres.PES, {})]


@pytest.mark.parametrize(("period", "method", "arguments"), PERIODS)
def test_dodge_is_the_evolution_strategy_where_losses_are_quadratic(period, method, arguments):
    """Antithetic differences of a quadratic are derivatives, whatever the noise."""
    dodge = nres.DODGE(QUADRATIC, window=2, workers=4, period=period)
    strategy = method(QUADRATIC, window=2, workers=4, sigma=0.5, **arguments)
    assert_same(gradients(strategy, POINT, 5), gradients(dodge, POINT, 5), rtol=1e-4)


@pytest.mark.parametrize("system", [Wave(), slow(Faller())])
def test_dodge_is_nres_with_little_noise(system, x64):
    theta = THETA[type(system)].astype(jnp.float64)
    dodge = nres.DODGE(system, window=4, workers=4)
    strategy = nres.NRES(system, window=4, workers=4, sigma=1e-6)
    assert_same(gradients(strategy, theta, 5), gradients(dodge, theta, 5), rtol=1e-7)


SMOOTH = {
    "quadratic": (QUADRATIC, POINT, lambda: QUADRATIC.exact_gradient(POINT)),
    "well": (Well(), WELL, lambda: jax.grad(lambda t: plain_loss(Well(), t, KEY))(WELL)),
}


@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize(
    "make",
    slow_except(
        {"DODGE period", "UORO window 4"},
        {
            "DODGE": lambda s: nres.DODGE(s, window=2, workers=50),
            "DODGE period": lambda s: nres.DODGE(s, window=1, workers=50, period=4),
            "UORO window 1": lambda s: nres.UORO(s, window=1, workers=50),
            "UORO window 4": lambda s: nres.UORO(s, window=4, workers=50),
        },
    ),
)
def test_forward_mode_is_unbiased(make, name):
    system, theta, gradient = SMOOTH[name]
    z = z_scores(samples(make(system), theta), gradient())
    assert np.abs(z).max() < 4


@pytest.mark.slow
def test_variance_of_dodge_is_what_the_theorem_says_of_nres():
    """Theorem 4 with W = 1, and K = T, where its last term is zero."""
    g = np.asarray(QUADRATIC.application_gradients(POINT)).sum(axis=1)  # by loss step
    d, horizon = POINT.size, QUADRATIC.horizon
    predicted = (d + 2) / horizon * (g**2).sum() - (g.mean(axis=0) ** 2).sum()
    for estimator in (
        nres.DODGE(QUADRATIC, window=1, workers=50_000),
        nres.NRES(QUADRATIC, window=1, workers=50_000, sigma=0.5),
    ):
        estimate = estimator.estimate(POINT, estimator.init(POINT, KEY))
        squares = np.asarray(estimate.info.contribution_norm, np.float64) ** 2
        measured = squares.mean() - (np.asarray(estimate.grad) ** 2).sum()
        stderr = squares.std() / np.sqrt(len(squares))
        assert abs(measured - predicted) < 4 * stderr


@pytest.mark.slow
def test_uoro_with_a_state_of_several_types_and_with_none():
    class Counter(nres.System):
        """A state without any real number: only the loss itself depends on theta."""

        horizon: int = 4

        def init(self, theta, key):
            return jnp.zeros((), jnp.int32)

        def step(self, state, theta, t, key):
            return state + 1, theta[0] * state.astype(theta.dtype)

    estimator = nres.UORO(Counter(), window=4, workers=2)
    theta = jnp.ones(1)
    estimate = estimator.estimate(theta, state_at_step_0(estimator, theta, KEY))
    np.testing.assert_allclose(estimate.grad, [1.5])

    estimator = nres.UORO(Spiral(), window=5, workers=3)
    theta = spiral_theta()
    state = state_at_step_0(estimator, theta, KEY)
    for _ in range(5):
        count = state.carry.pool[0].state["count"][0]
        np.testing.assert_array_equal(
            np.where(state.workers.start == 0, 0, count), state.workers.start
        )
        state = estimator.estimate(theta, state).state


@pytest.mark.parametrize("window", [3, slow(4)])
def test_uoro_is_its_pseudocode(window, x64):
    """Tallec and Ollivier's algorithm, a loop over steps with explicit Jacobians."""
    system, theta = Well(), WELL.astype(jnp.float64)
    estimator = nres.UORO(system, window=window, workers=1)
    state = state_at_step_0(estimator, theta, KEY)
    key, episode = state.workers.key, state.workers.episode

    def signs(number):
        drawn = draw_signs(key, episode * (system.horizon + 1) + number, jnp.zeros(2))
        return np.asarray(drawn)[0]

    def balanced(s, th):
        lengths = np.linalg.norm(s), np.linalg.norm(th)
        if 0 in lengths:
            return 0 * s, 0 * th
        ratio = np.sqrt(lengths[1] / lengths[0])
        return s * ratio, th / ratio

    t_as = functools.partial(jnp.asarray, dtype=jnp.int32)
    nu = signs(0)
    s, th = balanced(nu, nu @ np.asarray(jax.jacobian(system.init)(theta, KEY)))
    point = system.init(theta, KEY)
    for first in range(0, system.horizon, window):
        total = np.zeros(2)
        for t in range(first, min(first + window, system.horizon)):
            step = functools.partial(system.step, t=t_as(t), key=KEY)
            (by_state, loss_by_state), (by_theta, loss_by_theta) = (
                jax.jacobian(step, argnums=i)(point, theta) for i in (0, 1)
            )
            total += (np.asarray(loss_by_state) @ s) * th + np.asarray(loss_by_theta)
            nu = signs(t + 1)
            old = balanced(np.asarray(by_state) @ s, th)
            new = balanced(nu, nu @ np.asarray(by_theta))
            s, th = old[0] + new[0], old[1] + new[1]
            point, _ = step(point, theta)
        estimate = estimator.estimate(theta, state)
        state = estimate.state
        windows = -(-system.horizon // window)
        np.testing.assert_allclose(estimate.grad, total * windows / system.horizon, rtol=1e-10)


def test_complex_states_are_refused_by_uoro():
    class Phase(nres.System):
        horizon: int = 4

        def init(self, theta, key):
            return jax.lax.complex(theta[0], theta[0])

        def step(self, state, theta, t, key):
            return state * state, state.real

    with raises_naming(ValueError, "UORO"):
        nres.UORO(Phase(), window=2, workers=1).init(jnp.ones(1), KEY)


def test_uoro_without_any_influence_is_zero_not_nan():
    class Deaf(nres.System):
        horizon: int = 4

        def init(self, theta, key):
            return jnp.zeros(2)

        def step(self, state, theta, t, key):
            return 0 * state, jnp.sum(state)

    estimator = nres.UORO(Deaf(), window=2, workers=3)
    estimate = estimator.estimate(POINT, state_at_step_0(estimator, POINT, KEY))
    np.testing.assert_array_equal(estimate.grad, 0)
    assert int(estimate.info.nonfinite) == 0
