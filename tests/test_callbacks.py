"""Callbacks: early stopping, the best parameters, experiment trackers, several at once."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import nres
from helpers import Spiral, raises_naming, spiral_theta

KEY = jax.random.key(0)


def train(callback, updates=6, **options):
    estimator = nres.NRES(Spiral(), workers=2, window=4, sigma=0.1)
    return nres.train(
        estimator, optax.sgd(0.0), spiral_theta(), updates=updates, key=KEY,
        callback=callback, **({"eval_every": 1} | options),
    )  # fmt: skip


def evaluations(*values):
    """Return an `eval_fn` that returns these values one after another."""
    left = list(values)
    return lambda theta: left.pop(0)


@pytest.mark.parametrize(
    ("values", "options", "made"),
    [
        ([5, 4, 4, 4, 4, 4, 4], {"patience": 2}, 3),
        ([5, 4, 6, 3, 6, 6, 6], {"patience": 2}, 5),
        ([5, 4.9, 4.8, 4.7, 4.6, 4.5, 4.4], {"patience": 2, "min_delta": 0.5}, 2),
        ([1, 2, 3, 3, 3, 3, 3], {"patience": 3, "mode": "max"}, 5),
        ([math.nan, 2, math.nan, math.nan, 1, 1, 1], {"patience": 2}, 3),
        ([7, 6, 5, 4, 3, 2, 1], {"patience": 1}, 6),
    ],
)
def test_training_stops_when_evaluations_no_longer_improve(values, options, made):
    stopping = nres.callbacks.EarlyStopping(**options)
    result = train(stopping, eval_fn=evaluations(*values))
    assert result.state.update == made


def test_the_best_parameters_are_saved(tmp_path):
    best = nres.callbacks.SaveBest(tmp_path / "best.npz", "b", mode="max")
    values = ({"a": -i, "b": b} for i, b in enumerate([1, 5, 2, 5, 3]))
    saved = {}

    def keep(progress):
        saved[progress.state.update] = jax.tree.map(np.array, progress.theta)

    estimator = nres.NRES(Spiral(), workers=2, window=4, sigma=0.1)
    nres.train(
        estimator, optax.sgd(0.1), spiral_theta(), updates=4, key=KEY,
        eval_fn=lambda theta: next(values), eval_every=1, callback=[keep, best],
    )  # fmt: skip
    loaded = nres.load(tmp_path / "best.npz", like=spiral_theta())
    assert best.value == 5
    jax.tree.map(np.testing.assert_array_equal, loaded, saved[1])


def test_parameters_are_saved_and_loaded(tmp_path):
    theta = spiral_theta(jnp.bfloat16) | {"list": [jnp.arange(3.0)]}
    nres.save(tmp_path / "mine.npz", theta)
    loaded = nres.load(tmp_path / "mine.npz", jax.tree.map(jnp.zeros_like, theta))
    jax.tree.map(np.testing.assert_array_equal, loaded, theta)
    assert loaded["rate"].dtype == jnp.bfloat16
    with raises_naming(ValueError, "mine.npz", "theta['list'][0]", "[4]"):
        nres.load(tmp_path / "mine.npz", theta | {"list": [jnp.zeros(4)]})
    with raises_naming(ValueError, "mine.txt"):
        nres.save(tmp_path / "mine.txt", theta)


def test_all_callbacks_of_a_list_are_called_even_if_one_ends_the_run():
    called = []
    result = train([lambda p: True, called.append], updates=3)
    assert called
    assert result.interrupted


class Recorder(nres.callbacks.Tracker):
    def __init__(self):
        self.rows, self.closed = [], False

    def log(self, metrics, update):
        self.rows.append((update, metrics))

    def close(self, failed=False):
        self.closed = "failed" if failed else "finished"


def test_trackers_receive_means_sums_and_evaluations():
    with Recorder() as tracker:
        result = train(tracker, updates=3, eval_fn=lambda theta: {"x": 1.5, "y": math.inf})
    history, updates = result.history, [update for update, _ in tracker.rows]
    assert updates == [0, 1, 2, 3]
    assert tracker.closed == "finished"
    last = tracker.rows[-1][1]
    assert last["loss"] == pytest.approx(history.loss[-1])
    assert last["grad_norm"] == pytest.approx(history.grad_norm[-1])
    assert (last["total_steps"], last["nonfinite"]) == (history.total_steps[-1], 0)
    assert last["eval/x"] == 1.5
    assert "eval/y" not in last  # trackers refuse infinities


def test_trackers_hear_of_failures():
    with pytest.raises(ZeroDivisionError), Recorder() as tracker:
        train([tracker, lambda progress: 1 / 0], updates=1)
    assert tracker.closed == "failed"


def test_a_callback_may_stop_before_the_first_update():
    assert train(lambda progress: True, eval_fn=lambda theta: 1.0).state.update == 0


def test_stopping_watches_every_run_anew():
    stopping = nres.callbacks.EarlyStopping(patience=2)
    for _ in range(2):
        assert train(stopping, eval_fn=lambda theta: 1.0).state.update == 2


def test_nothing_to_watch_is_reported():
    with pytest.warns(UserWarning, match="eval_fn"):
        train(nres.callbacks.EarlyStopping(), updates=1)


def test_tensorboard(tmp_path):
    with nres.callbacks.TensorBoard(tmp_path) as tracker:
        train(tracker, updates=2)
    (file,) = tmp_path.iterdir()
    assert b"grad_norm" in file.read_bytes()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_weights_and_biases_offline(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    with nres.callbacks.WandB(
        "test", config={"sigma": 0.1}, init={"dir": str(tmp_path)}
    ) as tracker:
        result = train(tracker, updates=2, eval_fn=lambda theta: 3.0)
        summary = dict(tracker.run.summary)
    assert summary["loss"] == pytest.approx(result.history.loss[-1])
    assert summary["eval/eval"] == 3.0
    assert list(tmp_path.glob("wandb/offline-run-*/*.wandb"))
    assert wandb.run is None


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_mlflow_in_a_database(tmp_path, monkeypatch):
    pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    with nres.callbacks.MLflow("test", tracking_uri=uri, params={"sigma": 0.1}) as tracker:
        result = train(tracker, updates=2, eval_fn=lambda theta: 3.0)
    run = tracker._client.get_run(tracker.run_id)
    assert run.info.status == "FINISHED"
    assert run.data.params == {"sigma": "0.1"}
    assert run.data.metrics["loss"] == pytest.approx(result.history.loss[-1])
    history = tracker._client.get_metric_history(tracker.run_id, "eval/eval")
    assert [point.step for point in history] == [0, 1, 2]


@pytest.mark.parametrize(
    ("make", "culprit"),
    [
        (lambda: nres.callbacks.EarlyStopping(patience=0), "patience"),
        (lambda: nres.callbacks.EarlyStopping(min_delta=-1.0), "min_delta"),
        (lambda: nres.callbacks.SaveBest("x.npz", mode="least"), "mode"),
        (lambda: nres.callbacks.SaveBest("x.json"), "x.json"),
        (lambda: train(nres.callbacks.EarlyStopping("y"), eval_fn=lambda t: {"x": 1.0}), "'y'"),
    ],
)
def test_mistakes_are_named(make, culprit):
    with pytest.raises(ValueError, match=culprit):
        make()


def test_a_callback_that_cannot_be_called_is_refused():
    with pytest.raises(TypeError, match="callback"):
        train([print, "no function"])


def test_a_history_is_plotted_and_becomes_a_table(monkeypatch):
    pandas = pytest.importorskip("pandas")
    from matplotlib.figure import Figure

    result = train(None, updates=4, eval_every=2, eval_fn=lambda theta: {"test": 100.0})
    axes = result.history.plot("total_steps", ax=Figure().subplots())
    training, test = axes.lines
    np.testing.assert_array_equal(training.get_xdata(), result.history.total_steps)
    unlocked, *steps = test.get_xdata()
    assert unlocked == result.history.unlock_steps.total
    np.testing.assert_array_equal(steps, result.history.total_steps[[1, 3]])
    assert axes.get_xlabel() == "total unroll steps"
    with pytest.raises(ValueError, match="axis"):
        result.history.plot("hours")

    table = result.history.to_dataframe()
    assert list(table.index) == [0, 1, 2, 3, 4]
    np.testing.assert_array_equal(table["loss"][1:], result.history.loss)
    assert table["eval/test"].notna().tolist() == [True, False, True, False, True]
    assert isinstance(table, pandas.DataFrame)
