"""Several seeds in one call: each equals a run of its own, and the history has mean and spread."""

import os
import signal

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import nres
from helpers import THETA, Faller, Wave, chance, raises_naming, slow
from numpy_pool import NumpyPool
from table import ESTIMATORS

KEY = jax.random.key(3)
OPTIMIZER = optax.sgd(0.02, momentum=0.9)
WHOLE = ("update", "total_steps", "sequential_steps", "nonfinite")


def make(pool=None, workers=4, **options):
    return nres.NRES(pool or Wave(), workers=workers, window=3, sigma=0.1, **options)


def train(estimator, seeds=3, theta=THETA[Wave], **options):
    options = {"updates": 7, "key": KEY} | options
    return nres.train(estimator, OPTIMIZER, theta, seeds=seeds, **options)


def evaluation(theta):
    return {"first": theta[0], "sum": theta.sum()}


def assert_equals_single_runs(result, estimator, theta=THETA[Wave], **options):
    for seed, history in enumerate(result.history):
        options |= {"seeds": None, "key": jax.random.fold_in(KEY, seed)}
        single = train(estimator, theta=theta, **options)
        np.testing.assert_allclose(result.theta[seed], single.theta, rtol=1e-5)
        np.testing.assert_allclose(history.loss, single.history.loss, rtol=1e-5)
        np.testing.assert_allclose(history.grad_norm, single.history.grad_norm, rtol=1e-4)
        for name in WHOLE:
            np.testing.assert_array_equal(getattr(history, name), getattr(single.history, name))
        assert history.unlock_steps == single.history.unlock_steps
        np.testing.assert_array_equal(history.eval_update, single.history.eval_update)
        for name, values in single.history.evals.items():
            np.testing.assert_allclose(history.evals[name], values, rtol=1e-5)


@pytest.mark.parametrize("system", [slow(Wave), Faller])
def test_each_seed_equals_a_run_of_its_own(system):
    estimator, theta = make(system()), THETA[system]
    assert estimator.vectorisable
    result = train(estimator, theta=theta, eval_fn=evaluation, eval_every=3)
    assert result.theta.shape == (3, 2)
    assert len(np.unique(result.theta, axis=0)) == 3
    assert_equals_single_runs(result, estimator, theta, eval_fn=evaluation, eval_every=3)


@pytest.mark.slow
@pytest.mark.parametrize("name", ESTIMATORS)
def test_seeds_of_every_estimator(name):
    estimator = ESTIMATORS[name](Wave())
    assert_equals_single_runs(train(estimator, seeds=2, updates=4), estimator, updates=4)


def on_two_devices():
    return make(placement=nres.placement.Devices(jax.make_mesh((2,), ("workers",))))


@pytest.mark.parametrize(
    "make_estimator",
    [lambda: make(NumpyPool(Wave())), slow(on_two_devices)],
)
def test_seeds_that_cannot_be_vectorised_run_one_after_another(make_estimator):
    estimator = make_estimator()
    assert not estimator.vectorisable
    result = train(estimator, seeds=2, eval_fn=evaluation, eval_every=4)
    assert_equals_single_runs(result, make(), eval_fn=evaluation, eval_every=4)
    assert isinstance(result, nres.SeedsResult)


def test_seeds_are_compiled_once(compilations):
    estimator, other = make(workers=5), THETA[Wave] + 1
    compilations.clear()
    train(estimator, eval_fn=evaluation, eval_every=3)
    programs = [name for name in compilations if "many_updates" in name]
    assert len(programs) == 1
    compilations.clear()
    train(estimator, theta=other, updates=11, eval_fn=evaluation, eval_every=3)
    assert not compilations


def test_mean_and_spread():
    history = train(make(), eval_fn=evaluation, eval_every=3).history
    losses = np.stack([run.loss for run in history])
    np.testing.assert_array_equal(history.loss, losses)
    np.testing.assert_allclose(history.mean.loss, losses.sum(axis=0) / 3, rtol=1e-6)
    deviations = losses - losses.mean(axis=0)
    np.testing.assert_allclose(
        history.std.loss, np.sqrt((deviations**2).sum(axis=0) / 2), rtol=1e-4
    )
    assert history.total_steps.dtype.kind == "i"
    np.testing.assert_array_equal(history.eval_update, [0, 3, 6, 7])
    assert history.evals["sum"].shape == (3, 4)
    np.testing.assert_allclose(history.std.evals["first"][0], 0.0, atol=1e-7)
    for text in (repr(history), history._repr_html_(), history.summary()):
        assert f"{history.mean.loss[-1]:.4g} ± {history.std.loss[-1]:.2g}" in text
    assert (len(history), history[-1] is history.runs[2]) == (3, True)


def test_a_history_of_seeds_is_plotted_and_becomes_a_table():
    pytest.importorskip("pandas")
    from matplotlib.figure import Figure

    history = train(make(), eval_fn=lambda theta: theta[0], eval_every=3).history
    axes = history.plot("total_steps", ax=Figure().subplots())
    np.testing.assert_array_equal(axes.lines[0].get_xdata(), history.mean.total_steps)
    np.testing.assert_allclose(axes.lines[1].get_ydata(), history.mean.evals["eval"])
    band = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == pytest.approx((history.loss.min(), history.loss.max()))

    table = history.to_dataframe()
    assert table.columns[0] == "seed"
    second = table[table["seed"] == 1].drop(columns="seed")
    assert second.equals(history[1].to_dataframe())
    assert len(table) == 3 * 8  # an evaluation before the first update, and seven updates


class Ridge(nres.System):
    """Parameters leave a ridge on either side: one is flat, and on the other nothing is finite."""

    horizon: int = 6

    def init(self, theta, key):
        return jnp.zeros((), theta.dtype)

    def step(self, state, theta, t, key):
        push = 0.1 * chance(key, theta.dtype) * theta[0]
        return state, jnp.where(theta[0] > 1.0, jnp.nan, push - jnp.tanh(theta[0] ** 2))


@pytest.mark.slow
def test_a_seed_that_diverges_does_not_stop_the_others():
    estimator = nres.NRES(Ridge(), workers=4, window=6, sigma=0.1)
    optimizer, theta = optax.sgd(1.0, momentum=0.9), jnp.zeros(1)
    options = {"updates": 90, "eval_fn": lambda theta: theta[0], "eval_every": 10}
    seen = []

    class Recorder:
        def phase(self, name):
            pass

        def __call__(self, progress):
            seen.append((progress.state.update, np.array(progress.theta)[:, 0]))

    with pytest.warns(nres.NonFiniteWarning) as caught:
        result = nres.train(
            estimator, optimizer, theta, key=KEY, seeds=4, progress=Recorder(), **options
        )
    lost = np.flatnonzero(result.diverged)
    assert 0 < len(lost) < 4
    text = " ".join(str(warning.message) for warning in caught)
    for seed, history in enumerate(result.history):
        stopped = f"seed {seed}: training stopped at update {len(history.update)}" in text
        assert stopped == (seed in lost)
        assert history.eval_update[-1] == len(history.update)
        after = [theta[seed] for update, theta in seen if update >= len(history.update)]
        np.testing.assert_array_equal(after, float(result.theta[seed, 0]))
        if seed in lost:
            assert len(history.update) < 90
            assert len(after) > 1
            assert np.isnan(result.history.loss[seed, -1])
        else:
            assert len(history.update) == 90
            single = nres.train(
                estimator, optimizer, theta, key=jax.random.fold_in(KEY, seed), **options
            )
            np.testing.assert_allclose(result.theta[seed], single.theta, rtol=1e-4)
    assert np.isfinite(result.history.mean.loss[-1])
    assert f"{len(lost)} diverged" in repr(result)


def test_an_error_names_the_seed():
    estimator = nres.NRES(Ridge(), workers=4, window=6, sigma=0.1, nonfinite="raise")
    with raises_naming(nres.NonFiniteError, "seed 0", "update 1"):
        train(estimator, theta=jnp.array([9.0]))


class Interrupting:
    """A reporter that presses Ctrl-C after the first updates."""

    def phase(self, name):
        pass

    def __call__(self, progress):
        os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize(("pool", "seeds"), [(Wave, 3), (lambda: NumpyPool(Wave()), 1)])
def test_an_interrupt_returns_the_seeds_so_far(pool, seeds):
    result = train(make(pool()), updates=10**6, progress=Interrupting())
    assert result.interrupted
    assert result.theta.shape == (seeds, 2)
    assert 0 < len(result.history.update) < 10**6
    assert result.history.loss.shape == (seeds, len(result.history.update))


class InterruptingSetup:
    """A reporter that presses Ctrl-C while a seed is being set up."""

    def __init__(self, seed):
        self.left = seed

    def phase(self, name):
        if name == "compiling":
            if not self.left:
                raise KeyboardInterrupt
            self.left -= 1

    def __call__(self, progress):
        pass


def test_an_interrupt_during_setup_keeps_the_seeds_so_far():
    estimator = make(NumpyPool(Wave()))
    result = train(estimator, progress=InterruptingSetup(seed=1))
    assert result.interrupted
    assert result.history.loss.shape == (1, 7)
    with pytest.raises(KeyboardInterrupt):
        train(estimator, progress=InterruptingSetup(seed=0))


def test_one_seed_has_no_deviation():
    result = train(make(NumpyPool(Wave())), seeds=1)
    for text in (repr(result), result._repr_html_()):
        assert f"{result.history.loss[0, -1]:.4g}" in text
        assert "nan" not in text
        assert "±" not in text


@pytest.mark.parametrize(
    ("options", "kind", "culprits"),
    [
        ({"seeds": 0}, ValueError, ["seeds", "0"]),
        ({"seeds": 2.0}, TypeError, ["seeds", "2.0"]),
        ({"callback": print}, ValueError, ["callback", "seeds"]),
        ({"key": None}, ValueError, ["key"]),
        ({"seeds": 10**9, "estimator": make(workers=10**5)}, MemoryError, ["1,000,000,000 seeds"]),
    ],
)
def test_mistakes_are_named(options, kind, culprits):
    estimator = options.pop("estimator", None) or make()
    with raises_naming(kind, *culprits):
        train(estimator, **options)


def test_a_state_belongs_to_one_run():
    single = train(make(), seeds=None)
    with raises_naming(ValueError, "state", "seeds"):
        train(make(), key=None, state=single.state)


@pytest.mark.parametrize(("pool", "shown"), [(Wave, "2 seeds"), (None, "seed 1")])
def test_progress_of_seeds(pool, shown, capsys):
    train(make(pool() if pool else NumpyPool(Wave())), seeds=2, progress=True)
    output = capsys.readouterr().out
    assert shown in output
    assert "7/7" in output
