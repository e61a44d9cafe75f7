"""Reductions of the variance of NRES: the estimates of the study, against closed forms."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

import nres
from nres_paper import command
from nres_paper.reductions.drift import compare_drifted, follow, weighted_pairs
from nres_paper.reductions.episodes import Task, record
from nres_paper.reductions.estimates import (
    fit,
    linear_control,
    linear_controls,
    one_sided,
    plain,
    potential_controls,
)
from nres_paper.reductions.measured import shares, window_derivatives
from nres_paper.reductions.statistics import compare, over_episodes, total_variance
from nres_paper.reductions.training import train

D, WINDOW, WINDOWS, WORKERS = 3, 2, 3, 6
SYSTEM = nres.systems.Quadratic.random(
    jax.random.key(0), horizon=WINDOW * WINDOWS, states=2, parameters=D
)
TASK = Task(nres.JaxPool(SYSTEM), WINDOW, 0.5, WORKERS)
THETA = jnp.ones(D)
# gradients[t, i] is the derivative of the loss of step t by the parameters in step i.
APPLICATIONS = np.asarray(SYSTEM.application_gradients(THETA), np.float64)
BY_WINDOW = APPLICATIONS.sum(axis=1).reshape(WINDOWS, WINDOW, D).mean(axis=1)
EXACT = BY_WINDOW.mean(axis=0)


def recorded(task, law):
    return record(task, THETA, law, jax.random.key(1), 1500)


@pytest.fixture(scope="module", params=[nres.Gaussian(), nres.Orthogonal()], ids=str)
def episodes(request):
    return recorded(TASK, request.param)


def assert_unbiased(rows, exact=EXACT):
    """The mean of independent rows is the exact gradient, up to four standard errors."""
    stderr = rows.std(axis=0, ddof=1) / np.sqrt(len(rows))
    assert (np.abs(rows.mean(axis=0) - exact) < 4 * stderr + 1e-5).all()


def test_controls_leave_the_mean_unchanged(episodes):
    guess, noise = np.array([3.0, -1.0, 2.0]), episodes.noise
    old = plain(episodes)
    products = episodes.states**2
    for controls in (
        linear_control(noise, guess, WINDOWS),
        linear_controls(noise, BY_WINDOW + guess),
        potential_controls(episodes, products),
    ):
        assert_unbiased((old + controls.sum(axis=-1)).mean(axis=1))
        assert total_variance(old + controls.sum(axis=-1)) != pytest.approx(total_variance(old))
    assert_unbiased(old.mean(axis=1))
    assert_unbiased(one_sided(episodes).mean(axis=1))


def test_variance_is_as_predicted():
    episodes = recorded(TASK, nres.Gaussian())
    old = plain(episodes)

    def predicted(gradients):
        return (D + 1) * np.sum(gradients**2, axis=1).mean() / WORKERS

    assert total_variance(old) == pytest.approx(predicted(BY_WINDOW), rel=0.1)
    for guess in (EXACT, EXACT / 2):
        new = old - linear_control(episodes.noise, guess, WINDOWS)[..., 0]
        found = compare(new, old)
        assert found.low < predicted(BY_WINDOW - guess) / predicted(BY_WINDOW) < found.high
        assert found.high < 1
    each = linear_controls(episodes.noise, BY_WINDOW)
    assert total_variance(old - each.sum(axis=-1)) < 1e-6 * total_variance(old)
    assert fit(old, each) == pytest.approx(1, abs=0.02)
    # Steps count: at twice the cost, a reduction has to save half of the variance.
    assert compare(new, old, 2.0).ratio == pytest.approx(2 * found.ratio)


def test_potentials_change_nothing_over_an_episode(episodes):
    controls = potential_controls(episodes, episodes.states)
    assert controls.any()
    np.testing.assert_allclose(over_episodes(controls[..., 0]), 0, atol=1e-12)


def test_one_sided_members_save_at_most_half():
    straight = dataclasses.replace(SYSTEM, Q=jnp.zeros_like(SYSTEM.Q))  # no even part
    task = dataclasses.replace(TASK, pool=nres.JaxPool(straight))
    episodes = recorded(task, nres.Gaussian())
    members = 2 * WORKERS // WINDOWS  # at each window
    found = compare(one_sided(episodes), plain(episodes))
    assert found.low < members / (2 * (members - 1)) < found.high
    assert found.high < 0.8


def test_shares_of_a_quadratic_system(episodes):
    found = shares(episodes)
    squares = np.sum(BY_WINDOW**2, axis=1).mean()
    assert found.linear == pytest.approx(EXACT @ EXACT / squares, rel=0.15)
    assert found.linear_by_window == pytest.approx(1, abs=0.1)
    assert found.linear_over_episodes == pytest.approx(1, abs=0.1)
    assert found.even > 0


def test_derivatives_of_windows_hold_the_state_fixed():
    found = window_derivatives(TASK, THETA)
    starts = range(0, WINDOW * WINDOWS, WINDOW)
    kept = [APPLICATIONS[s : s + WINDOW, s : s + WINDOW].sum(axis=1).mean(axis=0) for s in starts]
    np.testing.assert_allclose(found, kept, rtol=1e-4, atol=1e-5)


def test_importance_weights_are_unbiased():
    rng = np.random.default_rng(0)
    slope, root = rng.normal(size=D), rng.normal(size=(D, D))
    hessian, moved = root @ root.T, np.array([0.4, -0.2, 0.1])
    noise = rng.normal(size=(20_000, D))
    losses = np.stack(
        [5 + x @ slope + ((x @ hessian) * x).sum(axis=1) / 2 for x in (noise, -noise)]
    )
    assert_unbiased(weighted_pairs(losses, noise, moved), slope + hessian @ moved)


def test_importance_weights_remove_the_bias_of_drift():
    end = np.asarray(THETA)
    path = [jnp.asarray(end - 0.15 * i, jnp.float32) for i in reversed(range(WINDOWS))]
    found = follow(TASK, path, jax.random.key(2), 4000)
    assert found.drift == pytest.approx(0.15 * 3**0.5 / 0.5 * np.arange(WINDOWS), rel=1e-5)
    assert_unbiased(found.corrected.mean(axis=0))
    row = compare_drifted(found, WORKERS)
    assert row.bias > 20 * row.bias_error > 0
    assert row.corrected_variance > row.variance
    still = follow(TASK, [THETA] * WINDOWS, jax.random.key(2), 50)
    for each in (still.running, still.corrected):
        np.testing.assert_allclose(each, still.fresh, rtol=1e-3, atol=1e-3)


def test_cross_fitted_momentum_is_unbiased_and_saves_variance():
    settings = {"rate": 0.0, "updates": 90, "law": nres.Gaussian()}
    key = jax.random.key(3)
    old = train(TASK, THETA, key, **settings).gradients
    new = train(TASK, THETA, key, decay=0.9, **settings).gradients
    # Noises and momenta persist, so means over many updates are nearly independent.
    blocks = [x.reshape(-1, 9, D).mean(axis=1) for x in (old, new)]
    for rows in blocks:
        assert_unbiased(rows)
    assert new.var(axis=0).sum() < 0.8 * old.var(axis=0).sum()


@pytest.mark.slow
def test_the_command(tmp_path):
    def reproduce():
        arguments = ["reductions", "--quick", "--out", str(tmp_path)]
        return CliRunner().invoke(command.app, arguments)

    result = reproduce()
    assert result.exit_code == 0, result.output
    folder = tmp_path / "reductions"
    drawn = (folder / "reductions.svg").read_text()
    measured = json.loads((folder / "measured.json").read_text())
    assert json.loads((folder / "summary.json").read_text())["numbers"] == measured["entries"]
    ratios = measured["entries"]["quadratic, 20 updates, gaussian"]["reductions"]
    assert ratios["critic"]["episode"]["ratio"] == pytest.approx(1)
    # The second time, nothing is measured; results with other settings are not overwritten.
    assert reproduce().exit_code == 0
    assert (folder / "reductions.svg").read_text() == drawn
    assert json.loads((folder / "measured.json").read_text()) == measured
    (folder / "measured.json").write_text(json.dumps(measured | {"plan": []}))
    refused = reproduce()
    assert refused.exit_code == 2
    assert "measured.json" in refused.stderr.replace("\n", "")
