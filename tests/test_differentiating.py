"""The estimators that differentiate: exact gradients, exact relations, means and variances."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import nres
from helpers import THETA, Faller, Spiral, Wave, spiral_theta, z_scores
from nres.estimators.backprop import even_segment
from nres.noise import draw_signs
from numpy_pool import NumpyPool
from table import DIFFERENTIATING
from test_identities import assert_same, gradients
from test_unbiased import samples, truncated_gradient

KEY = jax.random.key(11)
QUADRATIC = nres.systems.Quadratic.random(jax.random.key(5), horizon=6, states=2, parameters=3)
POINT = jnp.array([0.3, -0.5, 0.8])


def plain_loss(system, theta, key):
    """The mean loss of one episode, by a Python loop over steps."""
    state = system.init(theta, jax.random.fold_in(key, 0))
    total = 0.0
    for t in range(system.horizon):
        step_key = jax.random.fold_in(key, t + 1)
        state, loss, *end = system.step(state, theta, jnp.asarray(t), step_key)
        total += loss
        if end and end[0]:
            return (total + system.absorbing_loss * (system.horizon - t - 1)) / system.horizon
    return total / system.horizon


class Well(nres.System):
    """A smooth non-linear system without chance, whose initial state depends on theta."""

    horizon: int = 6

    def init(self, theta, key):
        return jnp.stack([jnp.sin(theta[0]), theta[1] ** 2])

    def step(self, state, theta, t, key):
        x, y = state
        x, y = x + 0.3 * y, jnp.tanh(y - 0.5 * jnp.sin(x) + 0.4 * theta[1] * x)
        return jnp.stack([x, y]), (x - theta[0]) ** 2 + 0.5 * y**2


WELL = jnp.array([0.7, -0.4])


@pytest.mark.parametrize(
    ("system", "theta"), [(Wave(), THETA[Wave]), (Faller(), THETA[Faller]), (Well(), WELL)]
)
def test_bptt_is_the_gradient_of_the_plain_loop(system, theta, x64):
    theta = theta.astype(jnp.float64)
    estimator = nres.BPTT(system, workers=2)
    state = estimator.init(theta, KEY)
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
    estimate = estimator.estimate(POINT, estimator.init(POINT, KEY))
    np.testing.assert_allclose(estimate.grad, QUADRATIC.exact_gradient(POINT), rtol=1e-5)
    assert estimate.steps == (6, 6)


@pytest.mark.parametrize("segment", [1, 3, 4])
@pytest.mark.parametrize("system", [Wave(), Faller()])
def test_checkpointed_is_plain(system, segment):
    theta = THETA[type(system)]
    plain = nres.BPTT(system, workers=3, checkpoint_every=10)
    checkpointed = nres.BPTT(system, workers=3, checkpoint_every=segment)
    results = [e.estimate(theta, e.init(theta, KEY)) for e in (plain, checkpointed)]
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


def test_memory_of_bptt_grows_with_the_root_of_the_horizon():
    def temporary_bytes(horizon, **options):
        estimator = nres.BPTT(Wave(horizon), **options)
        state = estimator.init(THETA[Wave], KEY)
        run = jax.jit(lambda theta, state: estimator.estimate(theta, state).grad)
        plan = run.lower(THETA[Wave], state).compile().memory_analysis()
        return plan.temp_size_in_bytes

    assert temporary_bytes(40_000) < 8 * temporary_bytes(1_600)
    assert temporary_bytes(40_000) < temporary_bytes(40_000, checkpoint_every=40_000) / 20


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


PERIODS = [(None, nres.NRES, {}), (4, nres.GPES, {"period": 4}), (2, nres.PES, {})]


@pytest.mark.parametrize(("period", "method", "arguments"), PERIODS)
def test_dodge_is_the_evolution_strategy_where_losses_are_quadratic(period, method, arguments):
    """Antithetic differences of a quadratic are derivatives, whatever the noise."""
    dodge = nres.DODGE(QUADRATIC, window=2, workers=4, period=period)
    strategy = method(QUADRATIC, window=2, workers=4, sigma=0.5, **arguments)
    assert_same(gradients(strategy, POINT, 5), gradients(dodge, POINT, 5), rtol=1e-4)


@pytest.mark.parametrize("system", [Wave(), Faller()])
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
    [
        lambda s: nres.DODGE(s, window=2, workers=50),
        lambda s: nres.DODGE(s, window=1, workers=50, period=4),
        lambda s: nres.UORO(s, window=1, workers=50),
        lambda s: nres.UORO(s, window=4, workers=50),
    ],
    ids=["DODGE", "DODGE period", "UORO window 1", "UORO window 4"],
)
def test_forward_mode_is_unbiased(make, name):
    system, theta, gradient = SMOOTH[name]
    z = z_scores(samples(make(system), theta), gradient())
    assert np.abs(z).max() < 4


def test_variance_of_dodge_is_what_the_theorem_says_of_nres():
    """[thm:variance] with W = 1, and K = T, where its last term is zero."""
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
    estimate = estimator.estimate(theta, estimator.init(theta, KEY))
    np.testing.assert_allclose(estimate.grad, [1.5])

    estimator = nres.UORO(Spiral(), window=5, workers=3)
    theta = spiral_theta()
    state = estimator.init(theta, KEY)
    for _ in range(5):
        count = state.carry.pool[0].state["count"][0]
        np.testing.assert_array_equal(
            np.where(state.workers.start == 0, 0, count), state.workers.start
        )
        state = estimator.estimate(theta, state).state


@pytest.mark.parametrize("window", [3, 4])
def test_uoro_is_its_pseudocode(window, x64):
    """Tallec and Ollivier's algorithm, a loop over steps with explicit Jacobians."""
    system, theta = Well(), WELL.astype(jnp.float64)
    estimator = nres.UORO(system, window=window, workers=1)
    state = estimator.init(theta, KEY)
    while state.workers.start[0] > 0:
        state = estimator.estimate(theta, state).state
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


class Exploding(nres.System):
    """Finite losses with derivatives that overflow from a certain step on."""

    horizon: int = 12
    quiet: int = 0

    def init(self, theta, key):
        return theta

    def step(self, state, theta, t, key):
        factor = jnp.where(t < self.quiet, 1.0, 1e15)
        return jnp.sin(factor * state + theta), jnp.sum(state)


@pytest.mark.parametrize("name", ["TBPTT", "DODGE", "UORO"])
def test_an_explosion_ends_with_its_episode(name):
    theta, estimator = jnp.array([0.1, 0.2]), DIFFERENTIATING[name](Exploding(quiet=8))
    state = estimator.init(theta, KEY)
    for _ in range(7):
        estimate = estimator.estimate(theta, state)
        state = estimate.state
        finite = np.isfinite(estimate.info.contribution_norm)
        np.testing.assert_array_equal(finite, estimate.info.window_start < 8)


def test_complex_states_are_refused_by_uoro():
    class Phase(nres.System):
        horizon: int = 4

        def init(self, theta, key):
            return jax.lax.complex(theta[0], theta[0])

        def step(self, state, theta, t, key):
            return state * state, state.real

    with pytest.raises(ValueError, match="UORO needs real states"):
        nres.UORO(Phase(), window=2, workers=1).init(jnp.ones(1), KEY)


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
    state = estimator.init(theta, KEY)
    run = jax.jit(lambda theta, state: estimator.estimate(theta, state).grad)
    plan = run.lower(theta, state).compile().memory_analysis()
    assert plan.temp_size_in_bytes < 40 * theta.nbytes


def test_uoro_without_any_influence_is_zero_not_nan():
    class Deaf(nres.System):
        horizon: int = 4

        def init(self, theta, key):
            return jnp.zeros(2)

        def step(self, state, theta, t, key):
            return 0 * state, jnp.sum(state)

    estimator = nres.UORO(Deaf(), window=2, workers=3)
    estimate = estimator.estimate(POINT, estimator.init(POINT, KEY))
    np.testing.assert_array_equal(estimate.grad, 0)
    assert int(estimate.info.nonfinite) == 0


every_method = pytest.mark.parametrize("make", DIFFERENTIATING.values(), ids=DIFFERENTIATING)


@every_method
def test_black_boxes_are_refused(make):
    with pytest.raises(TypeError, match=r"NumpyPool is a black box.*nres\.NRES\(pool"):
        make(NumpyPool(Wave()))


@every_method
def test_an_exploding_gradient_is_reported(make):
    theta = jnp.array([0.1, 0.2])
    with pytest.warns(nres.NonFiniteWarning, match="non-finite loss or gradient"):
        result = nres.train(make(Exploding()), optax.sgd(0.1), theta, updates=4, key=KEY)
    assert np.isfinite(result.theta).all()
    assert result.history.nonfinite.sum() > 0
    with pytest.raises(nres.NonFiniteError, match=r"the first is worker \d"):
        nres.train(make(Exploding(), nonfinite="raise"), optax.sgd(0.1), theta, updates=4, key=KEY)


class Ledge(nres.System):
    """Ends where its square root does, so that a step beyond has no derivative."""

    horizon: int = 10

    def init(self, theta, key):
        return theta[0]

    def step(self, state, theta, t, key):
        state = jnp.sqrt(1.0 - state**2) - 0.5 * theta[1]
        state = jnp.where(t == 4, 1.5 + 0 * state, state)
        return state, (state - 0.2) ** 2, jnp.abs(state) > 1


@every_method
def test_what_lies_beyond_an_early_end_does_no_harm(make):
    theta = jnp.array([0.3, 0.4])
    estimator = make(Ledge())
    state = estimator.init(theta, KEY)
    for _ in range(4):
        estimate = estimator.estimate(theta, state)
        state = estimate.state
        assert int(estimate.info.nonfinite) == 0
        assert np.isfinite(estimate.grad).all()


def test_settings():
    with pytest.raises(ValueError, match="checkpoint_every must be from 1 to the window, 10 steps"):
        nres.BPTT(Wave(), checkpoint_every=11)
    with pytest.raises(ValueError, match="period must be a multiple of the window"):
        nres.DODGE(Wave(), window=4, workers=1, period=6)
    with pytest.raises(ValueError, match="at most the horizon"):
        nres.UORO(Wave(), window=11, workers=1)
    with pytest.raises(ValueError, match="workers must be at least 1"):
        nres.TBPTT(Wave(), window=2, workers=0)
