"""The contract that every estimator of tests/table.py must meet."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import nres
from helpers import (
    THETA,
    Spiral,
    Wave,
    as_users_run,
    raises_naming,
    slow,
    slow_except,
    spiral_theta,
    state_at_step_0,
)
from table import ESTIMATORS, LAWS, PLACEMENTS, POOLS, STRATEGIES

KEY = jax.random.key(2)

every_estimator = pytest.mark.parametrize("make", ESTIMATORS.values(), ids=ESTIMATORS)
# Where every estimator takes seconds, two kinds of state are tested quickly and all in test-all.
quickly_or_all = pytest.mark.parametrize("make", slow_except({"NRES", "UORO"}, ESTIMATORS))
every_strategy = pytest.mark.parametrize("make", STRATEGIES.values(), ids=STRATEGIES)


class Undifferentiable(nres.System):
    """A system that raises an error when it is differentiated."""

    horizon: int = 10

    def init(self, theta, key):
        return jnp.zeros(2)

    def step(self, state, theta, t, key):
        @jax.custom_jvp
        def identity(x):
            return x

        @identity.defjvp
        def fail(primals, tangents):
            raise AssertionError("the system was differentiated")

        state = identity(state + theta)
        return state, jnp.sum(state**2)


@pytest.mark.parametrize("make", slow_except({"NRES", "UORO"}, ESTIMATORS))
def test_contract(make, compilations):
    """Structure of the result, and no compilation after the first call."""
    estimator, theta = make(Spiral()), spiral_theta()
    state = estimator.init(theta, KEY)
    estimate = estimator.estimate(theta, state)
    assert jax.tree.structure(estimate.grad) == jax.tree.structure(theta)
    for gradient, parameter in zip(
        jax.tree.leaves(estimate.grad), jax.tree.leaves(theta), strict=True
    ):
        assert gradient.shape == parameter.shape
        assert gradient.dtype == parameter.dtype
        assert np.isfinite(gradient).all()
    assert jax.tree.structure(estimate.state) == jax.tree.structure(state)
    assert estimate.loss.shape == ()
    assert type(estimate.steps.total) is int
    assert type(estimate.steps.sequential) is int
    assert estimate.steps.sequential <= estimator.window
    assert estimate.info.window_start.shape == (4,)
    assert estimate.info.contribution_norm.shape == (4,)
    assert int(estimate.state.update) == 1

    other, other_key = jax.tree.map(lambda x: x + 1, theta), jax.random.key(3)
    compilations.clear()
    again = make(Spiral())
    again.estimate(other, again.init(other, other_key))
    again.estimate(other, estimate.state)
    assert not compilations


def estimates(estimator, theta, count=4):
    """Return the numbers of consecutive estimates, and the steps that they took."""
    state, unlocking = estimator.unlock(theta, KEY)
    found, steps = [jax.device_get(state.workers.start)], [unlocking]
    for i in range(count):
        estimate = estimator.estimate(jax.tree.map(lambda x, i=i: x + 0.01 * i, theta), state)
        found.append(jax.device_get((estimate.grad, estimate.loss, estimate.info)))
        steps.append(estimate.steps)
        state = estimate.state
    return found, steps


def assert_same(one, other):
    assert one[1] == other[1]
    for a, b in zip(jax.tree.leaves(one[0]), jax.tree.leaves(other[0]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("make", slow_except({"NRES"}, ESTIMATORS))
def test_placements_give_the_same(make):
    theta = spiral_theta()
    alone = estimates(make(Spiral()), theta)
    for name, place in PLACEMENTS.items():
        if "hosts" not in name or make is ESTIMATORS["NRES"]:
            assert_same(alone, estimates(make(Spiral(), placement=place()), theta))


@pytest.mark.parametrize("kind", [k if k == "numpy" else slow(k) for k in POOLS])
@pytest.mark.parametrize("make", slow_except({"NRES"}, ESTIMATORS))
def test_pools_give_the_same_as_a_system(make, kind):
    pool, system, theta = POOLS[kind]()
    if not pool.traceable and make not in STRATEGIES.values():
        with raises_naming(TypeError, "NumpyPool"):
            make(pool)
        return
    assert_same(*(estimates(make(p), theta) for p in (pool, system)))


SLOPE = jnp.array([1.0, -2.0])


class Slope(nres.System):
    """A system whose gradient is the same everywhere and under every noise law."""

    horizon: int = 12

    def init(self, theta, key):
        return jnp.zeros(())

    def step(self, state, theta, t, key):
        return state, theta @ SLOPE


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
@pytest.mark.parametrize("make", slow_except({"NRES", "GPES"}, STRATEGIES))
def test_noise_laws(make, law):
    theta = jnp.array([0.5, 0.5])
    estimator = make(Slope(), noise=law).with_workers(512)
    state, found = state_at_step_0(estimator, theta, KEY), []
    for _ in range(estimator.windows):
        found.append(estimator.estimate(theta, state))
        state = found[-1].state
    mean = np.mean([estimate.grad for estimate in found], axis=0)
    # However the windows of an episode are correlated, their mean varies no more than they do.
    variance = np.mean([estimate.info.variance for estimate in found])
    assert np.linalg.norm(mean - SLOPE) < 4 * np.sqrt(variance)


@pytest.mark.slow
@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
def test_noise_laws_on_devices_and_in_variance(law):
    theta = jnp.array([0.5, 0.5])
    devices = PLACEMENTS["two devices"]()
    alone, placed = (
        ESTIMATORS["PES"](Slope(), noise=law, **options) for options in ({}, {"placement": devices})
    )
    ours, theirs = (estimates(e, theta, 2) for e in (alone, placed))
    assert_same(ours, theirs)
    measured = nres.variance.measure(alone, theta, KEY, samples=512)
    assert np.abs(measured.z_scores(SLOPE)).max() < 4


def test_other_numbers_do_not_compile(compilations):
    """Neither another sigma, period, schedule or rate nor an equal optimizer compiles again."""
    theta = THETA[Wave]

    def train(make, optimizer):
        return nres.train(make, optimizer, theta, updates=3, key=KEY).theta

    def everything(sigma, period, rate):
        schedule = lambda update: sigma / (1.0 + update.astype(float))  # noqa: E731
        gpes = nres.GPES(Wave(), workers=3, window=2, period=period, sigma=sigma)
        state = state_at_step_0(gpes, theta, KEY)
        return [
            train(nres.NRES(Wave(), workers=3, window=5, sigma=sigma), optax.adam(rate)),
            train(nres.NRES(Wave(), workers=3, window=5, sigma=schedule), optax.sgd(rate)),
            train(
                nres.NRES(Wave(), workers=3, window=5, sigma=sigma),
                optax.chain(optax.clip(rate), optax.adamw(nres.Piecewise(rate, ((2, rate / 2),)))),
            ),
            gpes.estimate(theta, state).grad,
        ]

    with as_users_run():
        first = everything(0.1, 4, 0.01)
        compilations.clear()
        again = everything(0.1, 4, 0.01)
        other = everything(0.2, 6, 0.02)
    assert not compilations
    for one, same, different in zip(first, again, other, strict=True):
        np.testing.assert_array_equal(one, same)
        assert not np.allclose(one, different)


@every_strategy
def test_strategies_do_not_differentiate_the_system(make):
    estimator, theta = make(Undifferentiable()), jnp.array([0.1, 0.2])
    with pytest.raises(AssertionError, match="differentiated"):
        jax.grad(lambda th: nres.evaluate(Undifferentiable(), th, KEY).loss)(theta)
    estimator.estimate(theta, state_at_step_0(estimator, theta, KEY))


@quickly_or_all
def test_in_a_loop_that_the_user_compiles(make):
    estimator, theta = make(Spiral()), spiral_theta()
    state = estimator.init(theta, KEY)

    def step(theta, grad):
        return jax.tree.map(lambda x, g: x - 0.01 * g, theta, grad)

    @jax.jit
    def descend(theta, state):
        def body(carry, _):
            estimate = estimator.estimate(*carry)
            return (step(carry[0], estimate.grad), estimate.state), estimate.loss

        return jax.lax.scan(body, (theta, state), length=4)

    (fast, _), losses = descend(theta, state)
    for loss in losses:
        estimate = estimator.estimate(theta, state)
        np.testing.assert_allclose(estimate.loss, loss, rtol=1e-5)
        theta, state = step(theta, estimate.grad), estimate.state
    for one, other in zip(jax.tree.leaves(fast), jax.tree.leaves(theta), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


@quickly_or_all
def test_double_precision(make, x64):
    theta = THETA[Wave].astype(jnp.float64)
    estimator = make(Wave())
    estimate = estimator.estimate(theta, state_at_step_0(estimator, theta, KEY))
    assert estimate.grad.dtype == estimate.loss.dtype == jnp.float64


class Drip(nres.System):
    """A system in which every step adds the same loss and depends on theta in the same way."""

    horizon: int = 1000

    def init(self, theta, key):
        return jnp.zeros((), theta.dtype)

    def step(self, state, theta, t, key):
        return state, 1 + 0 * theta[0] if self.horizon == 1000 else theta[0]


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_half_precision_is_added_up_in_single(dtype):
    estimator = nres.PES(Drip(), workers=3, window=500, sigma=0.01)
    theta = jnp.ones(20, dtype)
    estimate = estimator.estimate(theta, state_at_step_0(estimator, theta, KEY))
    assert estimate.grad.dtype == dtype
    assert int(estimate.info.nonfinite) == 0
    np.testing.assert_allclose(estimate.loss, 1.0, rtol=1e-6)


@pytest.mark.parametrize(
    "make",
    [
        lambda s: nres.BPTT(s, checkpoint_every=2000),
        lambda s: nres.TBPTT(s, window=1000, workers=2),
        lambda s: nres.UORO(s, window=1000, workers=2),
    ],
    ids=["BPTT", "TBPTT", "UORO"],
)
def test_gradients_in_half_precision_are_added_up_in_single(make):
    estimator, theta = make(Drip(2000)), jnp.ones(2, jnp.bfloat16)
    estimate = estimator.estimate(theta, state_at_step_0(estimator, theta, KEY))
    np.testing.assert_array_equal(estimate.grad, jnp.array([1, 0], jnp.bfloat16))


def test_any_noise_law_keeps_half_precision():
    estimator = nres.PES(Drip(), workers=3, window=500, sigma=0.01, noise=LAWS["Rademacher"])
    theta = jnp.ones(20, jnp.bfloat16)
    estimate = estimator.estimate(theta, state_at_step_0(estimator, theta, KEY))
    assert estimate.grad.dtype == jnp.bfloat16


@quickly_or_all
def test_old_style_keys_mean_the_same(make):
    estimator, theta = make(Spiral()), spiral_theta()
    new = estimator.init(theta, jax.random.key(4))
    old = estimator.init(theta, jax.random.PRNGKey(4))
    grads = (jax.tree.leaves(estimator.estimate(theta, state).grad) for state in (new, old))
    for one, other in zip(*grads, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
def test_workers_do_not_depend_on_how_many_there_are():
    """The first of three workers does exactly what a single worker does."""
    theta = THETA[Wave]
    one = nres.NRES(Wave(), workers=1, window=4, sigma=0.1)
    three = nres.NRES(Wave(), workers=3, window=4, sigma=0.1)
    few, many = one.init(theta, KEY), three.init(theta, KEY)
    for _ in range(4):
        small, large = one.estimate(theta, few), three.estimate(theta, many)
        few, many = small.state, large.state
        np.testing.assert_allclose(
            small.info.contribution_norm, large.info.contribution_norm[:1], rtol=1e-5
        )


@pytest.mark.parametrize(
    ("name", "members"), [("FullES", 2), ("NRES", 2), ("TES", 3), ("BPTT", 1), ("UORO", 1)]
)
def test_steps_are_counted(name, members):
    estimator, theta = ESTIMATORS[name](Spiral()), spiral_theta()
    state, unlocking = estimator.unlock(theta, KEY)
    starts = np.asarray(state.workers.start)
    assert unlocking == (members * starts.sum(), starts.max())
    lengths = np.minimum(estimator.window, 12 - starts)
    expected = (members * lengths.sum(), lengths.max())
    assert estimator.estimate(theta, state).steps == expected


def test_variance_with_very_many_workers():
    class Slope(nres.System):
        horizon: int = 1

        def init(self, theta, key):
            return jnp.zeros(())

        def step(self, state, theta, t, key):
            return state, theta[0]

    estimator = nres.FullES(Slope(), workers=70_000, sigma=0.1)
    theta = jnp.zeros(1)
    estimate = estimator.estimate(theta, state_at_step_0(estimator, theta, KEY))
    # Contributions are squares of standard normal numbers: variance 2.
    np.testing.assert_allclose(estimate.info.variance * 70_000, 2.0, rtol=0.1)


@pytest.mark.slow
def test_variance_is_that_of_the_mean_over_workers():
    theta = THETA[Wave]
    pool = nres.NRES(Wave(), workers=500, window=5, sigma=0.3)
    reported, gradients = [], []
    for seed in range(100):
        state = state_at_step_0(pool, theta, jax.random.key(seed))
        estimate = pool.estimate(theta, state)
        reported.append(estimate.info.variance)
        gradients.append(estimate.grad)
    measured = np.var(gradients, axis=0, ddof=1).sum()
    # The variance of 100 draws of two coordinates is known to about sqrt(2 / 99) of itself.
    assert abs(np.mean(reported) / measured - 1) < 4 * np.sqrt(2 / 99)
    alone = nres.NRES(Wave(), workers=1, window=5, sigma=0.3)
    assert np.isinf(alone.estimate(theta, state_at_step_0(alone, theta, KEY)).info.variance)


def test_noise_keeps_the_sigma_it_was_drawn_with():
    theta = THETA[Wave]
    sigma = lambda update: jnp.where(update < 1, 0.1, 1.0)  # noqa: E731
    estimator = nres.NRES(Wave(), workers=3, window=5, sigma=sigma)
    state = estimator.init(theta, KEY)
    begins = np.asarray(state.workers.start == 0)
    state = estimator.estimate(theta, state).state
    np.testing.assert_allclose(state.carry.noise.sigma, 0.1)
    state = estimator.estimate(theta, state).state
    np.testing.assert_allclose(state.carry.noise.sigma, np.where(begins, 0.1, 1.0), rtol=1e-6)
