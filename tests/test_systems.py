"""The systems that come with nres, and evaluation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nres
from helpers import THETA, Faller, Twin, Wave, state_at_step_0, z_scores
from nres.pools.jax import default_unroll
from numpy_pool import NumpyPool

KEY = jax.random.key(1)


def lorenz(theta, start, steps):
    """The z-coordinates of a trajectory, in double precision."""
    (x, y, z), (r, a), result = start, np.exp(np.asarray(theta, np.float64)), []
    for _ in range(steps):
        x, y, z = (
            x + a * (y - x) * 0.005,
            y + (x * (r - z) - y) * 0.005,
            z + (x * y - 8 / 3 * z) * 0.005,
        )
        result.append(z)
    return np.array(result)


def test_lorenz_follows_its_equations():
    system = nres.systems.Lorenz(horizon=300)  # later, chaos magnifies rounding
    truth = lorenz(np.log([28.0, 10.0]), (1.2, 1.3, 1.6), 300)
    np.testing.assert_allclose(system.observed, truth, rtol=1e-3)
    np.testing.assert_allclose(system.truth, np.log([28.0, 10.0]))
    theta = system.initial_theta()
    expected = np.mean((lorenz(theta, (1.2, 1.3, 1.6), 300) - truth) ** 2)
    np.testing.assert_allclose(nres.evaluate(system, theta, KEY).loss, expected, rtol=1e-3)
    assert nres.evaluate(system, jnp.asarray(system.truth), KEY).loss < 1e-6


def test_lorenz_test_loss_averages_over_initial_states():
    system = nres.systems.Lorenz(horizon=100)
    theta = system.initial_theta()
    starts = np.array([1.2, 1.3, 1.6]) + 0.1 * np.random.default_rng(0).normal(size=(2000, 3))
    losses = [
        np.mean((lorenz(theta, start, 100) - lorenz(system.truth, start, 100)) ** 2)
        for start in starts[:500]
    ]
    result = nres.evaluate(system.test_system(), theta, KEY, episodes=2000)
    difference = float(result.loss) - np.mean(losses)
    stderr = np.hypot(float(result.stderr), np.std(losses, ddof=1) / np.sqrt(500))
    assert abs(difference) < 4 * stderr
    np.testing.assert_allclose(system.test_loss(theta, KEY, episodes=2000), result.loss)
    assert system.test_loss(jnp.asarray(system.truth), KEY, episodes=10) < 1e-6


@pytest.mark.slow
def test_quadratic_gradients_are_those_of_automatic_differentiation(x64):
    system = nres.systems.Quadratic.random(KEY, horizon=5, states=3, parameters=2)
    theta = jnp.array([0.3, -0.7])

    def losses(thetas):
        """The loss of every step when step i applies the i-th parameters."""
        state, result = system.init(thetas[0], KEY), []
        for t in range(5):
            state, loss = system.step(state, thetas[t], jnp.asarray(t), KEY)
            result.append(loss)
        return jnp.stack(result)

    repeated = jnp.tile(theta, (5, 1))
    expected = jax.jacobian(losses)(repeated)
    np.testing.assert_allclose(system.application_gradients(theta), expected, atol=1e-12)
    mean = jax.grad(lambda th: losses(jnp.tile(th, (5, 1))).mean())(theta)
    np.testing.assert_allclose(system.exact_gradient(theta), mean, atol=1e-12)


@pytest.mark.parametrize("kind", [Wave, Faller])
def test_evaluation_runs_whole_episodes(kind):
    theta, twin = THETA[kind], Twin(kind())
    result = nres.evaluate(kind(), theta, KEY, episodes=4)
    host = nres.evaluate(NumpyPool(kind()), theta, KEY, episodes=4)
    np.testing.assert_allclose(result.losses, host.losses, rtol=1e-5)
    assert result.steps == host.steps
    keys = jax.vmap(lambda i: jax.random.fold_in(jax.random.split(KEY)[0], i))(jnp.arange(4))
    for key, loss in zip(np.asarray(jax.random.key_data(keys)), result.losses, strict=True):
        state, total, ended = twin.init(np.asarray(theta), key), 0.0, False
        for t in range(10):
            if ended:
                total += twin.absorbing_loss
            else:
                state, cost, ended = twin.step(state, np.asarray(theta), t, key)
                total += cost
        np.testing.assert_allclose(loss, total / 10, rtol=1e-5)
    np.testing.assert_allclose(result.loss, np.mean(result.losses), rtol=1e-6)


def test_smoothed_evaluation():
    system = nres.systems.Quadratic.random(KEY, horizon=4, states=2, parameters=3)
    theta, sigma = jnp.array([0.2, 0.4, -0.3]), 0.7
    result = nres.evaluate(system, theta, KEY, episodes=20_000, sigma=sigma)
    value = nres.evaluate(system, theta, KEY).loss
    hessian = jax.jacobian(system.exact_gradient)(theta)
    expected = value + 0.5 * sigma**2 * jnp.trace(hessian)
    assert abs(z_scores(result.losses, expected)) < 4


def test_unrolling_the_scan_changes_nothing():
    theta, results = THETA[Wave], []
    for unroll in (None, 3):
        pool = nres.JaxPool(Wave(), unroll=unroll)
        estimator = nres.NRES(pool, workers=3, window=5, sigma=0.1)
        results.append(estimator.estimate(theta, state_at_step_0(estimator, theta, KEY)).grad)
    np.testing.assert_allclose(*results, rtol=1e-4)


@pytest.mark.parametrize(
    ("backend", "step", "lanes", "expected"),
    [
        ("cpu", jnp.sin, 400, 2),
        ("gpu", jnp.sin, 400, 100),
        ("gpu", jnp.sin, 2**20, 25),
        ("gpu", jax.jit(lambda x: x * (x @ x)), 400, 4),
        ("gpu", lambda x: sum([x] * 2000) * (x @ x), 400, 1),
    ],
)
def test_steps_are_unrolled_as_far_as_it_pays(backend, step, lanes, expected, monkeypatch):
    """A matrix product is a kernel of its own, so unrolling it only takes time to compile."""
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    assert default_unroll(jax.make_jaxpr(step)(jnp.ones(3)), lanes, 100) == expected


class Watched(nres.System):
    """Reads a NumPy table, and would return nonsense for a step beyond the horizon."""

    table: np.ndarray
    horizon: int = 10

    def init(self, theta, key):
        return jnp.zeros(())

    def step(self, state, theta, t, key):
        beyond = (t < 0) | (t >= self.horizon)
        state = jnp.where(beyond, jnp.inf, jnp.maximum(state, t.astype(state.dtype)))
        return state, theta[0] * self.table[t]


def test_a_system_sees_its_own_steps_alone():
    estimator = nres.NRES(Watched(np.arange(10.0)), workers=6, window=4, sigma=0.1)
    theta = jnp.ones(1)
    state = estimator.init(theta, KEY)
    for _ in range(6):
        state = estimator.estimate(theta, state).state
        assert state.carry.pool.state.max() < 10


def test_a_pool_reports_steps_and_ends():
    pool = nres.JaxPool(Faller())
    keys, start = jax.random.split(KEY, 3), jnp.zeros(3, jnp.int32)
    thetas = jnp.stack([jnp.tile(jnp.array([x, 0.0]), (3, 1)) for x in (0.0, 1.5)])
    first = pool.advance(None, thetas, keys, start, 4)
    assert not first.state.ended[0].any()
    assert first.state.ended[1].all()
    np.testing.assert_array_equal(first.steps[0], 4)
    assert (first.steps[1] < 4).all()
    second = pool.advance(first.state, thetas, keys, start + 4, 4, jnp.array([4, 2, 0]))
    np.testing.assert_array_equal(second.steps[1], 0)
    np.testing.assert_allclose(second.loss[1], 0.7 * np.array([4, 2, 0]), rtol=1e-6)
    np.testing.assert_array_equal(second.steps[0], [4, 2, 0])
