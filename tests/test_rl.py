"""Reinforcement learning: tasks against gymnasium, pools against each other, and early ends."""

import functools
import os
import signal
import time

import gymnasium
import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import optax
import pytest

import nres
from helpers import as_users_run, z_scores
from nres import policies
from nres.pools import GymPool, MujocoPool, PoolError
from test_unbiased import cliff_gradient, cliff_loss

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*out of date.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*settotalmass.*"),
]
KEY = jax.random.key(3)
NAMES = {
    "swimmer": "Swimmer",
    "halfcheetah": "HalfCheetah",
    "hopper": "Hopper",
    "walker2d": "Walker2d",
    "ant": "Ant",
    "humanoid": "Humanoid",
}


class Script:
    """A policy that follows a script, the same for every lane."""

    def __init__(self, actions):
        self.actions, self.t = actions, 0

    def initial_theta(self, key):
        return jnp.zeros(1)

    def act(self, thetas, observations):
        return np.broadcast_to(self.actions[self.t], (len(observations), self.actions.shape[1]))


@pytest.fixture
def unchecked_types():
    """Skip type checks where small functions are called so often that checks take most time."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("task", NAMES)
@pytest.mark.usefixtures("unchecked_types")
def test_tasks_are_those_of_gymnasium(task, version):
    """1,000 steps, over several episodes where they end early; then the same from a snapshot."""
    env = gymnasium.make(f"{NAMES[task]}-v{version}", disable_env_checker=True).unwrapped
    scale = 0.3 if task in ("hopper", "walker2d") else 1.0
    actions = scale * np.random.default_rng(1).uniform(-1, 1, (1000, env.model.nu))
    script = Script(actions)
    pool = MujocoPool(task, script, version=version)
    assert pool.observations == env.observation_space.shape[0]
    thetas, episode, state, t = np.zeros((1, 1, 1)), 0, None, 0
    starts, steps = [], []  # of both, compared at the end: thousands of comparisons take seconds
    while script.t < 1000:
        seed = 100 + episode
        keys = np.array([[0, seed]], np.uint32)
        if t == 0:
            observation, _ = env.reset(seed=seed)
            state = pool.advance(state, thetas, keys, np.array([0]), 0).state
            starts.append((state["observation"][0, 0], observation))
        window = pool.advance(state, thetas, keys, np.array([t + 1]), 1)
        state = window.state
        observation, reward, terminated, _, _ = env.step(actions[script.t])
        ours = np.append(state["observation"][0, 0], [-window.loss[0, 0], state["ended"][0, 0]])
        steps.append((ours, np.append(observation, [reward, terminated])))
        t, script.t = t + 1, script.t + 1
        if terminated:
            episode, t = episode + 1, 0
    np.testing.assert_allclose(*map(np.stack, zip(*starts, strict=True)), rtol=1e-7, atol=1e-12)
    np.testing.assert_allclose(*map(np.stack, zip(*steps, strict=True)), rtol=1e-9, atol=1e-9)
    assert (episode > 0) == (task not in ("swimmer", "halfcheetah"))


def estimate(pool, theta, updates=3, method=nres.NRES, **options):
    estimator = method(pool, **({"workers": 4, "window": 15, "sigma": 0.1} | options))
    state, grads = estimator.init(theta, KEY), []
    for _ in range(updates):
        result = estimator.estimate(theta, state)
        state = result.state
        grads.append(np.concatenate([np.ravel(g) for g in jax.tree.leaves(result.grad)]))
    return np.stack(grads), result


@pytest.mark.parametrize("task", ["swimmer", "hopper"])
def test_threads_change_nothing(task):
    theta = MujocoPool(task, variance=1.0).initial_theta(KEY)
    one, two = (
        estimate(MujocoPool(task, variance=1.0, horizon=60, threads=n), theta)[0] for n in (1, 2)
    )
    assert one.tobytes() == two.tobytes()


@pytest.mark.parametrize(
    ("task", "options"),
    [
        ("swimmer", {}),
        ("hopper", {"window": 25}),
        ("hopper", {"method": nres.TES}),
        ("walker2d", {"method": nres.PES, "window": 20}),
    ],
)
def test_both_pools_give_the_same_gradients(task, options):
    """Windows that do not divide the horizon, and members that end early, included."""
    native = MujocoPool(task, "mlp:5", horizon=60)
    theta = native.initial_theta(KEY)
    general = GymPool(f"{NAMES[task]}-v4", "mlp:5", horizon=60)
    assert general.can_fork
    left, right = estimate(native, theta, **options), estimate(general, theta, **options)
    np.testing.assert_allclose(left[0], right[0], rtol=1e-4, atol=1e-6 * np.abs(left[0]).max())
    assert left[1].steps == right[1].steps
    if task != "swimmer":
        assert left[1].steps.total < 8 * options.get("window", 15)


@pytest.mark.parametrize("make", [MujocoPool, lambda *a, **k: GymPool("Hopper-v4", *a[1:], **k)])
def test_a_saved_state_is_continued_exactly(make):
    pool = make("hopper", "linear", horizon=60, variance=1.0)
    theta = pool.initial_theta(KEY)
    estimator = nres.NRES(pool, workers=4, window=15, sigma=0.1)
    saved = estimator.estimate(theta, estimator.init(theta, KEY)).state
    copy = jax.tree.map(lambda x: x.copy() if isinstance(x, np.ndarray) else x, saved)
    first = [r := estimator.estimate(theta, saved), estimator.estimate(theta, r.state)]
    other = make("hopper", "linear", horizon=60, variance=1.0)  # nothing in it yet
    again = nres.NRES(other, workers=4, window=15, sigma=0.1)
    second = [r := again.estimate(theta, copy), again.estimate(theta, r.state)]
    for one, two in zip(first, second, strict=True):
        assert np.asarray(one.grad).tobytes() == np.asarray(two.grad).tobytes()


def test_a_simulation_that_blows_up_is_left_out():
    pool = MujocoPool("halfcheetah", horizon=20)
    theta = pool.initial_theta(KEY)
    estimator = nres.NRES(pool, workers=3, window=10, sigma=0.1)
    state = estimator.init(theta, KEY)
    rows = state.carry.pool["rows"]
    rows[0, 1, 1:10] = np.nan  # one position is enough
    starts = np.asarray(state.workers.start)
    result = estimator.estimate(theta, state)
    assert np.isfinite(result.grad).all()
    assert int(result.info.nonfinite) == (starts[1] > 0)


def test_every_blow_up_is_noticed():
    """MuJoCo starts a lane over and counts it once; a forked lane may blow up again."""
    pool = MujocoPool("halfcheetah", horizon=40)
    thetas = np.zeros((2, 1, 6, 17))
    keys, state = np.array([[0, 1]], np.uint32), None
    state = pool.advance(None, thetas, keys, np.array([0]), 5).state
    for start in (5, 10, 15):
        state["rows"][0, 0, 1:10] = np.nan
        window = pool.advance(state, thetas, keys, np.array([start]), 5)
        assert np.isnan(window.loss[0, 0])
        assert np.isfinite(window.loss[1, 0])
        state = pool.fork(window.state, 1)


class CliffEnv(gymnasium.Env):
    """`Cliff` of the tests of unbiasedness, as an environment: its length depends on theta."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float64)

    def reset(self, *, seed=None, options=None):
        self.x = 0.0
        return np.ones(1), {}

    def step(self, action):
        self.x += float(action[0])
        ended = self.x > 1.2
        # Ended steps cost 1.5 there and nothing here: so every step that is taken gains 1.5.
        return np.ones(1), 1.5 - (self.x - 1.0) ** 2, ended, False, {}

    def get_state(self):
        return np.array([self.x])

    def set_state(self, state):
        (self.x,) = state


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
    """What others do: the pair is over when its + member is. Not so the absorbing rule."""
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


def test_environments_without_snapshots():
    pool = GymPool("CartPole-v1", horizon=30)
    assert not pool.can_fork
    with pytest.raises(ValueError, match="GymPool cannot copy states"):
        nres.TES(pool, workers=2, window=10, sigma=0.1)
    estimator = nres.NRES(pool, workers=2, window=10, sigma=0.1)
    theta = pool.initial_theta(KEY)
    old = estimator.init(theta, KEY)
    new = estimator.estimate(theta, old).state
    with pytest.raises(PoolError, match="CartPole-v1 offers no snapshots"):
        estimator.estimate(theta, old)
    estimator.estimate(theta, new)


class BadEnv(CliffEnv):
    """Goes wrong at its second step, in the episode with the largest seed."""

    def __init__(self, fault="raise"):
        self.fault = fault

    def reset(self, *, seed=None, options=None):
        self.seed, self.t = seed, 0
        return super().reset(seed=seed)

    def step(self, action):
        self.t += 1
        observation, reward, *rest = super().step(0 * action)
        if self.t == 2:
            match self.fault:
                case "raise":
                    raise RuntimeError("out of fuel")
                case "reward":
                    reward = np.nan
                case "observation":
                    observation = np.array([np.inf])
                case "shape":
                    observation = np.ones(3)
                case "die":
                    os._exit(3)
        return observation, reward, *rest


@pytest.mark.parametrize(
    ("fault", "processes", "words"),
    [
        ("raise", 0, "RuntimeError: out of fuel"),
        pytest.param("raise", 1, "RuntimeError: out of fuel", marks=pytest.mark.slow),
        ("reward", 0, "the reward is nan"),
        ("observation", 0, "the observation is not finite"),
        ("shape", 0, "3 numbers, its space 1"),
    ],
)
def test_an_environment_that_goes_wrong_is_named(fault, processes, words):
    pool = GymPool(functools.partial(BadEnv, fault), horizon=4, processes=processes)
    estimator = nres.NRES(pool, workers=2, window=4, sigma=0.1)
    theta = pool.initial_theta(KEY)
    with pytest.raises(PoolError, match=rf"lane 0 \(worker 0, member 0, seed \d+, step 1.*{words}"):
        estimator.estimate(theta, estimator.init(theta, KEY))
    pool.close()


class Stumbling(CliffEnv):
    """Raises once, in its third step."""

    stumbled = False

    def step(self, action):
        if self.x > 1.9 and not Stumbling.stumbled:
            Stumbling.stumbled = True
            raise RuntimeError("stumbled")
        self.x += 1
        return np.ones(1), self.x, False, False, {}


def test_a_state_can_be_tried_again_after_a_failure():
    pool = GymPool(Stumbling, horizon=20)
    thetas, keys = np.zeros((1, 2, 1, 1)), np.array([[0, 1], [0, 2]], np.uint32)
    state = pool.advance(None, thetas, keys, np.zeros(2, int), 1).state
    with pytest.raises(PoolError, match="stumbled"):
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
    with pytest.raises(PoolError, match="has died, with exit code 3"):
        estimator.estimate(theta, estimator.init(theta, KEY))
    pool.close()


def test_policies():
    rng = np.random.default_rng(0)
    observations = rng.normal(size=(5, 17))
    linear, mlp = policies.Linear(17, 6), policies.MLP((17, 30, 6))
    assert linear.initial_theta(KEY).shape == (6, 17)
    assert not linear.initial_theta(KEY).any()
    theta = mlp.initial_theta(KEY)
    assert sum(x.size for x in jax.tree.leaves(theta)) == 726
    lanes = jax.tree.map(lambda x: rng.normal(size=(5, *x.shape)), theta)

    def apply(theta, observation):
        x = jnp.tanh(theta[0]["weight"] @ observation + theta[0]["bias"])
        return theta[1]["weight"] @ x + theta[1]["bias"]

    compiled = policies.Function(apply, mlp.initial_theta)
    np.testing.assert_allclose(
        mlp.act(lanes, observations), compiled.act(lanes, observations), rtol=1e-4, atol=1e-4
    )
    drawn = policies.Linear(400, 100, variance=0.03).initial_theta(KEY)
    np.testing.assert_allclose(np.var(drawn) * 400, 0.03, rtol=0.05)
    assert np.abs(drawn).max() < 2.3 * (0.03 / 400) ** 0.5
    relu = policies.as_policy("mlp:4,3:relu", 2, 1)
    assert (relu.sizes, relu.activation) == ((2, 4, 3, 1), "relu")
    for wrong in ("mlp", "mlp:", "mlp:3:sigmoid", "cnn"):
        with pytest.raises(ValueError, match=r"policy must be|activation must be"):
            policies.as_policy(wrong, 2, 1)


def test_any_function_as_policy():
    def apply(theta, observation):
        return theta @ observation

    linear = MujocoPool("swimmer", "linear", horizon=30)
    theta = jax.random.normal(KEY, (2, 8))
    function = MujocoPool("swimmer", policies.Function(apply, lambda key: theta), horizon=30)
    np.testing.assert_allclose(
        estimate(linear, theta)[0], estimate(function, theta)[0], rtol=1e-3, atol=1e-3
    )


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: MujocoPool("swimer"), "task must be one of swimmer"),
        (lambda: MujocoPool("swimmer", version=3), "version must be 4 or 5"),
        (lambda: MujocoPool("swimmer", horizon=0), "horizon must be at least 1"),
        (lambda: GymPool("Nope-v0"), "gymnasium cannot make 'Nope-v0'"),
        (lambda: GymPool(CliffEnv), "has no limit of its own: give a horizon"),
        (lambda: GymPool("CartPole-v1", horizon=501), "ends after 500 steps"),
        (lambda: GymPool("CartPole-v1", processes=-1), "processes must be at least 0"),
        (lambda: MujocoPool("swimmer").check(jnp.zeros((2, 9))), "theta does not fit"),
        (lambda: MujocoPool("swimmer").check(jnp.zeros((3, 8))), r"gives actions of shape \(3,\)"),
    ],
)
def test_mistakes(make, words):
    with pytest.raises(ValueError, match=words):
        make()
