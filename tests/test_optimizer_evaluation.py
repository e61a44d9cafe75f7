"""Evaluation of optimizers: training, the choice of rates, speedups, folders and the command."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from typer.testing import CliRunner

from helpers import as_users_run, raises_naming
from nres import runs
from nres.cli import app
from nres.systems import learned_optimizer as lo
from nres.systems.learned_optimizer import evaluating, models
from nres.systems.learned_optimizer.evaluating import Contender, Outcome, adam_curve, speedup

KEY = jax.random.key(6)


def bowl(**options):
    """A task without chance, whose gradient descent has a closed form: p - 1 shrinks by 1 - 2r."""
    return lo.Task(
        lambda key: {"p": jnp.zeros(2)},
        lambda params, batch: jnp.sum((params["p"] - batch[0]) ** 2),
        np.ones((4, 2), np.float32),
        batch=1,
        **options,
    )


def test_the_best_rate_is_chosen_and_its_training_reported():
    contender = Contender(optax.sgd, (0.01, 0.1, 5.0), falls=False)
    with as_users_run():
        outcome = lo.evaluate_contender(bowl(), contender, steps=20, seeds=2, key=KEY)
    assert outcome.rate == pytest.approx(0.1)
    expected = 2 * 0.8 ** (2 * np.arange(20))
    np.testing.assert_allclose(outcome.curve, expected, rtol=1e-5)
    np.testing.assert_allclose(outcome.final, [expected[-1]] * 2, rtol=1e-5)
    np.testing.assert_allclose(outcome.held_out, [expected[-1] * 0.64] * 2, rtol=1e-5)


def test_rates_fall_to_zero():
    contender = Contender(optax.sgd, (0.1,))
    with as_users_run():
        outcome = lo.evaluate_contender(bowl(), contender, steps=10, seeds=1, key=KEY)
    rates = 0.1 * (1 - np.arange(10) / 10)
    distance = np.concatenate([[1.0], np.cumprod(1 - 2 * rates)])
    np.testing.assert_allclose(outcome.curve, 2 * distance[:10] ** 2, rtol=1e-5)
    np.testing.assert_allclose(outcome.held_out, [2 * distance[10] ** 2], rtol=1e-5)


def test_a_contender_that_always_diverges_is_infinitely_bad():
    contender = Contender(optax.sgd, (1e30,))
    with as_users_run():
        outcome = lo.evaluate_contender(bowl(), contender, steps=10, seeds=1, key=KEY)
    assert not np.isfinite(outcome.final).any()
    for loss in (np.nan, np.inf):
        bad = outcome._replace(final=np.array([loss]))
        assert speedup(bad, np.array([3.0, 2.0])) == (0.0, True)


def test_speedups_count_the_steps_of_adam():
    outcome = Outcome(0.1, np.zeros(4), np.array([1.0, 3.0]), np.zeros(2))
    assert speedup(outcome, np.array([5.0, 4.0, 3.0, 2.5, 2.0, 1.0])) == (5 / 4, True)
    assert speedup(outcome, np.array([5.0] * 8)) == (2.0, False)


@pytest.mark.slow
def test_adams_curve_is_the_lower_envelope_of_running_averages():
    with as_users_run():
        curve = adam_curve(bowl(), steps=30, seeds=1, key=KEY)
        task, found = bowl(), []
        for rate in evaluating.CONSTANT_ADAM.rates:
            params, adam = {"p": jnp.zeros(2)}, optax.adam(rate)
            state, average, curve_of = adam.init(params), None, []
            for _ in range(30):
                loss, grads = jax.value_and_grad(task.loss)(params, jnp.ones((1, 2)))
                updates, state = adam.update(grads, state)
                params = optax.apply_updates(params, updates)
                average = loss if average is None else 0.95 * average + 0.05 * loss
                curve_of.append(float(average))
            found.append(curve_of)
    np.testing.assert_allclose(curve, np.minimum.accumulate(np.min(found, axis=0)), rtol=1e-4)


@pytest.mark.slow
def test_learned_optimizers_take_rates():
    """The rate of Celo2 is replaced; a number and a schedule are the same."""
    celo2 = lo.Celo2(lr=0.5)
    contender = lo.learned_contender(celo2, celo2.initial_theta(KEY))
    params = {"w": jnp.ones((3, 2))}
    steps = []
    with as_users_run():
        for rate in (0.1, optax.constant_schedule(0.2)):
            optimizer = contender.make(rate)
            updates, _ = optimizer.update({"w": jnp.ones((3, 2))}, optimizer.init(params), params)
            steps.append(np.sqrt(np.mean(np.square(updates["w"]))))
    np.testing.assert_allclose(steps, [0.1, 0.2], rtol=1e-5)  # its directions have size 1
    other = lo.PerParameterMLP(4, 1)
    assert 1.0 in lo.learned_contender(other, other.initial_theta(KEY)).rates


@pytest.mark.slow
@pytest.mark.parametrize("name", models.HELD_OUT)
def test_tasks_are_learned(name):
    with as_users_run():
        contender = Contender(optax.adam, (0.01,))
        outcome = lo.evaluate_contender(
            models.HELD_OUT[name][1](), contender, steps=60, seeds=1, key=KEY
        )
    assert outcome.curve[-10:].mean() < 0.9 * outcome.curve[0]
    assert outcome.held_out[0] < outcome.curve[0]


def test_attention_sees_no_later_characters():
    task = lo.transformer_task(width=8, blocks=1, length=6, batch=2)
    params = task.init(KEY)
    text = jnp.arange(6, dtype=jnp.int32)
    logits = models._transformer_logits(params, text)
    changed = models._transformer_logits(params, text.at[4].set(40))
    np.testing.assert_allclose(logits[:4], changed[:4], rtol=1e-5, atol=1e-6)
    assert np.abs(logits[4:] - changed[4:]).max() > 1e-3


@pytest.fixture
def tiny(monkeypatch):
    """Two tiny tasks, and one classical optimizer besides Adam."""
    tasks = {"bowl": ("a bowl", bowl), "other": ("another bowl", bowl)}
    for module in (models, runs.optimizer_evaluation):
        monkeypatch.setattr(module, "HELD_OUT", tasks)
    few = {"Adam": Contender(optax.adam, (0.1, 0.3)), "SGD": Contender(optax.sgd, (1e30,))}
    monkeypatch.setattr(runs.optimizer_evaluation, "BASELINES", few)


def learned():
    optimizer = lo.SGD(0.1)
    return {"mine": (optimizer, optimizer.initial_theta(KEY))}


@pytest.mark.slow
def test_an_evaluation_is_kept_and_continued(tiny, tmp_path):
    with as_users_run():
        asked = {"tasks": ("bowl",), "steps": 10, "seeds": 2}
        told = []
        runs.evaluate_optimizers(
            learned(), tmp_path, **asked, report=lambda *about: told.append(about)
        )
        assert told[0] == ("Adam, more steps on bowl", 0, 4)
        before = {path: path.stat().st_mtime_ns for path in (tmp_path / "parts").iterdir()}
        asked["tasks"] = ("bowl", "other")
        result = runs.evaluate_optimizers(learned(), tmp_path, **asked)
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())
    stored = json.loads((tmp_path / "evaluation.json").read_text())
    assert stored["tasks"].keys() == result["tasks"].keys() == {"bowl", "other"}
    rows = result["tasks"]["bowl"]["optimizers"]
    assert set(rows) == {"mine", "Adam", "SGD"}
    assert rows["SGD"]["final_loss"] is None
    assert rows["Adam"]["final_loss"] > 0
    page = (tmp_path / "evaluation.md").read_text()
    assert "| SGD | 1e+30 | diverged |" in page
    with raises_naming(runs.RunError, "another evaluation"):
        runs.evaluate_optimizers(learned(), tmp_path, **(asked | {"steps": 11}))
    for name in ("", "Adam", "adam", "curve"):
        with raises_naming(ValueError, repr(name)):
            runs.evaluate_optimizers({name: learned()["mine"]}, tmp_path, **asked)
    with raises_naming(ValueError, "nonsense"):
        runs.evaluate_optimizers(learned(), tmp_path, tasks=("nonsense",))
    part = next((tmp_path / "parts").glob("bowl-adam.json"))
    part.write_text("{")
    with raises_naming(runs.RunError, "bowl-adam.json"):
        runs.evaluate_optimizers(learned(), tmp_path, **asked)


def test_the_command_compares_and_draws(tiny, tmp_path, monkeypatch):
    from nres.cli import evaluate_optimizer as command

    monkeypatch.setattr(command, "HELD_OUT", models.HELD_OUT)
    file = tmp_path / "mine.npz"
    lo.save_optimizer(file, *learned()["mine"])
    out = tmp_path / "out"
    given = ["evaluate-optimizer", str(file), "--steps", "10", "--seeds", "1", "--out", str(out)]
    with as_users_run():
        done = CliRunner().invoke(app, [*given, "--tasks", "bowl"])
    assert done.exit_code == 0, done.output
    assert "mine" in done.output
    assert "diverged" in done.output
    assert (out / "evaluation.png").stat().st_size > 10_000
    for bad, culprit in {"--tasks nonsense": "nonsense", "--tasks bowl,bowl": "--tasks"}.items():
        done = CliRunner().invoke(app, [*given, *bad.split()])
        assert done.exit_code == 2
        assert culprit in done.output
    taken = file.rename(tmp_path / "adam.npz")
    done = CliRunner().invoke(app, ["evaluate-optimizer", str(taken), "--tasks", "bowl"])
    assert done.exit_code == 2
    assert "'adam'" in done.output
    missing = CliRunner().invoke(app, ["evaluate-optimizer", "none.npz", "--tasks", "bowl"])
    assert missing.exit_code == 1
    assert "none.npz" in missing.output
