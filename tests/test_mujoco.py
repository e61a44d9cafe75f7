"""The MuJoCo pool: tasks against gymnasium, threads, snapshots, and simulations that blow up."""

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nres
from environments import KEY, NAMES, estimate
from helpers import slow, slow_except
from nres.pools import GymPool, MujocoPool

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*out of date.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*settotalmass.*"),
]


class Script:
    """A policy that follows a script, the same for every lane."""

    def __init__(self, actions):
        self.actions, self.t = actions, 0

    def initial_theta(self, key):
        return jnp.zeros(1)

    def act(self, thetas, observations):
        return np.broadcast_to(self.actions[self.t], (len(observations), self.actions.shape[1]))


@pytest.mark.parametrize("version", [slow(4), 5])
@pytest.mark.parametrize("task", slow_except({"swimmer", "hopper"}, {name: name for name in NAMES}))
@pytest.mark.usefixtures("unchecked_types")
def test_tasks_are_those_of_gymnasium(task, version):
    """1,000 steps agree, over several episodes where they end early."""
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
        slow("hopper", {"window": 25}),
        slow("hopper", {"method": nres.TES}),
        slow("walker2d", {"method": nres.PES, "window": 20}),
    ],
)
def test_both_pools_give_the_same_gradients(task, options):
    """They do where windows do not divide the horizon and where members end early, too."""
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
