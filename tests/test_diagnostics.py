"""Diagnostics of gradient estimates: signal, linear share, spreads, and warnings of noise."""

import dataclasses
import itertools
import json
import math
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import nres
from helpers import (
    Spiral,
    as_users_run,
    assert_same,
    create_run,
    invoke,
    quadratic,
    quadratic_theta,
    raises_naming,
    slow,
    spiral_theta,
    state_at_step_0,
    z_scores,
)
from nres import diagnostics, runs
from nres.estimators import averaging
from nres.monitor import BATCHES, Monitor
from nres.runs.metrics import MetricsWriter
from nres.workers import Contributions

KEY = jax.random.key(3)
SYSTEM, THETA = quadratic(4, 3), quadratic_theta(3)
SLOPE = jnp.array([1.0, -2.0, 0.5, 3.0])


class Rough(nres.System):
    """The loss is linear in theta, plus a roughness that no sigma here smooths."""

    horizon: int = 4
    roughness: float = 0.0

    def init(self, theta, key):
        return jnp.zeros(())

    def step(self, state, theta, t, key):
        return state, theta @ SLOPE + self.roughness * jnp.sin(1e4 * theta.sum())


def infos(estimator, theta, updates, groups=400):
    """Return the diagnostics of the last of some updates, of many independent pools of workers."""

    def advance(state, _):
        estimate = estimator.estimate(theta, state)
        return estimate.state, estimate.info

    @jax.jit
    def one(key):
        _, found = jax.lax.scan(advance, estimator.init(theta, key), length=updates)
        return jax.tree.map(lambda x: x[-1], found)

    return jax.lax.map(one, jax.random.split(jax.random.key(17), groups))


def columns_of(history):
    return history.diagnostics | {"grad_norm": history.grad_norm, "update": history.update}


@pytest.mark.parametrize(
    ("method", "noise", "workers", "arguments"),
    [
        (nres.NRES, nres.Gaussian(), 4, {"window": 1}),
        (nres.NRES, nres.Orthogonal(), 7, {"window": 1}),
        slow(nres.FullES, nres.Orthogonal(), 7, {}),
        slow(nres.TES, nres.Orthogonal(), 7, {"window": 4}),
        slow(nres.PES, nres.Gaussian(), 4, {"window": 1}),
    ],
)
def test_signal_is_unbiased(method, noise, workers, arguments):
    """Its mean is the squared norm of the known gradient, with weights for groups."""
    # With even phases and few workers, products of neighbouring windows would prevail in groups.
    if method is not nres.FullES:
        arguments = arguments | {"phases": "independent"}
    estimator = method(SYSTEM, workers=workers, sigma=0.3, noise=noise, **arguments)
    info = infos(estimator, THETA, updates=5, groups=1500)
    exact = float(jnp.sum(SYSTEM.exact_gradient(THETA) ** 2))
    weight = np.asarray(info.signal_weight, np.float64)
    signal = np.where(weight > 0, np.asarray(info.signal, np.float64), 0)
    assert weight.mean() > 0.2
    # A ratio of sums: the residuals have the mean zero.
    assert abs(z_scores(weight * (signal - exact), 0)) < 4


class EarlyLoss(nres.System):
    """Only the first of four windows has a loss, which is linear in theta."""

    horizon: int = 8
    slope: float = 1.0

    def init(self, theta, key):
        return jnp.zeros(())

    def step(self, state, theta, t, key):
        return state, jnp.where(t < 2, self.slope * (theta @ SLOPE), 0)


@pytest.mark.parametrize(
    ("phases", "workers", "share"), [("even", 12, 1 / 3), slow("independent", 24, None)]
)
def test_signal_where_workers_that_share_noises_are_at_the_same_window(phases, workers, share):
    """Pairs of workers that share a noise count in proportion to their contributions."""
    estimator = nres.NRES(
        EarlyLoss(), workers=workers, window=2, sigma=0.3, noise=nres.Orthogonal(), phases=phases
    )
    info = infos(estimator, jnp.zeros(4), updates=1, groups=1000)
    # A quarter of the workers is in the first window, and has the gradient 4/8 x 2 x SLOPE.
    pairs = workers / 4 * (workers / 4 - 1) if phases == "even" else workers * (workers - 1) / 16
    exact = pairs / (workers * (workers - 1)) * float(SLOPE @ SLOPE)
    weight = np.asarray(info.signal_weight, np.float64)
    signal = np.where(weight > 0, np.asarray(info.signal, np.float64), 0)
    assert abs(z_scores(weight * (signal - exact), 0)) < 4
    # In every second update, these three workers share a noise, so their products carry no
    # information.
    assert share is None or abs(weight.mean() - share) < 0.1 * share


def test_losses_without_differences_are_no_signal():
    system = EarlyLoss(slope=0.0)
    estimator = nres.NRES(system, workers=12, window=2, sigma=0.3, noise=nres.Orthogonal())
    info = infos(estimator, jnp.zeros(4), updates=1, groups=2)
    np.testing.assert_array_equal(info.signal, 0.0)
    np.testing.assert_allclose(info.signal_weight, 96 / 132)  # without pairs that share a noise


def test_a_linear_response_has_a_linear_share_of_one_and_roughness_lowers_it():
    found = {}
    for roughness in (0.0, 3.0):
        system = Rough(roughness=roughness)
        estimator = nres.NRES(system, workers=8, window=2, sigma=0.3)
        result = nres.train(
            estimator, optax.sgd(0.0), jnp.zeros(4), updates=1000, key=KEY, eval_every=1000
        )
        found[roughness] = result.history
    linear, rough = (diagnostics.summarised(columns_of(found[r])) for r in (0.0, 3.0))
    assert abs(linear["linear_share"] - 1) < 0.05
    # The signal-to-noise ratio of independent noises is N / (d + 1).
    assert abs(linear["snr"] - 8 / 5) < 0.15
    assert rough["linear_share"] < 0.5
    assert rough["snr"] < 0.8
    # Losses are odd functions of the noise around zero, so pairs have no even part.
    assert linear["even_spread"] < 1e-5
    expected = 0.3 * float(jnp.linalg.norm(SLOPE))
    np.testing.assert_allclose(linear["odd_spread"], expected, rtol=0.05)
    by_phase = [linear[f"phase_rms_{i}"] for i in (1, 2)]
    np.testing.assert_allclose(by_phase, math.sqrt(6 * float(SLOPE @ SLOPE)), rtol=0.05)


def test_one_estimate_agrees_with_its_definitions():
    estimator = nres.NRES(SYSTEM, workers=6, window=2, sigma=0.3)
    state = estimator.init(THETA, KEY)
    info = estimator.estimate(THETA, state).info
    response = estimator.run(THETA, state.workers, state.carry, None)[1]
    c, rows = np.asarray(response.coefficient, float), np.asarray(response.rows, float)
    each = c[:, None] * rows
    products = each @ each.T
    np.testing.assert_allclose(info.signal, (products.sum() - np.trace(products)) / 30, rtol=1e-4)
    np.testing.assert_allclose(info.power, np.trace(products) / 6, rtol=1e-5)
    np.testing.assert_allclose(info.linear_signal, info.power / 5, rtol=1e-6)
    mean = each.mean(axis=0)
    np.testing.assert_allclose(info.snr, info.signal / (mean @ mean - info.signal), rtol=1e-3)
    np.testing.assert_allclose(info.even, np.var(response.loss, ddof=1), rtol=1e-4)
    np.testing.assert_allclose(info.odd, np.mean(np.asarray(response.odd) ** 2), rtol=1e-5)
    norms = np.square(info.contribution_norm)
    early = np.asarray(info.window_start) == 0
    expected = [norms[early].sum() / 3, norms[~early].sum() / 3]
    np.testing.assert_allclose(np.square(info.phase_rms), expected, rtol=1e-5)


def test_methods_without_pairs_and_single_workers_show_nothing():
    alone = nres.NRES(SYSTEM, workers=1, window=2, sigma=0.1)
    found = [
        estimator.estimate(THETA, state_at_step_0(estimator, THETA, KEY)).info
        for estimator in (nres.BPTT(SYSTEM, workers=3), alone)
    ]
    for each in found:
        assert all(map(math.isnan, (each.signal, each.snr, each.linear_share, each.even)))
    history = nres.train(
        nres.BPTT(SYSTEM, workers=3), optax.sgd(0.0), THETA, updates=2, key=KEY
    ).history
    assert np.isnan(history.snr()).all()
    assert diagnostics.summarised(columns_of(history)) == {}


@pytest.mark.parametrize(
    ("sigma", "method"), [({"rate": 0.1, "push": 0.2}, nres.NRES), (0.1, nres.PES)]
)
def test_the_linear_share_is_unknown_where_theory_does_not_know_it(sigma, method):
    estimator = method(Spiral(), workers=3, window=4, sigma=sigma)
    theta = spiral_theta()
    info = estimator.estimate(theta, state_at_step_0(estimator, theta, KEY)).info
    assert math.isnan(info.linear_share)
    assert math.isfinite(info.snr)


def train(updates=6, noise=nres.Gaussian(), workers=8, **options):  # noqa: B008
    estimator = nres.NRES(SYSTEM, workers=workers, window=2, sigma=0.3, noise=noise, **options)
    return nres.train(estimator, optax.sgd(0.01), THETA, updates=updates, key=KEY)


@pytest.mark.slow
def test_diagnostics_change_no_result(monkeypatch):
    with_them = train()
    jax.clear_caches()
    full = averaging._diagnostics

    def unknown(contributions, *rest):
        without = eqx.tree_at(
            lambda c: c.odd, contributions, None, is_leaf=lambda x: x is contributions.odd
        )
        return full(without, *rest)

    monkeypatch.setattr(averaging, "_diagnostics", unknown)
    without = train()
    jax.clear_caches()
    assert np.isnan(without.history.diagnostics["signal"]).all()
    np.testing.assert_array_equal(with_them.theta, without.theta)
    for name in ("loss", "grad_norm"):
        np.testing.assert_array_equal(
            getattr(with_them.history, name), getattr(without.history, name)
        )


@pytest.mark.parametrize("noise", [slow(nres.Gaussian()), slow(nres.Orthogonal())])
def test_blocks_and_devices_give_the_same_diagnostics(noise, monkeypatch):
    whole = train(noise=noise).history
    mesh = jax.make_mesh((2,), ("workers",), devices=jax.devices()[:2])
    found = [train(noise=noise, placement=nres.placement.Devices(mesh)).history]
    jax.clear_caches()
    monkeypatch.setattr("nres.execution.block_size", lambda *_, **__: 3)
    found.append(train(noise=noise).history)
    jax.clear_caches()
    for history in found:
        assert_same(whole.diagnostics, history.diagnostics, rtol=1e-3)


@pytest.mark.slow
def test_history_averages_as_ratio_of_sums():
    history = train(updates=7, noise=nres.Orthogonal()).history
    rows = columns_of(history)
    last = diagnostics.summarised({name: column[-3:] for name, column in rows.items()})
    moving = {
        "snr": history.snr(3),
        "linear_share": history.linear_share(3),
        "even_spread": history.even_spread(3),
        "odd_spread": history.odd_spread(3),
        "phase_rms_2": history.phase_rms(3)[:, 1],
    }
    for name, column in moving.items():
        assert column.shape == (7,)
        np.testing.assert_allclose(column[-1], last.get(name, np.nan), rtol=1e-9)
    weight = np.asarray(rows["signal_weight"], float)[-3:]
    signal = np.nan_to_num(np.asarray(rows["signal"], float))[-3:]
    mean = (weight * signal).sum() / weight.sum()
    square = (np.asarray(rows["grad_norm"], float)[-3:] ** 2).mean()
    np.testing.assert_allclose(last["snr"], mean / (square - mean), rtol=1e-9)
    with raises_naming(ValueError, "over"):
        history.snr(over=0)
    several = nres.train(
        nres.NRES(SYSTEM, workers=4, window=2, sigma=0.3), optax.sgd(0.01), THETA,
        updates=2, key=KEY, seeds=2,
    )  # fmt: skip
    np.testing.assert_allclose(
        several.history.mean.diagnostics["signal"],
        np.mean([several.history[i].diagnostics["signal"] for i in (0, 1)], axis=0),
        rtol=1e-6,
    )


def progress_of(result, part):
    history = result.history
    names = ("update", "total_steps", "sequential_steps", "seconds", "loss", "grad_norm")
    rows = {name: getattr(history, name)[part] for name in (*names, "nonfinite")}
    rows |= {name: column[part] for name, column in history.diagnostics.items()}

    state = dataclasses.replace(result.state, update=int(rows["update"][-1]))
    return nres.Progress(result.theta, state, result.state.update, rows, None)


def test_entries_of_the_metrics_are_ratios_of_sums_wherever_calls_end(tmp_path):
    result = train(updates=10)
    history, files = result.history, []
    for cuts in ([0, 10], [0, 3, 4, 9, 10]):
        writer = MetricsWriter(tmp_path / f"{len(cuts)}.jsonl", 4)
        for first, last in itertools.pairwise(cuts):
            writer.add(progress_of(result, slice(first, last)))
        writer.close()
        files.append(writer.path.read_text())
    assert files[0] == files[1]
    entries = [json.loads(line) for line in files[0].splitlines()]
    assert [entry["update"] for entry in entries] == [4, 8, 10]
    expected = diagnostics.summarised({n: c[4:8] for n, c in columns_of(history).items()})
    assert {n: v for n, v in entries[1].items() if n in expected} == pytest.approx(expected)
    assert not any(map(diagnostics.is_diagnostic, entries[1]))


def fed(monitor, rows, size):
    count = len(rows["update"])
    for i in range(0, count, size):
        monitor.add({name: column[i : i + size] for name, column in rows.items()})
    return monitor


def made_up(signal, loss, updates, noise=0.3, seed=0):
    """Return the columns of a run whose signal and loss are functions of the update."""
    draws = np.random.default_rng(seed)
    update = np.arange(1, updates + 1)
    ones = np.ones(updates)
    return {
        "update": update,
        "loss": np.array([loss(u) for u in update]) + 0.01 * draws.normal(size=updates),
        "grad_norm": ones,
        "signal": np.array([signal(u) for u in update]) + noise * draws.normal(size=updates),
        "linear_signal": ones,
        "signal_weight": ones,
        "even": ones,
        "odd": 0.5 * ones,
    }


def test_a_monitor_judges_the_same_wherever_calls_end_and_after_an_interruption():
    rows = made_up(lambda u: 0.5 * (u < 700), lambda u: 1.0, 1310)
    whole = fed(Monitor(1), rows, 5000)
    parts = fed(Monitor(1), rows, 7)
    assert whole.state == parts.state
    first = fed(Monitor(1), {n: c[:613] for n, c in rows.items()}, 100)
    resumed = Monitor(1)
    resumed.restore(json.loads(json.dumps(first.state)))
    fed(resumed, {n: c[613:] for n, c in rows.items()}, 100)
    assert resumed.state == whole.state
    assert whole.converged
    assert not fed(Monitor(1), {n: c[:700] for n, c in rows.items()}, 100).converged
    # A monitor that begins in the middle of a batch leaves that batch out.
    late = fed(Monitor(1), {n: c[10:60] for n, c in rows.items()}, 100)
    assert len(late.state["batches"]) == 1


def test_a_run_whose_loss_still_falls_has_not_converged():
    falling = made_up(lambda u: 0.5 * (u < 700), lambda u: 2 - u / 1000, 1300)
    assert not fed(Monitor(1), falling, 100).converged


def test_a_run_has_diverged_if_its_loss_stays_far_above_its_start():
    for height, diverged in ((100.0, True), (5.0, False)):
        rows = made_up(lambda u: 0.5, lambda u, h=height: 1.0 if u < 100 else h, 700)
        assert fed(Monitor(1), rows, 100).diverged == diverged


@pytest.mark.parametrize(
    ("signal", "noise", "words"),
    [(0.0, 0.05, "nothing but noise"), (0.01, 0.001, "too small"), (0.5, 0.05, None)],
)
def test_a_monitor_says_what_is_wrong(signal, noise, words):
    rows = made_up(lambda u: signal, lambda u: 1.0, 25 * BATCHES, noise)
    problem = fed(Monitor(1), rows, 100).problem
    assert (problem is None) == (words is None)
    assert words is None or words in problem


def test_a_weak_signal_of_few_workers_is_no_reason_to_warn():
    """If d is much larger than N, even a linear response is not distinguishable from zero."""
    rows = made_up(lambda u: 0.0, lambda u: 1.0, 25 * BATCHES, noise=30.0)
    assert fed(Monitor(1), rows, 100).problem is None


@pytest.mark.parametrize("roughness", [0.0, 1e4])
def test_training_warns_once_if_updates_are_nothing_but_noise(roughness):
    estimator = nres.NRES(Rough(roughness=roughness), workers=64, window=2, sigma=0.3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        nres.train(estimator, optax.sgd(0.0), jnp.zeros(4), updates=1200, key=KEY)
    kinds = [each.category for each in caught]
    assert kinds == [nres.NoSignalWarning] * (roughness > 0)


@pytest.mark.parametrize(
    ("system", "sigma", "problem"),
    [
        (Rough(), 0.3, None),
        (Rough(roughness=1e4), 0.3, "nothing but noise"),
        slow(SYSTEM, 30.0, "sigma too large"),
    ],
)
def test_diagnose(system, sigma, problem):
    theta = THETA if system is SYSTEM else jnp.zeros(4)
    estimator = nres.NRES(system, workers=64, window=2, sigma=sigma)
    found = nres.diagnose(estimator, theta, KEY, batches=40, episodes=2)
    assert found.problem == problem
    assert found.verdict in str(found)
    if system is not SYSTEM:
        np.testing.assert_allclose(found.loss, 0, atol=1e-6)
        assert len(found.phase_rms) == 2


def test_diagnose_needs_pairs():
    with raises_naming(TypeError, "BPTT"):
        nres.diagnose(nres.BPTT(SYSTEM, workers=2), THETA, KEY)


def test_signal_stopping_ends_training_at_an_evaluation():
    estimator = nres.NRES(SYSTEM, workers=8, window=2, sigma=0.3)
    stopping = nres.callbacks.SignalStopping(estimator)
    result = nres.train(
        estimator, optax.sgd(0.05), THETA, updates=4000, key=KEY,
        eval_fn=lambda theta: 0.0, eval_every=50, callback=stopping,
    )  # fmt: skip
    assert stopping.reason == "converged"
    assert result.interrupted
    assert result.state.update % 50 == 0
    assert 25 * BATCHES <= result.state.update < 4000


# The first evaluation at which a whole stretch of this run can be judged.
STOPS_AT = 25 * BATCHES


class Killed(Exception):
    """Stands for the end of the process: nothing after it is written."""


@pytest.mark.slow
@pytest.mark.parametrize("killed_at", [None, 333])
def test_a_run_stops_by_itself_also_if_it_is_killed(tmp_path, killed_at):
    def kill(progress):
        if killed_at is not None and progress.state.update >= killed_at:
            raise Killed

    settings = {"updates": 3000, "eval_every": 50, "checkpoint_every": 20, "lr": 0.3}
    with as_users_run():
        run = create_run(tmp_path / "run", auto_stop="on", **settings)
        if killed_at is not None:
            with pytest.raises(Killed):
                runs.execute(run, callback=kill)
        outcome = runs.execute(runs.Run.open(run.path))
    assert outcome.stopped_early
    assert not outcome.unfinished
    assert outcome.settled == "converged"
    assert outcome.result.state.update == STOPS_AT
    assert runs.Run.open(run.path).ended_early == "stopped early"


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_stopping_by_itself_on_the_command_line(tmp_path):
    with as_users_run():
        settings = {"updates": 3000, "eval_every": 50, "lr": 0.3, "auto_stop": "on"}
        path = create_run(tmp_path / "run", **settings).path
    told = invoke("resume", path)
    assert told.exit_code == 0, told.output
    assert f"{STOPS_AT} of 3,000" in told.output
    assert "--auto-stop off" in told.output
    told = invoke("resume", path, "--auto-stop", "off", "--updates", 700)
    assert "700 of 700" in told.output
    assert "auto_stop" in invoke("resume", path, "--auto-stop", "perhaps").stderr


@pytest.mark.parametrize("pairs", [True, False])
def test_actors_bring_their_pairs_together(pairs):
    from nres.placement.ray.placement import _put_together

    def part(first, count):
        numbers = jnp.arange(first, first + count, dtype=jnp.float32)
        steps = jnp.ones((2, count), jnp.int32)
        return Contributions(jnp.ones(3), numbers, numbers, steps, numbers if pairs else None)

    parts = [slice(0, 2), slice(2, 5), slice(5, 6)]
    whole = _put_together(parts, {1: part(2, 3), 0: part(0, 2)})
    if pairs:
        np.testing.assert_array_equal(whole.odd, [0, 1, 2, 3, 4, np.nan])
    else:
        assert whole.odd is None
    np.testing.assert_array_equal(whole.grad, [2, 2, 2])
