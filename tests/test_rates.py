"""Learning-rate schedules, warm-up and clipping of runs."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import nres
from helpers import THETA, Wave, as_users_run, create_run, invoke, raises_naming
from nres import runs
from nres.cli.compare import _updates
from nres.runs.rates import learning_rate, parse_rate
from nres.runs.settings import Settings

UPDATES = np.arange(70)


def rates(text, warmup=None):
    rate = learning_rate(text, warmup)
    return [float(rate(jnp.int32(update))) for update in UPDATES]


@pytest.mark.parametrize("warmup", [None, 10])
def test_a_cosine_is_that_of_optax(warmup):
    theirs = optax.warmup_cosine_decay_schedule(0.0, 1e-3, warmup or 0, 50, 1e-5)
    with as_users_run():
        expected = [theirs(update) for update in UPDATES]
    found = rates("cosine:1e-3:1e-5:50", warmup)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-9)


def test_a_warmup_scales_the_rate_linearly():
    expected = np.where(UPDATES < 30, 0.5, 0.25) * np.minimum(UPDATES / 20, 1)
    np.testing.assert_allclose(rates("0.5,30:0.25", 20), expected, rtol=1e-6)
    np.testing.assert_allclose(rates("0.5", 1), [0, *[0.5] * 69])


def test_a_rate_without_schedule_is_a_number():
    assert learning_rate("0.5", None) == 0.5
    assert learning_rate("0.5,3:1.0", None) == nres.Piecewise(0.5, ((3, 1.0),))


@pytest.mark.parametrize(
    "text",
    [
        "cosine",
        "cosine:1",
        "cosine:1:x",
        "cosine:1:0.1:5:6",
        "cosine:1:0.1:2.5",
        "cosine:1:0.1:0",
        "cosine:0.1:1",
        "cosine:1:-1",
        "cosine:nan:0",
        "cosine:inf:0",
        "cosin:1:0.1",
        "constant",
    ],
)
def test_a_wrong_schedule_is_refused(text):
    with raises_naming(ValueError, text):
        parse_rate(text)
    with raises_naming(runs.SettingsError, "lr", text):
        runs.resolve("lorenz", "nres", lr=text)


def test_a_schedule_records_its_length():
    settings = runs.resolve("lorenz", "nres", lr="cosine:1e-3:0", updates=50, warmup=5)
    assert settings.lr == "cosine:0.001:0.0:50"
    assert Settings.from_json(settings.to_json() | {"updates": 90}).lr == settings.lr
    assert runs.resolve("lorenz", "nres", lr="cosine:1:0.1:7").lr == "cosine:1.0:0.1:7"
    with raises_naming(runs.SettingsError, "warmup", 50):
        runs.resolve("lorenz", "nres", lr="cosine:1e-3:0", updates=50, warmup=50)
    with raises_naming(runs.SettingsError, "cosine:1.0:0.0", "budget_seconds"):
        runs.resolve("lorenz", "nres", lr="cosine:1:0", budget_seconds=1.0)
    with raises_naming(runs.SettingsError, "sigma", "cosine:1:0.1"):
        runs.resolve("lorenz", "nres", sigma="cosine:1:0.1")


@pytest.mark.parametrize("lr", ["1e-3", "1e-3,20:1e-4", "cosine:1e-3:0"])
def test_a_warmup_is_shorter_than_the_run(lr):
    assert runs.resolve("lorenz", "nres", lr=lr, updates=50, warmup=49).warmup == 49
    with raises_naming(runs.SettingsError, "warmup", 50):
        runs.resolve("lorenz", "nres", lr=lr, updates=50, warmup=50)
    if "cosine" not in lr:  # nobody knows how many updates fit into a budget
        runs.resolve("lorenz", "nres", lr=lr, updates=50, warmup=50, budget_seconds=1.0)


def test_a_budget_of_steps_may_exceed_the_updates_of_the_preset():
    usual = runs.resolve("lorenz", "nres", eval_every=1)
    own = {"lr": "cosine:1e-3:0", "warmup": usual.updates + 1}
    each = 2 * usual.workers * usual.window  # two members
    made = _updates("lorenz", "nres", own, None, each * (usual.updates + 5.0), None)
    assert made == usual.updates + 5


@pytest.mark.parametrize(("norm", "scale"), [(0.5, 0.1), (50.0, 1.0)])
def test_gradients_are_clipped_by_their_global_norm(norm, scale):
    settings = runs.resolve("lorenz", "nres", lr=1, clip=norm)
    grads = {"a": jnp.array([3.0, 0.0]), "b": jnp.array(4.0)}  # of norm 5
    optimizer = runs.build(settings).optimizer
    with as_users_run():
        changes, _ = optimizer.update(grads, optimizer.init(grads), grads)
    np.testing.assert_allclose(changes["a"], [-3 * scale, 0], rtol=1e-6)
    np.testing.assert_allclose(changes["b"], -4 * scale, rtol=1e-6)


SCHEDULED = {"lr": "cosine:0.05:0.001", "warmup": 4, "clip": 0.5, "optimizer": "adam"}


@pytest.mark.slow
def test_a_resumed_or_extended_run_keeps_its_schedule(tmp_path):
    with as_users_run():
        whole = runs.execute(create_run(tmp_path / "whole", **SCHEDULED)).run
        half = create_run(tmp_path / "half", **SCHEDULED)
        runs.execute(half, callback=lambda progress: progress.state.update >= 10)
        runs.execute(runs.Run.open(half.path))
        np.testing.assert_array_equal(half.theta()["velocity"], whole.theta()["velocity"])
        runs.execute(runs.Run.open(half.path), updates=24)
        changes = SCHEDULED | {"lr": "cosine:0.05:0.001:20", "updates": 24}
        longer = runs.execute(create_run(tmp_path / "longer", **changes)).run
    extended = runs.Run.open(half.path)
    assert (extended.settings.updates, extended.settings.lr) == (24, "cosine:0.05:0.001:20")
    np.testing.assert_array_equal(extended.theta()["velocity"], longer.theta()["velocity"])


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_settings_of_the_optimizer_on_the_command_line(tmp_path):
    short = ["--set", "horizon=40", "--window", 10, "--updates", 2, "--workers", 4, "--quiet"]
    given = ["--lr", "cosine:1e-5:1e-6", "--warmup", 1, "--clip", 10]
    result = invoke("train", "lorenz", *short, *given, "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    settings = runs.Run.open(tmp_path / "run").settings
    assert (settings.lr, settings.warmup, settings.clip) == ("cosine:1e-05:1e-06:2", 1, 10.0)


def test_other_numbers_of_a_schedule_do_not_compile(compilations):
    def trained(lr, warmup, clip):
        settings = runs.resolve("lorenz", "nres", lr=lr, warmup=warmup, clip=clip)
        estimator = nres.NRES(Wave(), workers=3, window=5, sigma=0.1)
        optimizer = runs.components.make_optimizer(settings)
        key = jax.random.key(0)
        return nres.train(estimator, optimizer, THETA[Wave], updates=3, key=key).theta

    with as_users_run():
        first = trained("cosine:1e-2:1e-3:40", 2, 0.1)
        compilations.clear()
        second = trained("cosine:2e-2:1e-4:50", 3, 0.2)
    assert not compilations
    assert not np.allclose(first, second)
