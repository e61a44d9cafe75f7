"""Automatic settings: `tune`, `nres train --auto` and the command that `nres advise` prints."""

import json
import shlex

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nres
from helpers import BOUNCER, as_users_run, invoke, raises_naming, slow
from nres import runs
from nres.pools.jax import as_pool
from nres.tuning.probes import DISTANCES, SIGMAS, Prober

pytestmark = pytest.mark.usefixtures("as_a_user")

KEY = jax.random.key(0)
BUDGET = 40_000
AUTO = [
    "train",
    BOUNCER,
    "--set",
    "horizon=30",
    "--auto",
    "--total-steps",
    3000,
    "--eval-every",
    10,
]


@pytest.fixture
def as_a_user():
    """Optax's Adam does not run under the strict settings of the tests."""
    with as_users_run():
        yield


class Valley(nres.System):
    """A quadratic loss around a point at a given distance, which may bend unequally."""

    scale: float = 1.0
    bends: tuple[float, ...] = (1.0, 1.0, 1.0)
    horizon: int = 8

    def init(self, theta, key):
        return jnp.zeros(())

    def step(self, state, theta, t, key):
        away = theta / jnp.asarray(self.scale, theta.dtype) - 1
        return state, jnp.sum(jnp.asarray(self.bends, theta.dtype) * away**2)


class Flat(Valley):
    """A loss that does not depend on the parameters."""

    def step(self, state, theta, t, key):
        return state, jnp.zeros(())


def start(offset=0.0):
    return jnp.full(3, offset, jnp.float32)


@pytest.mark.parametrize(
    ("scale", "bends"),
    [
        (1.0, (1.0, 1.0, 1.0)),
        *(slow(10.0**k, (1.0, 1.0, 1.0)) for k in (-3, -2, -1, 1, 2, 3)),
        *(slow(10.0**k, (1.0, 10.0, 100.0)) for k in (-3, 0, 3)),
    ],
)
def test_any_scale_is_found(scale, bends):
    """From zeros, nothing but the trials tells how far away the minimum is."""
    system = Valley(scale, bends)
    tuned = nres.tune(system, start(), total_steps=BUDGET, key=KEY)
    assert scale / 30 <= tuned.sigma <= scale
    result = nres.train(
        tuned.estimator, tuned.optimizer, tuned.theta, updates=tuned.updates, key=KEY
    )
    first = sum(bends)
    assert nres.evaluate(system, result.theta, KEY).loss < 0.01 * first
    used = tuned.steps.total + result.state.steps.total
    assert 0.9 * BUDGET < used <= BUDGET
    assert tuned.steps.total < 0.2 * BUDGET
    measured = [*tuned.probes, *tuned.trials]
    assert tuned.steps.total == sum(one.steps.total for one in measured) + 8  # the loss before
    sigma, rates, sizes = tuned.reasons
    for sentence, values in [
        (sigma, (tuned.sigma,)),
        (rates, tuned.rates),
        (sizes, (tuned.workers, tuned.window, tuned.updates, tuned.steps.total)),
    ]:
        for value in values:
            assert f"{value:g}" in sentence or str(value) in sentence


def test_given_settings_are_kept():
    given = {"sigma": 0.3, "rate": 0.05, "workers": 7, "window": 3}
    tuned = nres.tune(Valley(), start(), total_steps=BUDGET, key=KEY, **given)
    assert (tuned.sigma, tuned.rates[0], tuned.workers, tuned.window) == tuple(given.values())
    assert (tuned.estimator.workers, tuned.estimator.window) == (7, 3)
    assert float(tuned.estimator.sigma) == pytest.approx(0.3)
    assert tuned.steps == (0, 0)
    np.testing.assert_array_equal(tuned.theta, start())


def test_budgets():
    """Sequential steps bound the windows, and both together determine the workers."""
    given = {"sigma": 0.1, "key": KEY}
    long = Valley(horizon=1000)
    both = nres.tune(long, start(), total_steps=4e7, sequential_steps=1e5, **given)
    assert (both.workers, both.window) == (200, 10)
    assert both.updates == (1e5 - 990) // 10
    alone = nres.tune(long, start(), sequential_steps=5e4, **given)
    assert (alone.window, alone.workers) == (50, 40)
    full = nres.tune(long, start(), total_steps=1e6, method="fulles", **given)
    assert (full.window, full.workers, full.updates) == (1000, 2, 250)
    timed = nres.tune(Valley(), start(), seconds=100.0, **given)
    assert timed.updates > 1


@pytest.mark.parametrize("size", [3, 1000])
@pytest.mark.parametrize("episodes", [30.0, 60.0, 100.0, 300.0, 1000.0, 3000.0])
def test_probes_stay_within_their_share(size, episodes):
    theta = jnp.zeros(size, jnp.float32)
    prober = Prober(as_pool(Valley()), theta, KEY, episodes, np.inf, nres.Gaussian(), print)
    each = 2 * prober.pairs + len(DISTANCES) * len(prober.keys)
    assert len(SIGMAS) * each * prober.rounds <= episodes


@pytest.mark.parametrize(
    ("system", "given", "culprits"),
    [
        (Valley(), {}, ["total_steps", "seconds"]),
        (Valley(), {"total_steps": 1e6, "seconds": 1.0}, ["seconds=1.0"]),
        (Valley(), {"total_steps": 100}, ["total_steps", 800, 100]),
        (Valley(), {"sequential_steps": 100}, ["sequential_steps", 160]),
        (Valley(), {"seconds": -1.0}, ["seconds", -1.0]),
        (Valley(), {"total_steps": 1e6, "method": "bptt"}, ["method", "bptt"]),
        (Valley(), {"total_steps": 1e6, "method": "fulles", "window": 2}, ["fulles", "window"]),
        (Valley(), {"total_steps": 1e6, "sigma": -1.0}, ["sigma", -1.0]),
        (Valley(), {"total_steps": 1e6, "window": 9}, ["window", 9]),
        (Valley(), {"total_steps": 1000, "sigma": 0.1, "workers": 1000}, ["budget", "workers"]),
        (Flat(), {"total_steps": 1e4}, ["sigma", "theta"]),
    ],
)
def test_bad_input_is_refused(system, given, culprits):
    with raises_naming(ValueError, *culprits):
        nres.tune(system, start(), key=KEY, **given)


@pytest.fixture(scope="module")
def automatic(tmp_path_factory):
    path = tmp_path_factory.mktemp("auto") / "run"
    result = invoke(*AUTO, "--out", path, "--workers", 3, "--checkpoint-every", 5)
    assert result.exit_code == 0, result.output
    return path, result.output


def test_a_run_records_what_was_chosen(automatic):
    path, output = automatic
    run = runs.Run.open(path)
    record = run.config["tuning"]
    for reason in record["reasons"]:
        assert reason in output
    assert run.settings.workers == 3
    chosen = record["chosen"]
    assert {"sigma", "lr", "window", "updates"} == chosen.keys()
    assert all(str(getattr(run.settings, name)).startswith(str(v)) for name, v in chosen.items())
    assert run.settings.optimizer == "adam"
    metrics = run.metrics
    assert metrics["total_steps"][0] > record["steps"][0] > 0
    assert metrics["sequential_steps"][0] > record["steps"][1] > 0
    assert 0.8 * 3000 < metrics["total_steps"][-1] <= 3000


@pytest.mark.slow
def test_a_run_resumes_exactly_without_tuning(automatic, tmp_path, monkeypatch):
    path, _ = automatic
    whole = runs.Run.open(path)
    copy = runs.Run.create(
        tmp_path / "copy", whole.settings, whole.components, tuning=whole.config["tuning"]
    )
    runs.execute(copy, callback=lambda progress: progress.state.update >= 5)
    assert 5 <= copy.updates_made() < whole.settings.updates
    monkeypatch.setattr("nres.runs.auto.tune", None)
    result = invoke("resume", tmp_path / "copy")
    assert result.exit_code == 0, result.output
    again = runs.Run.open(tmp_path / "copy")
    assert again.settings == whole.settings
    for one, other in zip(*map(jax.tree.leaves, (again.theta(), whole.theta())), strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(again.metrics["total_steps"], whole.metrics["total_steps"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--auto", "--seeds", 2], "--seeds"),
        (["--total-steps", 1e6], "--auto"),
        (["--auto", "--method", "bptt"], "bptt"),
        (["--auto", "--optimizer", "sgd"], "sgd"),
        (["--auto", "--total-steps", 10], "total_steps"),
        (["--auto", "--seconds", 3, "--total-steps", 1e6], "--seconds"),
        (["--auto", "--seconds", -3], "--seconds"),
    ],
)
def test_mistakes_are_told_before_anything_is_written(arguments, words, tmp_path):
    result = invoke("train", BOUNCER, *arguments, "--out", tmp_path / "run")
    assert result.exit_code in (1, 2)
    assert words in result.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_the_command_of_advice_runs_as_it_is(tmp_path):
    budget = ["--total-steps", 2e4, "--sequential-steps", 1e3]
    advice = invoke("advise", BOUNCER, *budget, "--set", "horizon=30", "--out", tmp_path / "advice")
    assert advice.exit_code == 0, advice.output
    program, *command = shlex.split(advice.output.splitlines()[0])
    assert program == "nres"
    result = invoke(*command, "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    settings = runs.Run.open(tmp_path / "run").settings
    recommended = json.loads((tmp_path / "advice" / "advice.json").read_text())["recommended"]
    assert settings.options == {"horizon": 30}
    assert recommended["lr"].startswith("cosine:")
    for name in ("sigma", "workers", "window", "updates", "optimizer", "noise"):
        assert str(getattr(settings, name)) == str(recommended[name])
    last = runs.Run.open(tmp_path / "run").metrics
    assert last["total_steps"][-1] <= 2e4
    assert last["sequential_steps"][-1] <= 1e3
