"""Training: the same updates however they are run, reports, interrupts and non-finite losses."""

import os
import signal
import threading
import time

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import nres
from helpers import THETA, Wave, as_users_run, raises_naming, state_at_step_0
from nres.estimators import computing
from nres.tracing import MOST_BAKED, bake
from nres.updates import Chunks
from numpy_pool import NumpyPool

KEY = jax.random.key(8)
OPTIMIZER = optax.sgd(0.02, momentum=0.9)


def make(system=None, workers=4):
    return nres.NRES(system or Wave(), workers=workers, window=3, sigma=0.1)


def run(estimator=None, **arguments):
    arguments = {"updates": 12, "key": KEY} | arguments
    theta = arguments.pop("theta", THETA[Wave])
    return nres.train(estimator or make(), OPTIMIZER, theta, **arguments)


def by_hand(updates):
    estimator, theta = make(), THETA[Wave]
    state, unlocking = estimator.unlock(theta, KEY)
    optimizer_state, total, rows = OPTIMIZER.init(theta), unlocking.total, []
    for _ in range(updates):
        estimate = estimator.estimate(theta, state)
        change, optimizer_state = OPTIMIZER.update(estimate.grad, optimizer_state, theta)
        theta, state = optax.apply_updates(theta, change), estimate.state
        total += estimate.steps.total
        rows.append((estimate.loss, jnp.linalg.norm(estimate.grad), total))
    return theta, np.array(rows)


def test_training_is_estimates_and_updates():
    theta, rows = by_hand(12)
    result = run()
    np.testing.assert_allclose(result.theta, theta, rtol=1e-5)
    history = result.history
    np.testing.assert_allclose(history.loss, rows[:, 0], rtol=1e-5)
    np.testing.assert_allclose(history.grad_norm, rows[:, 1], rtol=1e-4)
    np.testing.assert_array_equal(history.total_steps, rows[:, 2])
    np.testing.assert_array_equal(history.update, np.arange(1, 13))
    assert (np.diff(history.seconds) > 0).all()
    assert result.state.steps == (history.total_steps[-1], history.sequential_steps[-1])
    assert result.state.update == 12
    assert not result.interrupted


def test_a_host_pool_trains_the_same():
    expected, result = run(), run(make(NumpyPool(Wave())))
    np.testing.assert_allclose(result.theta, expected.theta, rtol=1e-4)
    np.testing.assert_allclose(result.history.loss, expected.history.loss, rtol=1e-4)
    for column in ("total_steps", "sequential_steps", "nonfinite"):
        np.testing.assert_array_equal(
            getattr(result.history, column), getattr(expected.history, column)
        )


@pytest.mark.parametrize("first", [5, 12])
def test_continuing_equals_not_stopping(first):
    whole = run(updates=17)
    half = run(updates=first)
    rest = run(updates=17 - first, theta=half.theta, key=None, state=half.state)
    np.testing.assert_array_equal(whole.theta, rest.theta)
    for column in ("update", "total_steps", "sequential_steps", "loss", "grad_norm"):
        joined = np.concatenate([getattr(half.history, column), getattr(rest.history, column)])
        np.testing.assert_array_equal(getattr(whole.history, column), joined)
    # The first result is still usable: nothing of it was given away.
    run(updates=1, theta=half.theta, key=None, state=half.state)


def test_a_host_pool_continues_from_any_state():
    pool = make(NumpyPool(Wave()))
    whole, half = run(pool, updates=7), run(pool, updates=3)
    for _ in range(2):
        rest = run(pool, updates=4, theta=half.theta, key=None, state=half.state)
        np.testing.assert_array_equal(whole.theta, rest.theta)


def test_a_host_pool_can_be_evaluated_while_it_trains():
    pool = NumpyPool(Wave())
    loss = lambda theta: nres.evaluate(pool, theta, KEY, episodes=2).loss  # noqa: E731
    result = run(make(pool), updates=4, eval_fn=loss, eval_every=2)
    np.testing.assert_array_equal(result.theta, run(make(pool), updates=4).theta)


@pytest.mark.parametrize(
    "optimizer",
    [
        optax.adam(0.02),
        optax.contrib.prodigy(),  # keeps the parameters it started from
        optax.chain(optax.sgd(0.02), optax.contrib.reduce_on_plateau()),  # wants the loss
    ],
)
def test_any_optimizer(optimizer):
    with as_users_run():
        result = nres.train(make(), optimizer, THETA[Wave], updates=3, key=KEY)
    assert np.isfinite(result.theta).all()
    assert (np.asarray(result.theta) != np.asarray(THETA[Wave])).any()


def test_evaluation_and_callback():
    calls = []
    seen = []

    def eval_fn(theta):
        calls.append(theta)
        extra = {"late": 1.0} if len(calls) > 2 else {}
        return {"first": theta[0], "constant": 2.0, **extra}

    def callback(progress):
        seen.append((progress.state.update, len(progress.rows["loss"]), progress.evals))

    result = run(updates=11, eval_fn=eval_fn, eval_every=4, callback=callback)
    history = result.history
    np.testing.assert_array_equal(history.eval_update, [0, 4, 8, 11])
    np.testing.assert_array_equal(history.evals["constant"], [2.0] * 4)
    np.testing.assert_allclose(history.evals["first"], [theta[0] for theta in calls])
    np.testing.assert_array_equal(history.evals["late"], [np.nan, np.nan, 1.0, 1.0])
    np.testing.assert_array_equal(calls[0], THETA[Wave])
    np.testing.assert_array_equal(calls[-1], result.theta)
    np.testing.assert_allclose(history.eval_seconds[1:], history.seconds[[3, 7, 10]])
    assert history.eval_time > 0
    assert history.setup_time > 0
    assert sum(rows for _, rows, _ in seen) == 11
    assert [update for update, _, evals in seen if evals is not None] == [0, 4, 8, 11]
    np.testing.assert_array_equal(run(updates=2, eval_fn=lambda th: 1.0).history.evals["eval"], 1.0)


def test_no_updates():
    result = run(updates=0)
    np.testing.assert_array_equal(result.theta, THETA[Wave])
    assert result.history.update.shape == (0,)


def test_a_callback_can_end_the_run():
    result = run(updates=10**6, callback=lambda progress: progress.state.update >= 3)
    assert 3 <= result.state.update < 10**6
    assert result.interrupted


@pytest.mark.parametrize("pool", [Wave, lambda: NumpyPool(Wave())])
def test_an_interrupt_returns_what_was_done(pool):
    before = signal.getsignal(signal.SIGINT)
    interrupt = lambda progress: os.kill(os.getpid(), signal.SIGINT)  # noqa: E731
    result = run(make(pool()), updates=10**6, callback=interrupt)
    assert 0 < result.state.update < 10**6
    assert len(result.history.loss) == result.state.update
    assert result.interrupted
    assert signal.getsignal(signal.SIGINT) is before
    assert run(make(pool()), updates=1, callback=interrupt).interrupted


def test_a_second_interrupt_is_not_held_back(request):
    # What was started in the background of a shell ignores interrupts.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))

    def interrupt_twice(progress):
        first = signal.getsignal(signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        while signal.getsignal(signal.SIGINT) is first:  # else they may come as one
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)  # until it comes: on a busy machine that may take a while

    with pytest.raises(KeyboardInterrupt):
        run(updates=10**6, callback=interrupt_twice)


def test_outside_the_main_thread():
    results = []
    thread = threading.Thread(target=lambda: results.append(run(updates=2)))
    thread.start()
    thread.join()
    assert results[0].state.update == 2


def test_nothing_is_compiled_twice(compilations):
    estimator, other = make(workers=6), THETA[Wave] + 1
    run(estimator)
    compilations.clear()
    run(estimator, updates=20, theta=other)
    assert not compilations


class Fragile(nres.System):
    """A system whose loss is not finite for some parameters."""

    horizon: int = 6

    def init(self, theta, key):
        return jnp.zeros(())

    def step(self, state, theta, t, key):
        return state, jnp.sqrt(theta[0]) + theta[1]


def fragile(**options):
    return nres.NRES(Fragile(), workers=8, window=3, sigma=0.5, **options)


def test_nonfinite_workers_are_left_out_and_counted():
    theta = jnp.array([0.5, 0.0])
    estimator = fragile()
    state = estimator.init(theta, KEY)
    estimate = estimator.estimate(theta, state)
    bad = ~np.isfinite(np.asarray(estimate.info.contribution_norm))
    assert 0 < bad.sum() < 8
    assert int(estimate.info.nonfinite) == bad.sum()
    assert int(estimate.info.first_nonfinite) == np.argmax(bad)
    assert np.isfinite(estimate.grad).all()
    assert np.isfinite(estimate.loss)
    # What is left is the mean over the others.
    epsilon = np.asarray(state.carry.noise.epsilon)
    fresh = np.asarray(estimate.state.carry.noise.epsilon)
    epsilon = np.where(np.asarray(state.workers.start == 0)[:, None], fresh, epsilon)
    with np.errstate(invalid="ignore"):
        difference = np.sqrt(0.5 + epsilon[:, 0]) - np.sqrt(0.5 - epsilon[:, 0]) + 2 * epsilon[:, 1]
    expected = (difference[:, None] * epsilon / (2 * 0.5**2))[~bad].mean(axis=0)
    np.testing.assert_allclose(estimate.grad, expected, rtol=1e-4)


def test_training_warns_or_raises_when_something_is_not_finite():
    theta = jnp.array([0.5, 0.0])
    train = lambda estimator: nres.train(  # noqa: E731
        estimator, optax.sgd(0.0), theta, updates=5, key=KEY
    )
    culprit = r"(?=.*update 1\b)(?=.*worker \d\b)(?=.*step [03]\b)"  # in any order
    with pytest.warns(nres.NonFiniteWarning, match=culprit):
        history = train(fragile(phases="independent")).history
    assert (history.nonfinite > 0).all()
    assert np.isfinite(history.loss).all()
    with pytest.raises(nres.NonFiniteError, match=culprit):
        train(fragile(nonfinite="raise"))


def test_an_estimate_raises_when_something_is_not_finite():
    theta = jnp.array([0.5, 0.0])
    estimator = fragile(nonfinite="raise")
    state = state_at_step_0(estimator, theta, KEY)
    with raises_naming(nres.NonFiniteError, "update 1", "worker"):
        estimator.estimate(theta, state)
    with raises_naming(Exception, "worker"):
        jax.block_until_ready(jax.jit(estimator.estimate)(theta, state))
    good = jnp.array([9.0, 0.0])
    estimator.estimate(good, state_at_step_0(estimator, good, KEY))


def test_when_no_worker_is_finite():
    theta = jnp.array([-9.0, 0.0])
    estimator = fragile()
    estimate = estimator.estimate(theta, estimator.init(theta, KEY))
    assert int(estimate.info.nonfinite) == 8
    np.testing.assert_array_equal(estimate.grad, 0.0)
    assert np.isnan(estimate.loss)


class Table(nres.System):
    """A system that holds a large array."""

    data: jax.Array
    horizon: int = 6

    def init(self, theta, key):
        return jnp.zeros(())

    def step(self, state, theta, t, key):
        return state + theta[0], (state - self.data[t]) ** 2


def test_large_arrays_are_arguments_not_constants():
    estimator = nres.NRES(Table(jnp.arange(50_000.0)), workers=3, window=3, sigma=0.1)
    theta = jnp.ones(1)
    state = state_at_step_0(estimator, theta, KEY)
    lowered = eqx.filter_jit(computing.compute_estimate).lower(estimator, theta, state)
    text = lowered.lowered.as_text()
    assert "tensor<50000xf32>" in text  # an argument
    assert len(text) < 200_000  # and not written out


def test_a_schedule_that_reaches_zero_is_reported():
    sigma = lambda update: jnp.where(update < 2, 0.1, 0.0)  # noqa: E731
    estimator = nres.PES(Wave(), workers=4, window=5, sigma=sigma)
    with pytest.warns(nres.NonFiniteWarning, match="update 3"):
        result = nres.train(estimator, optax.sgd(0.1), THETA[Wave], updates=5, key=KEY)
    np.testing.assert_array_equal(result.history.nonfinite, [0, 0, 4, 4, 4])
    assert np.isfinite(result.theta).all()


@pytest.mark.parametrize(("eval_every", "last"), [(None, 1000), (60, 250), (61, 250), (7, 40)])
def test_bundles_of_updates_depend_on_the_update_number_alone(eval_every, last, monkeypatch):
    """A run that is resumed on an accelerator therefore uses the same compiled code."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    estimator = nres.NRES(Wave(), workers=1, window=5, sigma=0.1)

    chunks = Chunks(estimator, eval_every, last)

    def sizes(update):
        """The size of the bundle that each update is in, by the update the bundle begins with."""
        made = {}
        while update < last:
            size, most = chunks.next(update)
            assert most % size == 0
            assert eval_every is None or update // eval_every == (update + most - 1) // eval_every
            made |= dict.fromkeys(range(update, update + most, size), size)
            update += most
        assert update == last
        return made

    whole = sizes(0)
    assert set(whole.values()) == chunks.bundles(0)
    assert max(whole.values()) > 1
    for first in whole:  # wherever a call may have ended
        assert sizes(first) == {u: size for u, size in whole.items() if u >= first}


def test_tables_and_callbacks_in_schedules_are_compared():
    """Tables in compiled functions, and callbacks, are not in the text of a program."""
    theta = jnp.array([9.0, 0.0])

    def contribution(sigma):
        estimator = nres.NRES(Fragile(), workers=3, window=3, sigma=sigma)
        state = state_at_step_0(estimator, theta, KEY)
        return estimator.estimate(theta, state).state.carry.noise.sigma

    for scale in (0.1, 0.5):
        table = jnp.full(3, scale)
        np.testing.assert_allclose(contribution(jax.jit(lambda u, t=table: t[u])), scale)
        found = contribution(
            lambda u, scale=scale: jax.pure_callback(
                lambda u: np.float32(scale), jax.ShapeDtypeStruct((), jnp.float32), u
            )
        )
        np.testing.assert_allclose(found, scale)


@pytest.mark.parametrize(("size", "inputs"), [(MOST_BAKED, 0), (MOST_BAKED + 1, 1)])
def test_only_large_arrays_of_baked_functions_are_inputs(size, inputs):
    def baked(number, scale):
        table = number * jnp.arange(size, dtype=float)
        return bake(lambda x: (scale * x, table * x), 1.0)

    one, two = baked(2.0, 3.0), baked(2.0, 3.0)
    assert len(jax.tree.leaves(one)) == inputs
    assert jax.tree.structure(one) == jax.tree.structure(two)
    assert jax.tree.structure(one) != jax.tree.structure(baked(2.0, 4.0))
    other = baked(5.0, 3.0)
    assert (jax.tree.structure(one) == jax.tree.structure(other)) == bool(inputs)
    for made, number in ((one, 2.0), (other, 5.0)):
        scaled, table = jax.jit(lambda made, x: made(x))(made, 0.5)
        assert scaled == 1.5
        np.testing.assert_allclose(table[-1], 0.5 * number * (size - 1))


def test_baked_functions_may_have_keys():
    key = jax.random.key(7)
    made = bake(lambda x: x * jax.random.normal(key), 1.0)
    np.testing.assert_allclose(made(2.0), 2 * jax.random.normal(key))


def test_a_state_of_another_optimizer_is_refused():
    result = run(updates=1)
    for optimizer in (optax.rmsprop(0.1), optax.adam(0.1)):
        with as_users_run(), raises_naming(ValueError, "optimizer"):
            nres.train(make(), optimizer, result.theta, updates=1, state=result.state)


def test_schedules_that_cannot_be_traced_are_refused():
    for sigma in (lambda u: 0.1 if u < 3 else 0.2, jnp.array(-1.0), jnp.array(jnp.nan)):
        with raises_naming(ValueError, "sigma"):
            nres.NRES(Wave(), workers=3, window=5, sigma=sigma)
    for sigma in (lambda u: jnp.ones(3), jnp.ones(3)):
        estimator = nres.NRES(Wave(), workers=3, window=5, sigma=sigma)
        with raises_naming(ValueError, "sigma", "(3,)", "(2,)"):
            estimator.init(THETA[Wave], KEY)
    with raises_naming((ValueError, TypeError), "period"):
        nres.GPES(Wave(), workers=3, window=5, sigma=0.1, period=jnp.array(0))


class LongSteps(NumpyPool):
    """A pool that counts its steps in 64 bits, as NumPy does by default."""

    def advance(self, *arguments, **options):
        window = super().advance(*arguments, **options)
        return nres.Window(window.state, window.loss, window.steps.astype(np.int64))


def test_steps_may_have_64_bits(x64):
    def train(pool):
        estimator = nres.NRES(pool(Wave()), workers=2, window=5, sigma=0.1)
        return nres.train(estimator, optax.sgd(0.1), THETA[Wave], updates=2, key=KEY).history

    with as_users_run():
        one, other = train(NumpyPool), train(LongSteps)
    np.testing.assert_array_equal(one.loss, other.loss)
    np.testing.assert_array_equal(one.total_steps, other.total_steps)
