"""Environments in JAX: gymnax and Brax against their own functions, early ends and gradients."""

import pickle
import sys

import flax.struct
import gymnax
import gymnax.wrappers.purerl
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nres
from environments import KEY
from helpers import as_users_run, invoke, raises_naming, slow
from nres import runs
from nres.pools.jax import JaxPool
from nres.systems import BraxEnvironment, GymnaxEnvironment, PlaygroundEnvironment

# Brax and gymnax do not follow the strict rules of the other tests.
pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("unchecked_types"),
]


@pytest.fixture(autouse=True)
def users_settings():
    with as_users_run():
        yield


def losses(system, theta, keys):
    """Return the losses of whole episodes, one per key."""
    thetas = jax.tree.map(lambda x: jnp.broadcast_to(x, (1, len(keys), *x.shape)), theta)
    start = jnp.zeros(len(keys), jnp.int32)
    return JaxPool(system).advance_arrays(None, thetas, keys, start, system.horizon)


def test_gymnax_as_it_is():
    """The losses are minus the rewards, until an episode ends; then there are none."""
    import gymnax

    system = GymnaxEnvironment("CartPole-v1", "linear", horizon=60, variance=4.0)
    theta = system.initial_theta(KEY)
    keys = jax.random.split(KEY, 6)
    window = losses(system, theta, keys)
    env, params = gymnax.make("CartPole-v1")
    steps = []
    for key in keys:
        first = jax.random.key_data(jax.random.fold_in(key, 0))
        observation, state = env.reset_env(first, params)
        ended, count = False, 0
        while not ended and count < 60:
            action = int(np.argmax(np.asarray(theta) @ np.asarray(observation)))
            observation, state, reward, ended, _ = env.step_env(first, state, action, params)
            assert reward == 1
            count += 1
        steps.append(count)
    assert min(steps) < max(steps) <= 60
    assert min(steps) < 60
    np.testing.assert_array_equal(window.steps[0], steps)
    np.testing.assert_allclose(window.loss[0], -np.array(steps, float))


def nres_mean(system, theta, sigma, window):
    """Return the mean of many estimates and its standard error, from whole episodes of workers."""
    estimator = nres.NRES(system, workers=1000, window=window, sigma=sigma)
    state, found = estimator.init(theta, KEY), []
    for _ in range(4 * estimator.windows):
        estimate = estimator.estimate(theta, state)
        state = estimate.state
        found.append(np.ravel(*jax.tree.leaves(estimate.grad)))
    # Windows of one episode belong together.
    found = np.mean(np.reshape(found, (4, estimator.windows, -1)), axis=1)
    return found.mean(axis=0), found.std(axis=0, ddof=1) / 2


def test_gradients_are_those_of_the_smoothed_return():
    """NRES in windows against finite differences of the mean return under noise."""
    system = GymnaxEnvironment("Pendulum-v1", horizon=8, variance=1.0)
    sigma, samples = 0.5, 4000
    theta = system.initial_theta(KEY)
    noise_key, episode_key = jax.random.split(jax.random.key(8))
    noise = sigma * jax.random.normal(noise_key, (samples, *theta.shape))
    keys, start = jax.random.split(episode_key, samples), jnp.zeros(samples, jnp.int32)
    pool, width = JaxPool(system), 0.05

    @jax.jit
    def differences(direction):
        lanes = jnp.stack([theta + noise + direction, theta + noise - direction])
        window = pool.advance_arrays(None, lanes, keys, start, system.horizon)
        return (window.loss[0] - window.loss[1]) / (2 * width * system.horizon)

    each = [
        np.asarray(differences(width * jnp.zeros(theta.shape).at[i].set(1.0)), np.float64)
        for i in np.ndindex(theta.shape)
    ]
    exact = np.array([x.mean() for x in each])
    error = np.array([x.std() for x in each]) / samples**0.5

    mean, spread = nres_mean(system, theta, sigma, window=3)
    z = (mean - exact) / np.hypot(spread, error)
    assert np.abs(exact).max() > 5 * error.max()
    assert (np.abs(z) < 5).all(), z


@pytest.mark.slow
def test_brax_against_its_own_steps_until_it_falls():
    """NRES in windows against antithetic sampling with plain loops over Brax's functions."""
    from brax import envs

    env = envs.get_environment("inverted_pendulum", backend="generalized")
    system = BraxEnvironment(env, horizon=30, normalise=True, variance=3.0)
    theta = system.initial_theta(KEY)
    sigma, samples = 1.0, 2000
    noise_key, key = jax.random.split(jax.random.key(8))
    noise = sigma * jax.random.normal(noise_key, (samples, *theta["policy"].shape))

    def episode(weights, key):
        def step(carry, _):
            state, alive = carry
            after = env.step(state, jnp.clip(weights @ state.obs, -1, 1))
            return (after, alive * (1 - after.done)), alive * after.reward

        return jax.lax.scan(step, (env.reset(key), 1.0), None, 30)[1].sum()

    raw = jax.vmap(jax.random.key_data)(jax.random.split(key, samples))
    run = jax.jit(jax.vmap(episode))
    returns = [np.asarray(run(theta["policy"] + s * noise, raw), np.float64) for s in (1, -1)]
    assert 1 < returns[0].min() < 30
    each = -(returns[0] - returns[1]) / 60 * np.reshape(noise, (samples, -1)).T / sigma**2
    exact, error = each.mean(axis=1), each.std(axis=1) / samples**0.5

    mean, spread = nres_mean(system, theta, sigma, window=10)
    z = (mean - exact) / np.hypot(spread, error)
    assert np.abs(exact).max() > 5 * error.max()
    assert (np.abs(z) < 5).all(), z
    # Episodes end early, and each step that was taken was observed.
    estimator = nres.NRES(system, workers=1000, window=10, sigma=sigma)
    estimate = estimator.estimate(theta, estimator.init(theta, KEY))
    assert estimate.steps.total < 2 * 1000 * 10
    assert estimate.measured["observations"].count == estimate.steps.total
    assert system.metrics(theta, KEY)["return"] < 30


def _walkers(**options):
    """Return environments that end early, of three kinds."""
    options = {"horizon": 60, "variance": 4.0} | options
    return (
        nres.pools.MujocoPool("hopper", **options),
        nres.pools.GymPool("CartPole-v1", **options),
        GymnaxEnvironment("CartPole-v1", **options),
    )


def test_a_shift_counts_in_training_and_not_in_returns():
    for usual, shifted in zip(_walkers(), _walkers(shift=0.7), strict=True):
        theta = usual.initial_theta(KEY)
        before, after = (nres.evaluate(x, theta, KEY, episodes=3) for x in (usual, shifted))
        steps = before.steps.total
        assert steps < 3 * 60
        assert steps == after.steps.total
        more = np.asarray(after.losses) - np.asarray(before.losses)
        np.testing.assert_allclose(more.sum() * 60, 0.7 * steps, rtol=1e-4)
        measured = [x.metrics(theta, KEY) for x in (usual, shifted)]
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), *measured)
        assert "shift" in repr(shifted)


def test_episodes_may_be_longer_in_tests_than_in_training(compilations):
    short, long = _walkers(horizon=20, test_horizon=60), _walkers(horizon=60)
    for trained, whole in zip(short, long, strict=True):
        theta = whole.initial_theta(KEY)
        assert nres.evaluate(trained, theta, KEY, episodes=3).steps.total <= 3 * 20
        measured = [x.metrics(theta, KEY) for x in (trained, whole)]
        jax.tree.map(np.testing.assert_array_equal, *measured)
        compilations.clear()
        trained.metrics(theta, KEY)
        assert not compilations
        assert trained.metrics_steps == whole.metrics_steps == 20 * 60
        assert "test_horizon=60" in repr(trained)
        travelled = pickle.loads(pickle.dumps(trained))
        assert (travelled.horizon, travelled.test_horizon) == (20, 60)
        jax.tree.map(np.testing.assert_array_equal, travelled.metrics(theta, KEY), measured[0])


@pytest.mark.parametrize(
    ("robot", "sigma", "lr", "workers"),
    [
        slow("hopper", "0.025", "0.002", 100),
        slow("walker2d", "0.025", "0.00335", 200),
        slow("humanoid", "0.0075", "0.0003", 500),
        slow("brax:ant", "0.05", "0.005", 1000),
        slow("brax:halfcheetah", "0.05", "0.005", 1000),
        slow("brax:humanoid", "0.02", "cosine:0.0015:0.0003:3000", 2000),
        ("ant", "0.025", "cosine:0.00358:0.000716:160", 300),
    ],
)
def test_presets_of_robots_that_walk(robot, sigma, lr, workers):
    online, whole = (runs.resolve(robot, method) for method in ("nres", "fulles"))
    assert (online.sigma, online.lr, online.workers) == (sigma, lr, workers)
    horizon = online.options.get("horizon", 1000)
    assert online.workers * online.window == whole.workers * horizon  # equal steps per update
    same = ("options", "shaping", "sigma", "optimizer", "noise", "updates")
    assert [getattr(online, name) for name in same] == [getattr(whole, name) for name in same]
    # Steps of about the same size, with five windows.
    smaller = {"ant": "cosine:0.0016:0.00032:160", "walker2d": "0.0015"}
    assert whole.lr == smaller.get(robot, online.lr)
    assert online.shaping == (None if online.optimizer == "adam" else "scaled")
    small = {"options": {"horizon": 4}, "workers": 2, "window": 2}
    assert runs.SYSTEMS[robot].summary.endswith(f", T = {horizon}")
    system = runs.build(runs.resolve(robot, "nres", **small)).system
    assert system.actor.normalise
    assert system.test_horizon == (1000 if robot == "ant" else 4)
    assert system.shift == runs.SYSTEMS[robot].options.get("shift", 0.0)
    assert runs.resolve(robot, "nres", options={"shift": 0.5}).options["shift"] == 0.5


@pytest.mark.slow
def test_from_the_command_line(tmp_path):
    options = ["--sigma", 0.3, "--lr", 0.1, "--workers", 4, "--window", 5, "--seed", 1]
    options += ["--set", "horizon=20", "--set", "normalise=true", "--policy", "gru:3"]
    for name, updates in (("whole", 6), ("half", 3)):
        out = ["--updates", updates, "--out", tmp_path / name]
        result = invoke("train", "gymnax:Pendulum-v1", *options, *out)
        assert result.exit_code == 0, result.output
    assert invoke("resume", tmp_path / "half", "--updates", 6).exit_code == 0
    one, two = (runs.Run.open(tmp_path / name).theta() for name in ("whole", "half"))
    jax.tree.map(np.testing.assert_array_equal, one, two)
    assert one["observations"].count > 0


def test_equal_environments_share_a_compilation_and_travel():
    one, two = (GymnaxEnvironment("Pendulum-v1", horizon=8) for _ in range(2))
    assert jax.tree.structure(one) == jax.tree.structure(two)
    import gymnax

    object_, other = (GymnaxEnvironment(gymnax.make("Pendulum-v1")[0], horizon=8) for _ in range(2))
    assert jax.tree.structure(object_) == jax.tree.structure(other) == jax.tree.structure(one)
    travelled = pickle.loads(pickle.dumps(one))
    theta, keys = jnp.ones((1, 3)), jax.random.split(KEY, 2)
    np.testing.assert_array_equal(
        losses(one, theta, keys).loss, losses(travelled, theta, keys).loss
    )


def test_environments_with_other_numbers_are_others():
    import gymnax

    env, params = gymnax.make("Pendulum-v1")
    heavy = GymnaxEnvironment(env, params=params.replace(m=2.0), horizon=8)
    usual = GymnaxEnvironment(env, horizon=8)
    assert jax.tree.structure(heavy) != jax.tree.structure(usual)
    theta, keys = jnp.ones((1, 3)), jax.random.split(KEY, 2)
    each = losses(heavy, theta, keys).loss
    assert (each != losses(usual, theta, keys).loss).all()

    def of_mass(m):
        return losses(GymnaxEnvironment(env, params=params.replace(m=m), horizon=8), theta, keys)

    np.testing.assert_allclose(jax.vmap(of_mass)(jnp.array([2.0, 3.0])).loss[0], each, rtol=1e-5)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (GymnaxEnvironment, "CartPole-v1"),
        (nres.pools.GymPool, "CartPole-v1"),
        (nres.pools.MujocoPool, "hopper"),
        (BraxEnvironment, "inverted_pendulum"),
    ],
)
def test_wrong_numbers_of_steps_are_refused(kind, name):
    for given, error, culprits in (
        ({"test_horizon": 0}, ValueError, ["test_horizon"]),
        ({"test_horizon": "x"}, TypeError, ["test_horizon", "'x'"]),
        ({"horizon": 20, "test_horizon": 19}, ValueError, ["test_horizon=19", "horizon=20"]),
    ):
        with raises_naming(error, *culprits):
            kind(name, **given)
    if name == "CartPole-v1":  # which ends after 500 steps
        for which in ("horizon", "test_horizon"):
            with raises_naming(ValueError, "500", f"{which}=501"):
                kind(name, **{which: 501})


class Changing:
    """An environment with Brax's interface, whose state gains an entry in a step."""

    action_size = 1

    def reset(self, key):
        return Stepped(jnp.ones(1), jnp.zeros(()), jnp.zeros(()), {"a": jnp.zeros(())})

    def step(self, state, action):
        return Stepped(state.obs, state.reward, state.done, {"b": jnp.zeros(())})


@flax.struct.dataclass
class Stepped:
    obs: jax.Array
    reward: jax.Array
    done: jax.Array
    metrics: dict


def test_a_state_that_changes_its_structure_is_refused():
    with raises_naming(ValueError, "Changing", "structure"):
        BraxEnvironment(Changing(), horizon=3)


def test_theta_must_fit_the_actions_and_the_moments():
    system = GymnaxEnvironment("CartPole-v1", horizon=3)
    with raises_naming(ValueError, 5, "action", 2):
        nres.evaluate(system, jnp.zeros((5, 4)), KEY, episodes=1)
    system = GymnaxEnvironment("CartPole-v1", horizon=3, normalise=True)
    with raises_naming(ValueError, "normalise", "observations"):
        nres.evaluate(system, jnp.zeros((2, 4)), KEY, episodes=1)


def wrapped():
    from brax import envs

    return envs.create("fast", auto_reset=True, batch_size=2)


def sticky():
    return gymnax.wrappers.purerl.StickyActionWrapper(gymnax.make("CartPole-v1")[0], 0.5)


class Nameless:
    def reset(self, key):
        raise NotImplementedError


@pytest.mark.parametrize(
    ("make", "error", "culprits"),
    [
        (lambda: GymnaxEnvironment("Pendulum"), ValueError, ["Pendulum", "Pendulum-v1"]),
        (lambda: GymnaxEnvironment("Pendulum-v1", horizon=900), ValueError, [200, 900]),
        (lambda: GymnaxEnvironment("Pendulum-v1", horizon=0), ValueError, ["horizon"]),
        (lambda: GymnaxEnvironment("Pendulum-v1", shift=-1.0), ValueError, ["shift"]),
        (lambda: nres.pools.MujocoPool("hopper", shift=-1.0), ValueError, ["shift"]),
        (lambda: nres.pools.GymPool("CartPole-v1", shift=-1.0), ValueError, ["shift"]),
        (lambda: GymnaxEnvironment(gymnax.make("CartPole-v1")), TypeError, ["first", "tuple"]),
        (lambda: GymnaxEnvironment(sticky()), ValueError, ["StickyActionWrapper", "reset_env"]),
        (lambda: BraxEnvironment("hexapod"), ValueError, ["hexapod", "ant"]),
        (lambda: BraxEnvironment(wrapped()), ValueError, ["AutoResetWrapper"]),
        (lambda: BraxEnvironment(Nameless()), ValueError, ["Nameless", "step"]),
        (lambda: BraxEnvironment(Nameless(), backend="mjx"), TypeError, ["backend"]),
    ],
)
def test_mistakes(make, error, culprits):
    with raises_naming(error, *culprits):
        make()


def test_playground_that_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "mujoco_playground", None)
    with raises_naming(ImportError, "nres[playground]"):
        PlaygroundEnvironment("CheetahRun")


def test_a_mistake_on_the_command_line():
    result = invoke("train", "gymnax:Pendlum-v1", "--sigma", 0.1, "--lr", 0.1)
    assert result.exit_code == 2
    assert "Pendulum-v1" in result.stderr
    assert "brax" in invoke("train", "brux", "--sigma", 0.1, "--lr", 0.1).stderr
    for wrong in ("env=CartPole-v1", "normalise=no", "horizon=abc"):
        options = ["--sigma", 0.1, "--lr", 0.1, "--set", wrong]
        result = invoke("train", "gymnax:Pendulum-v1", *options)
        assert result.exit_code == 2
        assert wrong.partition("=")[0] in result.stderr


def test_keys_of_another_kind():
    system = GymnaxEnvironment("Pendulum-v1", horizon=8)
    key = jax.random.key(0, impl="rbg")
    assert nres.evaluate(system, system.initial_theta(KEY), key, episodes=2).losses.shape == (2,)
