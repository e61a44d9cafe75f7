"""Observations with mean 0 and variance 1: the moments, and what an episode keeps of them."""

import dataclasses

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import nres
from environments import KEY
from helpers import as_users_run, raises_naming, slow
from nres.acting import Actor
from nres.measured import Moments
from nres.policies import Linear
from nres.pools import GymPool, MujocoPool
from nres.pools.jax import as_pool
from nres.systems import GymnaxEnvironment
from nres.tuning.probes import Prober
from table import mesh

pytestmark = pytest.mark.filterwarnings("ignore:.*out of date.*:DeprecationWarning")


@flax.struct.dataclass
class State:
    x: jax.Array
    time: int


@flax.struct.dataclass
class Params:
    max_steps_in_episode: int = 12


@dataclasses.dataclass(frozen=True)
class Slope:
    """An environment with gymnax's interface, which observes the step and a position."""

    name: str = "Slope"
    default_params: Params = dataclasses.field(default_factory=Params)

    def action_space(self, params):
        return type("Box", (), {"shape": (1,), "low": -9.0, "high": 9.0})

    def reset_env(self, key, params):
        return self._observation(state := State(jax.random.uniform(key), 0)), state

    def step_env(self, key, state, action, params):
        state = State(0.9 * state.x + 0.1 * action[0], state.time + 1)
        return self._observation(state), state, -((state.x - 1.0) ** 2), state.x > 4.0, {}

    def _observation(self, state):
        return jnp.stack([jnp.asarray(state.time, float), 3.0 - 2.0 * state.x])


def slope(policy="linear", **options):
    return GymnaxEnvironment(Slope(), policy, normalise=True, **options)


def moments_of(rows):
    rows = np.asarray(rows)
    return Moments(*map(jnp.asarray, (float(len(rows)), rows.mean(0), len(rows) * rows.var(0))))


def test_moments_are_those_of_all_observations_together():
    rng = np.random.default_rng(0)
    parts = [rng.normal([1.0, 30.0], [2.0, 0.1], size=(n, 2)) for n in (7, 400, 30)]
    moments = Moments.empty(2)
    for part in parts:
        centred = part - np.asarray(moments.mean, np.float64)
        sums = (float(len(part)), centred.sum(0), (centred**2).sum(0))
        moments = moments.updated(jax.tree.map(lambda x: jnp.asarray(x, float), sums))
    whole = moments_of(np.concatenate(parts))
    np.testing.assert_allclose(moments.mean, whole.mean, rtol=1e-5)
    np.testing.assert_allclose(moments.square, whole.square, rtol=1e-3)
    assert moments.count == 437


def test_every_observation_is_counted_once():
    system = slope("linear")
    estimator = nres.NRES(system, workers=6, window=4, sigma=0.1)  # two workers per window
    theta = system.initial_theta(KEY)
    result = estimator.estimate(theta, estimator.init(theta, KEY))
    moments = result.measured["observations"]
    assert result.grad["observations"] is None
    assert moments.count == 2 * 6 * 4
    np.testing.assert_allclose(moments.mean[0], np.arange(12).mean(), rtol=1e-6)
    np.testing.assert_allclose(moments.square[0] / moments.count, np.arange(12).var(), rtol=1e-5)


def folded(theta):
    """Return parameters of an MLP without normalisation that acts in the same way."""
    first, *others = theta["policy"]
    moments = theta["observations"]
    weight = first["weight"] / jnp.sqrt(moments.square / moments.count)
    return [{"weight": weight, "bias": first["bias"] - weight @ moments.mean}, *others]


@pytest.mark.parametrize(
    ("make", "size"),
    [
        (lambda **o: GymnaxEnvironment(Slope(), "mlp:3", **o), 2),
        (lambda **o: MujocoPool("swimmer", "mlp:3", horizon=20, **o), 8),
        (lambda **o: GymPool("Pendulum-v1", "mlp:3", horizon=20, **o), 3),
    ],
    ids=["gymnax", "mujoco", "gymnasium"],
)
def test_a_normalised_policy_is_another_policy_without(make, size):
    with as_users_run():
        plain, normalised = make(), make(normalise=True)
        theta = normalised.initial_theta(KEY)
        first = nres.evaluate(plain, theta["policy"], KEY, episodes=3).losses
        raw = nres.evaluate(normalised, theta, KEY, episodes=3).losses
        rounding = 1e-5 if isinstance(plain, nres.System) else 1e-7
        np.testing.assert_allclose(raw, first, rtol=rounding)
        rows = np.random.default_rng(1).normal(0.5, 2.0, size=(50, size))
        theta["observations"] = moments_of(rows)
        got = nres.evaluate(normalised, theta, KEY, episodes=3).losses
        expected = nres.evaluate(plain, folded(theta), KEY, episodes=3).losses
    np.testing.assert_allclose(got, expected, rtol=2e-4)
    assert not np.allclose(got, first, rtol=1e-3)


@pytest.mark.parametrize(
    "make",
    [
        slow(lambda: slope("mlp:3")),
        lambda: MujocoPool("swimmer", "mlp:3", horizon=12, normalise=True),
    ],
    ids=["jax", "host"],
)
def test_an_episode_keeps_the_moments_with_which_it_began(make):
    pool = as_pool(make())
    theta = pool.initial_theta(KEY)
    size = theta["observations"].mean.size
    rng = np.random.default_rng(2)
    one, other = (moments_of(rng.normal(i, 1 + i, size=(90, size))) for i in (1, 2))
    keys, start = jax.random.split(KEY, 2), jnp.zeros(2, jnp.int32)

    def advance(state, moments, start):
        given = {**theta, "observations": moments}
        thetas = jax.tree.map(lambda x: jnp.broadcast_to(x, (1, 2, *x.shape)), given)
        return pool.advance_arrays(state, thetas, keys, start, 6)

    first = advance(None, one, start)
    same, changed = (advance(first.state, moments, start + 6) for moments in (one, other))
    np.testing.assert_array_equal(same.loss, changed.loss)
    assert not np.allclose(advance(first.state, other, start).loss, first.loss)
    # What was observed is told in deviations from the present mean.
    count, sums, _ = changed.observed[0]
    means = np.asarray(sums) / np.asarray(count)[..., None] + np.asarray(other.mean)
    expected = np.asarray(same.observed[0][1]) / 6 + np.asarray(one.mean)
    np.testing.assert_allclose(means, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    "make", [slow(slope), lambda: MujocoPool("swimmer", horizon=12, normalise=True)]
)
def test_training_measures_and_resumes_exactly(make):
    system = make()
    estimator = nres.NRES(system, workers=6, window=4, sigma=0.1)
    theta = system.initial_theta(KEY)
    with as_users_run():
        optimizer = optax.adamw(0.05, weight_decay=0.1)
        whole = nres.train(estimator, optimizer, theta, updates=6, key=KEY)
        half = nres.train(estimator, optimizer, theta, updates=3, key=KEY)
        rest = nres.train(estimator, optimizer, half.theta, updates=3, state=half.state)
    assert whole.theta["observations"].count == 6 * 2 * 6 * 4
    assert (whole.theta["observations"].square > 0).all()
    jax.tree.map(np.testing.assert_array_equal, rest.theta, whole.theta)


@pytest.mark.slow
def test_moments_are_the_same_on_several_devices():
    system = slope()
    theta = system.initial_theta(KEY)
    with as_users_run():
        one, two = (
            nres.train(
                nres.NRES(system, workers=6, window=4, sigma=0.1, placement=placement),
                optax.sgd(0.1),
                theta,
                updates=4,
                key=KEY,
            )
            for placement in (nres.placement.Local(), nres.placement.Devices(mesh(2)))
        )
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4), one.theta, two.theta)


@pytest.mark.slow
def test_seeds_have_their_own_moments():
    system = slope()
    estimator = nres.NRES(system, workers=6, window=4, sigma=0.1)
    with as_users_run():
        theta = system.initial_theta(KEY)
        result = nres.train(estimator, optax.sgd(0.1), theta, updates=3, key=KEY, seeds=2)
    means = result.theta["observations"].mean
    assert means.shape == (2, 2)
    assert means[0, 1] != means[1, 1]


def test_a_component_that_never_varied_is_not_blown_up():
    actor = Actor(nres.policies.Linear(2, 2), 2, normalise=True)
    moments = moments_of(np.array([[1.0, 5.0], [3.0, 5.0]]))
    thetas = {"policy": np.eye(2)[None], "observations": jax.tree.map(lambda x: x[None], moments)}
    observation = np.array([[3.0, 6.0]])
    actions, _ = actor.act(thetas, actor.begin(thetas, observation), observation)
    np.testing.assert_allclose(actions, [[1.0, 1.0]])


def test_normalised_observations_are_clipped():
    actor = Actor(Linear(2, 1), 2, normalise=True)
    still = Moments(jnp.array(100.0), jnp.zeros(2), jnp.full(2, 100 * 0.01**2))
    theta = {"policy": np.array([[1.0, 0.5]]), "observations": still}
    lanes = jax.tree.map(lambda x: np.asarray(x)[None], theta)
    observation = np.array([[0.05, -3.0]])  # 5 and -300 standard deviations
    actions, kept = actor.act(lanes, actor.begin(lanes, observation), observation)
    np.testing.assert_allclose(actions, [[5 - 0.5 * 10]], atol=1e-5)
    np.testing.assert_allclose(kept["first"], observation)  # the moments see them as they are
    # Before anything is measured, they are clipped, too.
    lanes["observations"] = jax.tree.map(lambda x: np.asarray(x)[None], Moments.empty(2))
    observation = np.array([[4.0, -50.0]])
    actions, _ = actor.act(lanes, actor.begin(lanes, observation), observation)
    np.testing.assert_allclose(actions, [[4 - 0.5 * 10]])


def test_observations_that_overflow_are_left_out_and_counted():
    class Spike(Slope):
        def _observation(self, state):
            huge = jnp.where(state.x > 0.5, 1e25, 0.0)
            return super()._observation(state) + huge

    system = GymnaxEnvironment(Spike(), "linear", normalise=True)
    estimator = nres.FullES(system, workers=6, sigma=0.01)
    theta = system.initial_theta(KEY)
    estimate = estimator.estimate(theta, estimator.init(theta, KEY))
    assert 0 < estimate.info.nonfinite < 6
    assert np.isfinite(estimate.measured["observations"].square).all()
    assert estimate.measured["observations"].count == 24 * (6 - int(estimate.info.nonfinite))


@pytest.mark.slow
def test_diagnosing_changes_no_moments():
    system = slope()
    estimator = nres.NRES(system, workers=6, window=4, sigma=1e-4)
    with as_users_run():
        found = nres.diagnose(estimator, system.initial_theta(KEY), KEY)
    np.testing.assert_allclose(found.smoothed_loss, found.loss, rtol=0.1)


@pytest.mark.slow
def test_tuning_measures_before_it_probes():
    with as_users_run():
        system = slope()
        theta = system.initial_theta(KEY)
        options = {"episodes": 200.0, "rounds": 1.0, "noise": nres.Gaussian()}
        prober = Prober(as_pool(system), theta, KEY, callback=lambda probe: None, **options)
        prober.search()
    probed = sum(probe.steps.total for probe in prober.probes)
    seen = float(prober.theta["observations"].count)
    assert seen > 0
    assert prober.steps.total >= probed + seen
    jax.tree.map(np.testing.assert_array_equal, prober.theta["policy"], theta["policy"])


def test_what_is_neither_true_nor_false_is_refused():
    with raises_naming(TypeError, "normalise", "no"):
        MujocoPool("swimmer", normalise="no")


def test_backpropagation_and_drift_cannot_use_moments():
    system = slope()
    theta = system.initial_theta(KEY)
    with raises_naming(ValueError, "TBPTT", "measured", "use an evolution", "NRES"):
        nres.TBPTT(system, workers=2, window=4).init(theta, KEY)
    estimator = nres.NRES(system, workers=2, window=4, sigma=0.1)
    with raises_naming(ValueError, "hysteresis", "measured", "observations: give"):
        nres.variance.hysteresis(estimator, optax.sgd, theta, KEY, rates=[0.1])


@pytest.mark.parametrize("normalise", [False, True])
def test_moments_that_do_not_fit_are_refused(normalise):
    pool = MujocoPool("swimmer", normalise=normalise, horizon=2)
    theta = {"policy": np.zeros((2, 8)), "observations": Moments.empty(7)}
    culprits = ["7 components", "8"] if normalise else ["moments", "normalise=True"]
    with raises_naming(ValueError, *culprits):
        nres.NRES(pool, workers=2, window=1, sigma=0.1).init(theta, KEY)
    with raises_naming(ValueError, "dictionary" if normalise else "moments"):
        wrong = theta["policy"] if normalise else theta
        nres.NRES(pool, workers=2, window=1, sigma=0.1).init(wrong, KEY)


def test_a_recurrent_policy_remembers():
    """A unit of memory that adds up what it observes, by saturated gates."""
    gru = nres.policies.GRU(1, 1, 1)
    big = 50.0
    theta = {
        "input": np.array([[[0.0], [0.0], [0.1]]]),
        "memory": np.array([[[0.0], [0.0], [0.0]]]),
        "bias": np.array([[0.0, -big, 0.0]]),
        "output": np.ones((1, 1, 1)),
        "output_bias": np.zeros((1, 1)),
    }
    memory, expected = np.zeros((1, 1)), 0.0
    for observation in (1.0, -2.0, 4.0):
        action, memory = gru.act(theta, np.full((1, 1), observation), memory)
        expected = 0.5 * expected + 0.5 * np.tanh(0.1 * observation)
        np.testing.assert_allclose(action, expected)


@pytest.mark.parametrize("make", [slow(slope), lambda p: MujocoPool("swimmer", p, horizon=12)])
def test_memory_passes_from_window_to_window(make):
    pool = as_pool(make("gru:2"))
    theta = pool.initial_theta(KEY)
    keys, start = jax.random.split(KEY, 2), jnp.zeros(2, jnp.int32)
    thetas = jax.tree.map(lambda x: jnp.broadcast_to(x, (1, 2, *x.shape)), theta)
    whole = pool.advance_arrays(None, thetas, keys, start, 12)
    first = pool.advance_arrays(None, thetas, keys, start, 5)
    rest = pool.advance_arrays(first.state, thetas, keys, start + 5, 7)
    np.testing.assert_allclose(first.loss + rest.loss, whole.loss, rtol=1e-5)
