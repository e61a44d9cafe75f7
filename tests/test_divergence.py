"""Runs that diverge, runs that only seem to, and a sigma that changes the loss."""

import warnings
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import nres
from helpers import THETA, Wave, as_file, as_users_run, invoke
from nres import diagnostics, runs
from nres.cli.outcome import large_noise
from nres.log import Log
from nres.workers import Steps
from numpy_pool import NumpyPool

KEY = jax.random.key(8)
WHERE = ("first_nonfinite", "first_nonfinite_start", "unused_total", "unused_sequential")
pytestmark = pytest.mark.usefixtures("undrawn")


class Cliff(nres.System):
    """A system whose loss is finite up to an edge and undefined beyond."""

    horizon: int = 6

    def init(self, theta, key):
        return jnp.zeros(())

    def step(self, state, theta, t, key):
        return state, jnp.sqrt(1 - theta[0]) + 0 * state

    def initial_theta(self, key):
        return jnp.zeros(1)


class Broken(NumpyPool):
    """A simulator whose losses are never finite."""

    def __init__(self):
        super().__init__(Wave())

    def advance(self, *arguments):
        window = super().advance(*arguments)
        return nres.Window(window.state, window.loss * np.nan, window.steps)


@pytest.mark.parametrize(("pool", "theta"), [(Cliff, jnp.zeros(1)), (Broken, THETA[Wave])])
def test_training_stops_when_nothing_is_finite(pool, theta):
    """The gradient leads over the edge, and there is no way back."""
    estimator = nres.NRES(pool(), workers=4, window=3, sigma=0.1)
    with as_users_run(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = nres.train(estimator, optax.sgd(1e3), theta, updates=10**6, key=KEY)
    assert result.diverged
    assert not result.interrupted
    lost = result.history.nonfinite == 4
    assert lost[-20:].all()
    assert result.state.update < 10**6
    told = [str(w.message) for w in caught if issubclass(w.category, nres.NonFiniteWarning)]
    assert any("no worker" in text for text in told)
    assert "diverged" in repr(result)


@pytest.mark.parametrize("calls", [1, 2, 50])
def test_the_size_of_calls_does_not_decide_whether_a_run_diverges(calls):
    """The clock decides how many updates a call of compiled code makes."""
    estimator = nres.NRES(Broken(), workers=4, window=3, sigma=0.1)
    for length in (19, 20):
        lost = np.arange(50) % 30 < length
        rows = {
            "loss": np.where(lost, np.nan, 1.0),
            "grad_norm": np.ones(len(lost)),
            "nonfinite": np.where(lost, 4, 0),
            **{name: np.zeros(len(lost)) for name in diagnostics.columns(estimator.windows)},
            **{name: np.zeros(len(lost), int) for name in WHERE},
        }
        log = Log(estimator, Steps(0, 0), 0, Steps(0, 0), 0.0)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for part in np.array_split(np.arange(len(lost)), calls):
                log.add({name: column[part] for name, column in rows.items()}, 1.0)
        assert log.diverged == (length == 20)
        assert sum("consecutive" in str(w.message) for w in caught) == log.diverged


@pytest.mark.slow
def test_a_diverged_run_keeps_its_last_good_checkpoint(tmp_path):
    name = as_file(Cliff, tmp_path / "cliff.py")
    out = tmp_path / "run"
    options = ["--sigma", 0.1, "--lr", 0.5, "--optimizer", "sgd", "--workers", 4, "--window", 3]
    options += ["--updates", 100_000, "--eval-every", 100_000, "--checkpoint-every", 1]
    options += ["--log-every", 1]
    result = invoke("train", name, *options, "--out", out)
    assert result.exit_code == 1
    assert f"--from {out}" in result.stderr
    with as_users_run():
        run = runs.Run.open(out)
        made, theta = run.newest()
    assert np.isfinite(theta).all()
    metrics = run.metrics
    (at,) = np.flatnonzero(metrics["update"] == made)
    assert metrics["nonfinite"][at] < 4 or made == 0
    assert metrics["update"][-1] > made


@pytest.mark.slow
def test_seeds_that_diverge_are_named(tmp_path):
    name = as_file(Cliff, tmp_path / "cliff.py")
    options = ["--sigma", 0.1, "--lr", 10, "--optimizer", "sgd", "--workers", 4, "--updates", 60]
    result = invoke("train", name, *options, "--seeds", 2, "--out", tmp_path / "both")
    assert result.exit_code == 1
    for seed in range(2):  # the first does not stop the second
        assert str(tmp_path / "both" / f"nres-{seed}") in result.stderr


class Moody(nres.System):
    """A system whose loss is not finite in about half of its episodes."""

    horizon: int = 4

    def init(self, theta, key):
        return jax.random.bernoulli(key).astype(jnp.float32)

    def step(self, state, theta, t, key):
        return state, jnp.where(state > 0, jnp.nan, theta[0] ** 2)

    def initial_theta(self, key):
        return jnp.ones(1)


@pytest.mark.slow
def test_one_update_without_a_finite_worker_is_no_divergence(tmp_path):
    name = as_file(Moody, tmp_path / "moody.py")
    options = ["--method", "fulles", "--sigma", 0.1, "--lr", 0.01, "--workers", 1, "--updates", 7]
    for seed in range(4):
        out = tmp_path / str(seed)
        result = invoke("train", name, *options, "--seed", seed, "--out", out)
        assert result.exit_code == 0, result.output
        assert runs.Run.open(out).updates_made() == 7


class Steep(nres.System):
    """A system whose loss is much larger with noise than without."""

    horizon: int = 10

    def init(self, theta, key):
        return jnp.zeros(())

    def step(self, state, theta, t, key):
        return state, jnp.sum(theta**2) + 1e-3

    def initial_theta(self, key):
        return jnp.ones(3)


def test_losses_of_different_rewards_are_not_compared():
    metrics = {"eval/loss": np.array([-0.9]), "loss": np.array([0.1])}
    for options, told in (({}, 1), ({"shift": 1.0}, 0), ({"test_horizon": 50}, 0)):
        settings = SimpleNamespace(sigma="0.1", options=options)
        run: Any = SimpleNamespace(settings=settings, metrics=metrics)
        assert len(large_noise(run)) == told


@pytest.mark.slow
def test_a_sigma_that_multiplies_the_loss_is_reported(tmp_path):
    name = as_file(Steep, tmp_path / "steep.py")
    options = ["--lr", 0.05, "--optimizer", "sgd", "--updates", 60, "--workers", 8]
    for sigma, told in ((1.0, True), (0.001, False)):
        out = tmp_path / str(sigma)
        result = invoke("train", name, *options, "--sigma", sigma, "--out", out)
        assert result.exit_code == 0, result.output
        assert "training loss (with noise): " in result.output
        assert "loss (without noise): " in result.output
        assert (f"sigma = {sigma} makes the loss" in result.output) == told
        assert (f"sigma = {sigma} makes the loss" in invoke("show", out).output) == told
