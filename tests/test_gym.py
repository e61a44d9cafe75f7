"""Environments of gymnasium: early ends, processes, snapshots, and faults."""

import copy
import functools
import os
import signal
import time

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import nres
from environments import KEY, BadEnv, CliffEnv, Stumbling, estimate
from helpers import as_users_run, raises_naming, slow, z_scores
from nres.pools import GymPool, PoolError
from reference import cliff_gradient, cliff_loss

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*out of date.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*settotalmass.*"),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "options", "shared"),
    [
        (nres.NRES, {"window": 1}, True),
        (nres.NRES, {"window": 3}, True),
        (nres.PES, {"window": 2}, False),
        (nres.GPES, {"window": 1, "period": 2}, False),
    ],
)
@pytest.mark.usefixtures("unchecked_types")
def test_unbiased_where_the_length_of_an_episode_depends_on_theta(method, options, shared):
    sigma, theta = 0.3, 0.55
    pool = GymPool(CliffEnv, horizon=4)
    estimator = method(pool, workers=100, sigma=sigma, **options)
    at = jnp.full((1, 1), theta)
    draws = []
    for seed in range(20):
        result = estimator.estimate(at, estimator.init(at, jax.random.key(seed)))
        draws.append(np.ravel(result.grad))
    assert np.abs(z_scores(draws, [cliff_gradient(theta, sigma, shared)])).max() < 4


def test_ending_both_members_with_the_first_is_biased():
    """Ending a pair with its + member is biased; the absorbing rule is not."""
    sigma, theta = 0.3, 0.55
    epsilon = np.random.default_rng(0).normal(0, sigma, 400_000)

    def loss(perturbed, ended_with=None):
        total, x, ended = np.zeros_like(perturbed), 0.0 * perturbed, np.zeros(perturbed.shape, bool)
        record = []
        for t in range(4):
            over = ended if ended_with is None else ended | ended_with[t]
            x = np.where(over, x, x + perturbed)
            total += np.where(over, 1.5, (x - 1.0) ** 2)
            ended = over | (x > 1.2)
            record.append(over)
        return total / 4, record

    plus, over = loss(theta + epsilon)
    absorbed, _ = loss(theta - epsilon)
    np.testing.assert_allclose(plus[:100], cliff_loss(*[theta + epsilon[:100]] * 2))
    cut, _ = loss(theta - epsilon, over)
    exact = cliff_gradient(theta, sigma, True)
    right = (plus - absorbed) * epsilon / (2 * sigma**2)
    wrong = (plus - cut) * epsilon / (2 * sigma**2)
    assert abs(z_scores(right, exact)) < 4
    assert abs(z_scores(wrong, exact)) > 20


@pytest.mark.slow
def test_processes_change_nothing_and_ignore_ctrl_c():
    here = GymPool("CartPole-v1", "linear", horizon=30, variance=1.0)
    there = GymPool("CartPole-v1", "linear", horizon=30, variance=1.0, processes=2)
    theta = here.initial_theta(KEY)
    one, two = estimate(here, theta), estimate(there, theta)
    np.testing.assert_array_equal(one[0], two[0])
    assert one[1].steps == two[1].steps
    # Ctrl-C is for the main process alone.
    estimator = nres.NRES(there, workers=4, window=15, sigma=0.1)
    state = estimator.init(theta, KEY)
    os.kill(there._hosts[0].process.pid, signal.SIGINT)
    time.sleep(0.1)
    estimator.estimate(theta, state)
    there.close()


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked_types")
def test_training_with_discrete_actions():
    pool = GymPool("CartPole-v1", "linear", horizon=200)
    theta = pool.initial_theta(KEY)
    estimator = nres.NRES(pool, workers=20, window=40, sigma=0.3)
    with as_users_run():
        before = pool.metrics(theta, KEY)["return"]
        result = nres.train(estimator, optax.adam(0.1), theta, updates=15, key=KEY)
        after = pool.metrics(result.theta, KEY)["return"]
    assert before < 30
    assert after > 80


@pytest.mark.filterwarnings("ignore:.*settotalmass.*")
@pytest.mark.parametrize(
    "name", ["CartPole-v1", "Pendulum-v1", "Hopper-v5", slow("Acrobot-v1"), slow("Reacher-v5")]
)
def test_snapshots_are_found_and_continued_exactly(name):
    pool = GymPool(name, "linear", horizon=30, variance=1.0, clip=True)
    theta = pool.initial_theta(KEY)
    estimator = nres.NRES(pool, workers=2, window=10, sigma=0.1)
    old = estimator.init(theta, KEY)
    first = estimator.estimate(theta, old)
    then = estimator.estimate(theta, first.state)
    pool.close()
    again = estimator.estimate(theta, old)
    np.testing.assert_array_equal(again.grad, first.grad)
    np.testing.assert_array_equal(estimator.estimate(theta, again.state).grad, then.grad)


class Shaken(CliffEnv):
    """A `Cliff` that the wind shakes in every step."""

    def step(self, action):
        return super().step(action + 0.1 * self.np_random.standard_normal(1))

    def reset(self, *, seed=None, options=None):
        gymnasium.Env.reset(self, seed=seed)
        return super().reset()


class Framed(Shaken):
    """A `Shaken` whose state is a matrix."""

    def get_state(self):
        return super().get_state().reshape(1, -1)

    def set_state(self, state):
        (row,) = state
        super().set_state(row)


def limited():
    return gymnasium.wrappers.TimeLimit(Framed(), 15)


@pytest.mark.parametrize("make", [Shaken, Framed, limited])
def test_snapshots_contain_the_random_generator(make):
    pool = GymPool(make, horizon=30)
    theta = np.zeros((2, 3, *np.shape(pool.initial_theta(KEY))))
    keys, start = np.arange(6, dtype=np.uint32).reshape(3, 2), np.zeros(3, np.int32)
    old = pool.advance(None, theta, keys, start, 10).state
    then = pool.advance(old, theta, keys, start + 10, 10)
    again = copy.copy(pool).advance(old, theta, keys, start + 10, 10)
    np.testing.assert_array_equal(then.loss, again.loss)
    # Members of a pair share every random number.
    np.testing.assert_array_equal(then.loss[0], then.loss[1])


@pytest.mark.parametrize("make", [functools.partial(gymnasium.make, "Reacher-v5"), CliffEnv])
@pytest.mark.parametrize(
    ("wrapper", "argument"),
    [(gymnasium.wrappers.DelayObservation, 12), (gymnasium.wrappers.StickyAction, 0.25)],
)
def test_wrappers_that_remember_more_than_numbers_have_no_snapshots(make, wrapper, argument):
    assert not GymPool(lambda: wrapper(make(), argument), horizon=30).can_fork


@pytest.mark.usefixtures("unchecked_types")
def test_every_lane_needs_an_environment_of_its_own():
    env = gymnasium.make("CartPole-v1")
    with raises_naming(TypeError, "env", "TimeLimit", "function"):
        GymPool(env)
    pool = GymPool(lambda: env, horizon=30)
    with raises_naming(ValueError, "same environment"):
        nres.evaluate(pool, pool.initial_theta(KEY), KEY, episodes=2)


def test_environments_without_snapshots():
    class Deep(CliffEnv):
        """An environment that nobody knows may have a state anywhere."""

        get_state = property()

    pool = GymPool(Deep, horizon=30)
    assert not pool.can_fork
    with raises_naming(ValueError, "GymPool"):
        nres.TES(pool, workers=2, window=10, sigma=0.1)
    estimator = nres.NRES(pool, workers=2, window=10, sigma=0.1)
    theta = pool.initial_theta(KEY)
    old = estimator.init(theta, KEY)
    new = estimator.estimate(theta, old).state
    with raises_naming(PoolError, "Deep"):
        estimator.estimate(theta, old)
    estimator.estimate(theta, new)


@pytest.mark.parametrize(
    ("fault", "processes", "culprits"),
    [
        ("raise", 0, ["RuntimeError", "out of fuel"]),
        slow("raise", 1, ["RuntimeError", "out of fuel"]),
        ("reward", 0, ["reward", "nan"]),
        ("observation", 0, ["observation"]),
        ("shape", 0, ["observation", 3, 1]),
    ],
)
def test_an_environment_that_goes_wrong_is_named(fault, processes, culprits):
    pool = GymPool(functools.partial(BadEnv, fault), horizon=4, processes=processes)
    estimator = nres.NRES(pool, workers=2, window=4, sigma=0.1)
    theta = pool.initial_theta(KEY)
    with raises_naming(PoolError, "worker 0, member 0, seed", "step 1", *culprits):
        estimator.estimate(theta, estimator.init(theta, KEY))
    pool.close()


def test_a_state_can_be_tried_again_after_a_failure():
    pool = GymPool(Stumbling, horizon=20)
    thetas, keys = np.zeros((1, 2, 1, 1)), np.array([[0, 1], [0, 2]], np.uint32)
    state = pool.advance(None, thetas, keys, np.zeros(2, int), 1).state
    with raises_naming(PoolError, "stumbled"):
        pool.advance(state, thetas, keys, np.ones(2, int), 3)
    window = pool.advance(state, thetas, keys, np.ones(2, int), 3)
    np.testing.assert_array_equal(-window.loss, [[2 + 3 + 4] * 2])
    # A lane that waits keeps the state it was given, wherever its environment is.
    waiting = pool.advance(state, thetas, keys, np.ones(2, int), 2, np.array([2, 0]))
    np.testing.assert_array_equal(waiting.state["snapshot"][0, :, 0], [3, 1])


@pytest.mark.slow
def test_a_process_that_dies_is_reported():
    pool = GymPool(functools.partial(BadEnv, "die"), horizon=4, processes=1)
    estimator = nres.NRES(pool, workers=2, window=4, sigma=0.1)
    theta = pool.initial_theta(KEY)
    with raises_naming(PoolError, "exit code 3"):
        estimator.estimate(theta, estimator.init(theta, KEY))
    pool.close()
