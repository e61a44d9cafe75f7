"""Variance, measured and predicted: closed forms on the quadratic, and where theory ends."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import nres
from helpers import THETA, Faller, Wave, as_users_run
from nres.estimators.base import blank_state
from nres.variance import measured, statistics
from nres.variance.advice import candidate_windows
from numpy_pool import NumpyPool

KEY = jax.random.key(8)
compilations: list[str] = []
jax.monitoring.register_event_duration_secs_listener(
    lambda name, _, **kw: compilations.append(name) if "backend_compile" in name else None
)


def quadratic(horizon, parameters, seed=1, **options):
    return nres.systems.Quadratic.random(
        jax.random.key(seed), horizon=horizon, states=3, parameters=parameters, **options
    )


def quadratic_theta(parameters):
    return jnp.linspace(-0.6, 0.9, parameters)


SYSTEM, PLACE = quadratic(12, 4), quadratic_theta(4)


def theorem(system, theta, period, window):
    """[thm:variance] on the graph whose steps are windows, word for word, with its pairs of parts.

    A window that is shorter than the others counts with its sum, not with its mean.
    """
    gradients = np.asarray(system.application_gradients(theta), np.float64)
    horizon, d = system.horizon, theta.size
    starts = np.arange(0, horizon, window)
    n = len(starts)
    third, first, total = 0.0, 0.0, np.zeros(d)
    for start in starts:
        of_window = gradients[start : start + window].sum(axis=0) * n / horizon
        count = start // period + 1
        parts = [of_window[period * j : period * (j + 1)].sum(axis=0) for j in range(count)]
        whole = np.sum(parts, axis=0)
        first += whole @ whole
        total += whole
        third += d / 2 * sum(np.sum((a - b) ** 2) for a in parts for b in parts)
    return (d + 2) / n * first - np.sum((total / n) ** 2) + third / n


# T, d, W and the periods: windows and periods that divide the horizon, and that do not.
CASES = [
    (12, 4, 1, (1, 2, 4, 5, 12)),
    (12, 4, 3, (3, 6, 9, 12)),
    (12, 4, 5, (5, 10, 12)),
    (7, 2, 2, (2, 4, 7)),
]


@pytest.mark.parametrize(("horizon", "d", "window", "periods"), CASES)
def test_prediction_is_the_theorem(horizon, d, window, periods):
    system, theta = quadratic(horizon, d), quadratic_theta(d)
    predicted = nres.variance.predict(system, theta, period=periods, window=window)
    expected = [theorem(system, theta, period, window) for period in periods]
    np.testing.assert_allclose(predicted.variance, expected, rtol=1e-4)
    np.testing.assert_allclose(predicted.nres, expected[-1], rtol=1e-4)
    gradient = np.asarray(system.exact_gradient(theta), np.float64)
    np.testing.assert_allclose(predicted.fulles, (d + 1) * gradient @ gradient, rtol=1e-4)
    # NRES is the least of them.
    assert all(predicted.nres <= v for v in predicted.variance)


def test_one_period_gives_a_number():
    one = nres.variance.predict(SYSTEM, PLACE, period=12, window=3)
    assert isinstance(one.variance, float)
    assert one.variance == one.nres


@pytest.mark.parametrize(("d", "size", "batches"), [(2, 16, 32), (10, 2, 32), (3, 64, 16)])
def test_intervals_contain_the_truth_as_often_as_they_should(d, size, batches):
    """Estimates of FullES where the loss is linear: the truth is (d + 1) |g|², with |g| = 1.

    As the estimates come in pairs of batches, each pair gives a sample of the variance; the
    intervals of very many experiments at once.
    """
    generator, count = np.random.default_rng(3), 2000
    noise = generator.standard_normal((batches, count, size, d))
    estimates = noise * noise[..., :1]
    means, seconds = estimates.mean(axis=2), np.mean(np.sum(estimates**2, axis=3), axis=2)
    pairs = (seconds[::2] + seconds[1::2]) / 2 - np.sum(means[::2] * means[1::2], axis=2)
    low, high = statistics.interval(pairs, pairs.mean(axis=0), 0.95)
    hits = np.mean((low < d + 1) & (d + 1 < high))
    # A little less than promised is the price of few batches of skewed numbers.
    assert 0.925 < hits < 0.965
    spread = 2 * 1.96 * pairs.mean(axis=0).std()
    # Wider than if the spread were known, as Student's is, too.
    assert 1 < np.mean(high - low) / spread < 1.45


@pytest.mark.parametrize("signal", [0.0, 5.0])
def test_how_well_the_signal_is_known(signal):
    """Its standard error is the spread over many experiments, with and without a signal."""
    generator, found, claimed = np.random.default_rng(4), [], []
    for _ in range(200):
        moments = statistics.Moments()
        for mean in generator.standard_normal((16, 30)) + signal / np.sqrt(30):
            moments.add(mean, np.ones(1))
        found.append(moments.mean.signal)
        claimed.append(moments.signal_stderr)
    assert abs(np.mean(found) - signal**2) < 4 * np.std(found) / np.sqrt(200)
    ratio = np.sqrt(np.mean(np.square(claimed))) / np.std(found)
    assert 0.85 < ratio < (1.2 if signal else 1.7)


def contains_often_enough(hits, count):
    """As often as 95 % intervals should, within four standard errors of a proportion."""
    return abs(hits / count - 0.95) < 4 * np.sqrt(0.95 * 0.05 / count)


@pytest.mark.slow
def test_measured_is_predicted_for_all_periods_and_windows(monkeypatch):
    """And the intervals have their coverage, over seeds, with estimates of the library."""
    monkeypatch.setattr(measured, "BATCHES", 16)
    windows, periods, seeds = (1, 2, 3, 4, 6, 12), (1, 4, 12), 20
    truth = {}
    for window in windows:
        fitting = [p for p in periods if p % window == 0]
        predicted = nres.variance.predict(SYSTEM, PLACE, period=fitting, window=window)
        truth |= {(p, window): v for p, v in zip(fitting, predicted.variance, strict=True)}
    hits, scores = dict.fromkeys(truth, 0), {name: [] for name in truth}
    for seed in range(seeds):
        table = nres.variance.sweep(
            SYSTEM,
            PLACE,
            jax.random.key(seed),
            sigmas=[0.5],
            windows=windows,
            periods=periods,
            samples=256,
        )
        assert len(table.rows) == len(truth)
        for row in table.rows:
            name = (row.period, row.window)
            hits[name] += row.low < truth[name] < row.high
            scores[name].append(row.variance / truth[name])
    for name, ratios in scores.items():
        z = (np.mean(ratios) - 1) / (np.std(ratios, ddof=1) / np.sqrt(seeds))
        assert abs(z) < 4, name
        assert hits[name] >= 15, name  # less than once in a thousand
    # Rows of one seed share their noise; of each pair of settings there are so many seeds.
    assert contains_often_enough(np.mean(list(hits.values())), seeds)


@pytest.mark.parametrize(
    ("make", "period", "window"),
    [
        (lambda **kw: nres.NRES(SYSTEM, window=3, **kw), 12, 3),
        (lambda **kw: nres.PES(SYSTEM, window=2, **kw), 2, 2),
        (lambda **kw: nres.GPES(SYSTEM, window=1, period=5, **kw), 5, 1),
        (lambda **kw: nres.FullES(SYSTEM, **kw), 12, 12),
    ],
    ids=["NRES", "PES", "GPES", "FullES"],
)
def test_measuring_an_estimator(make, period, window):
    estimator = make(workers=5, sigma=0.5)
    fractions = []
    result = nres.variance.measure(estimator, PLACE, KEY, samples=4096, callback=fractions.append)
    expected = theorem(SYSTEM, PLACE, period, window) / 5
    assert result.interval[0] < expected < result.interval[1]
    assert result.interval[1] - result.interval[0] < 0.25 * expected
    z = result.z_scores(SYSTEM.exact_gradient(PLACE))
    assert np.abs(z).max() < 4
    gradient = np.asarray(SYSTEM.exact_gradient(PLACE), np.float64)
    np.testing.assert_allclose(result.signal, gradient @ gradient, rtol=0.1)
    np.testing.assert_allclose(result.snr, gradient @ gradient / expected, rtol=0.2)
    # Each of 4096 pairs runs a whole episode; an estimate of five pairs, a window.
    assert result.samples == 4096
    assert result.cost.total == 2 * 4096 * 12
    assert result.steps == (2 * 5 * window, window)
    np.testing.assert_allclose(result.work, result.variance * 10 * window)
    assert result.nonfinite == 0
    assert fractions[-1] == 1
    # A sweep looks at the same noises in another way.
    table = nres.variance.sweep(
        SYSTEM,
        PLACE,
        KEY,
        sigmas=[0.5],
        windows=[window],
        periods=[period],
        workers=[5],
        samples=4096,
    )
    np.testing.assert_allclose(table.column("variance")[0], result.variance, rtol=1e-3)
    np.testing.assert_allclose(table.column("signal")[0], result.signal, rtol=1e-3)


def test_streaming_is_two_passes(monkeypatch):
    monkeypatch.setattr(measured, "BATCHES", 8)
    estimator = nres.PES(SYSTEM, window=3, workers=2, sigma=0.5)
    result = nres.variance.measure(estimator, PLACE, KEY, samples=32)
    pool = estimator.with_workers(4)
    grads, norms = [], []
    for batch in range(8):
        state = blank_state(pool, PLACE, jax.random.fold_in(KEY, batch))
        for _ in range(4):
            estimate = pool.estimate(PLACE, state)
            grads.append(np.asarray(estimate.grad, np.float64))
            norms.append(np.asarray(estimate.info.contribution_norm, np.float64))
            state = estimate.state
    by_batch = np.array(grads).reshape(8, 4, -1).mean(axis=1)
    mean = by_batch.mean(axis=0)
    np.testing.assert_allclose(result.mean, mean, rtol=1e-4)
    stderr = np.sqrt(np.mean((by_batch - mean) ** 2, axis=0) / 7)
    np.testing.assert_allclose(result.stderr, stderr, rtol=1e-4)
    variance = np.mean(np.square(norms)) - mean @ mean + np.sum(stderr**2)
    np.testing.assert_allclose(result.variance, variance / 2, rtol=1e-4)


def opposed(seed):
    """Every other step the parameters act the other way round."""
    system = quadratic(12, 4, seed)
    changed = (-0.98 * jnp.eye(3), jnp.zeros_like(system.B), 0.01 * system.Q)
    return eqx.tree_at(lambda s: (s.A, s.B, s.Q), system, changed)


@pytest.mark.parametrize(
    ("system", "agree"),
    [(quadratic(12, 4, seed), True) for seed in range(3)]
    + [(opposed(seed), False) for seed in range(2)],
)
def test_nres_against_fulles(system, agree):
    """At equal compute: both formulas, and the condition that decides between them."""
    theta, window = quadratic_theta(4), 3
    predicted = nres.variance.predict(system, theta, period=12, window=window)
    assert (predicted.direction >= 1) == agree
    table = nres.variance.sweep(
        system, theta, KEY, sigmas=[0.5], windows=[window, 12], workers=[1, 4], samples=4096
    )
    (nres_row,) = table.where(window=window, workers=4).rows
    (full_row,) = table.where(window=12, workers=1).rows
    assert nres_row.method == "NRES"
    assert full_row.method == "FullES"
    assert nres_row.total_steps == full_row.total_steps
    assert nres_row.low < predicted.nres / 4 < nres_row.high
    assert full_row.low < predicted.fulles < full_row.high
    # The condition suffices; with d + 1 + W/T instead of d + 1 it would be exact.
    exact = predicted.direction * (4 + 1 + 1 / 4) / (4 + 1)
    assert (exact >= 1) == (predicted.nres / 4 <= predicted.fulles) == agree
    assert (nres_row.high < full_row.low) == agree


def test_smoothed_prediction():
    """Without derivatives, from pairs of samples: on the quadratic smoothing changes nothing."""
    periods = (2, 6, 12)
    result = nres.variance.predict(
        SYSTEM, PLACE, period=periods, window=2, key=KEY, episodes=12, sigma=0.5, samples=300
    )
    expected = nres.variance.predict(SYSTEM, PLACE, period=periods, window=2)
    assert np.abs((result.variance - expected.variance) / result.stderr).max() < 4
    assert np.abs(result.stderr / expected.variance).max() < 0.1
    np.testing.assert_allclose(result.fulles, expected.fulles, rtol=0.2)
    np.testing.assert_allclose(result.direction, expected.direction, rtol=0.2)
    np.testing.assert_allclose(result.linearity, 1, atol=0.1)
    assert expected.linearity == 1


def test_randomness_of_the_system_counts():
    system = quadratic(6, 3, disturbance=1.5)
    theta = quadratic_theta(3)
    still = nres.variance.predict(quadratic(6, 3), theta, period=6, window=2).nres
    predicted = nres.variance.predict(system, theta, period=6, window=2, key=KEY, episodes=400)
    estimator = nres.NRES(system, window=2, workers=1, sigma=0.5)
    result = nres.variance.measure(estimator, theta, KEY, samples=4096)
    stderr = (result.interval[1] - result.interval[0]) / (2 * 1.96)
    assert abs(predicted.variance - result.variance) < 4 * np.hypot(stderr, predicted.stderr)
    assert result.variance > 1.2 * still


@pytest.mark.slow
def test_derivatives_predict_small_noise_and_no_other():
    """A chaotic trajectory bends within the reach of sigma = 0.04, and not within 1e-5."""
    system, theta = nres.systems.Lorenz(), jnp.array([3.3, 2.35])
    predicted = nres.variance.predict(system, theta, period=[500, 2000], window=100)
    table = nres.variance.sweep(
        system,
        theta,
        KEY,
        sigmas=[1e-5, 0.04],
        windows=[100],
        periods=[500, 2000],
        samples=2048,
        level=0.999,
    )
    for row, expected in zip(table.where(sigma=1e-5).rows, predicted.variance, strict=True):
        assert row.low < expected < row.high
    for row, expected in zip(table.where(sigma=0.04).rows, predicted.variance, strict=True):
        assert row.high < expected / 50
    smoothed = [
        nres.variance.predict(
            system, theta, period=2000, window=100, sigma=sigma, samples=200
        ).linearity
        for sigma in (1e-5, 0.04)
    ]
    assert smoothed[0] > 0.9
    assert smoothed[1] < 0.5


@pytest.mark.slow
def test_pools_that_are_not_jax(monkeypatch):
    monkeypatch.setattr(measured, "LARGE_BATCHES", measured.BATCHES)
    theta = THETA[Wave]
    settings = {"sigmas": [0.1], "windows": [3, 10], "periods": [6, 10], "samples": 16}
    ours = nres.variance.sweep(Wave(), theta, KEY, **settings)
    theirs = nres.variance.sweep(NumpyPool(Wave()), theta, KEY, **settings)
    for name in ("variance", "episode_variance", "signal", "loss"):
        np.testing.assert_allclose(theirs.column(name), ours.column(name), rtol=1e-3)
    estimators = [
        nres.NRES(pool, window=3, workers=1, sigma=0.1) for pool in (Wave(), NumpyPool(Wave()))
    ]
    one, other = (nres.variance.measure(e, theta, KEY, samples=16) for e in estimators)
    np.testing.assert_allclose(other.variance, one.variance, rtol=1e-3)
    assert other.cost.total == one.cost.total == 2 * 16 * 10
    one, other = (
        nres.variance.predict(pool, theta, period=10, window=5, key=KEY, sigma=0.1, samples=16)
        for pool in (Wave(), NumpyPool(Wave()))
    )
    np.testing.assert_allclose(other.variance, one.variance, rtol=1e-3)


def hysteretic_gradient(system, thetas, window):
    """What NRES expects where the last windows saw these parameters, one each, newest last."""
    g, windows = np.zeros(thetas.shape[1]), system.horizon // window
    A, B, C = (np.asarray(x, np.float64) for x in (system.A, system.B, system.C))
    for position in range(windows):
        path = thetas[len(thetas) - 1 - position :]
        state = np.asarray(system.start, np.float64) + C @ path[0]
        jacobian = C
        for t in range((position + 1) * window):
            state = A @ state + B @ path[t // window]
            jacobian = A @ jacobian + B
            if t >= position * window:
                slope = np.asarray(system.Q, np.float64) @ state + np.asarray(system.q)
                g += jacobian.T @ slope / system.horizon
    return g


def test_hysteresis(monkeypatch):
    monkeypatch.setattr(measured, "BATCHES", 16)
    estimator = nres.NRES(SYSTEM, window=3, workers=20, sigma=0.1)
    with as_users_run():
        rows = nres.variance.hysteresis(
            estimator, optax.sgd, PLACE, KEY, rates=[0.0, 0.03], updates=6, samples=16384
        )
        # The same training again, by hand, for the parameters on the way.
        theta = PLACE
        state, path = estimator.init(theta, jax.random.split(KEY, 3)[0]), [theta]
        for _ in range(6):
            estimate = estimator.estimate(theta, state)
            theta, state = theta - 0.03 * estimate.grad, estimate.state
            path.append(theta)
    still, moving = rows
    assert still.drift == 0
    assert still.bias < 3 * still.bias_stderr
    assert still.cosine > 0.99
    path = np.asarray(path, np.float64)
    np.testing.assert_allclose(moving.drift, np.linalg.norm(path[-1] - path[-5]), rtol=1e-3)
    expected = hysteretic_gradient(SYSTEM, path, 3)
    fresh = np.asarray(SYSTEM.exact_gradient(jnp.asarray(path[-1], jnp.float32)), np.float64)
    np.testing.assert_allclose(moving.fresh, fresh, atol=4 * moving.bias_stderr)
    np.testing.assert_allclose(moving.running, expected, atol=4 * moving.bias_stderr)
    bias = np.linalg.norm(expected - fresh)
    assert bias > 5 * moving.bias_stderr
    np.testing.assert_allclose(moving.bias, bias, atol=4 * moving.bias_stderr)
    np.testing.assert_allclose(moving.relative, bias / np.linalg.norm(fresh), rtol=0.3)


def test_advice():
    """On a quadratic the loss bends with distance alone: the most noise sees the furthest."""
    fractions = []
    advice = nres.variance.advise(
        SYSTEM,
        PLACE,
        KEY,
        budget=(48_000, 1200),
        sigmas=(0.01, 0.1),
        samples=512,
        callback=fractions.append,
    )
    assert advice.method == "NRES"
    assert advice.workers == 20
    assert advice.sigma == 0.1
    assert advice.updates == (1200 - 12) // advice.window
    # The longest of the windows that come within a fifth of the best one.
    worth = {
        row.window: nres.variance.effective_updates(
            row, 1200, 12, advice.gains[0.1].relative_curvature
        )
        for row in advice.table.where(sigma=0.1, method="NRES").rows
    }
    good = [window for window, value in worth.items() if value >= 0.8 * max(worth.values())]
    assert advice.window == max(good)
    assert advice.effective_updates == worth[advice.window]
    assert len(worth) > len(good)
    assert {row.method for row in advice.table.rows} == {"NRES", "PES", "FullES"}
    assert any(reason.startswith("PES") for reason in advice.reasons)
    assert sorted(fractions) == fractions
    # What a step of length sigma does, by hand.
    gradient = advice.table.gradients[12, 0.1]
    moved = PLACE - jnp.asarray(0.1 * gradient / np.linalg.norm(gradient), jnp.float32)
    after = float(nres.evaluate(SYSTEM, moved, KEY).loss)
    gain = advice.gains[0.1]
    np.testing.assert_allclose(gain.after, after, rtol=0.02)
    # The Hessian is known here, and so is how much noise harms.
    hessian = np.asarray(jax.hessian(lambda th: nres.evaluate(SYSTEM, th, KEY).loss)(PLACE))
    exact = np.asarray(SYSTEM.exact_gradient(PLACE), np.float64)
    along = exact @ hessian @ exact / (exact @ exact)
    np.testing.assert_allclose(gain.relative_curvature, np.trace(hessian) / 4 / along, rtol=0.3)


def test_what_updates_are_worth():
    """Shorter windows are worth more, until the noise of an episode is what counts."""
    table = nres.variance.sweep(
        SYSTEM, PLACE, KEY, sigmas=[0.1], windows=[1, 3, 12], workers=[1, 10_000], samples=512
    )
    worth = {
        (row.window, row.workers): nres.variance.effective_updates(row, 1200, 12, 1.0)
        for row in table.rows
    }
    assert worth[1, 10_000] > 10 * worth[12, 10_000]
    assert worth[1, 10_000] > 0.9 * (1200 - 12)
    # An episode's estimates of one worker are as noisy as FullES, however they are cut.
    np.testing.assert_allclose(worth[1, 1], worth[12, 1], rtol=0.25)
    (full,) = table.where(window=12, workers=1).rows
    np.testing.assert_allclose(full.episode_variance, full.variance, rtol=1e-3)


@pytest.mark.parametrize(
    ("horizon", "base", "expected"),
    [(12, 1, [1, 2, 5, 10, 12]), (1000, 20, [20, 40, 100, 200, 400, 1000]), (1, 1, [1])],
)
def test_windows_to_choose_from(horizon, base, expected):
    assert candidate_windows(horizon, base) == expected


class Flat(nres.System):
    """Nothing to learn."""

    horizon: int = 4

    def init(self, theta, key):
        return jnp.zeros(())

    def step(self, state, theta, t, key):
        return state, jnp.zeros(())


class Explosive(nres.System):
    """Not finite for half of all parameters."""

    horizon: int = 4

    def init(self, theta, key):
        return theta[0]

    def step(self, state, theta, t, key):
        return state, jnp.where(theta[0] > 0, jnp.inf, state)


def test_what_is_not_finite_is_left_out_and_counted():
    """One member of every pair around zero is at fault; three sigmas away, hardly any."""
    at = {"edge": jnp.zeros(1), "safe": -3.0 * jnp.ones(1)}
    settings = {"sigmas": [1.0], "windows": [2], "samples": 64}
    table = nres.variance.sweep(Explosive(), at["edge"], KEY, **settings)
    assert table.rows[0].nonfinite == 64
    assert np.isnan(table.rows[0].variance)
    table = nres.variance.sweep(Explosive(), at["safe"], KEY, **settings)
    assert table.rows[0].nonfinite <= 2
    assert np.isfinite(table.rows[0].variance)
    estimator = nres.NRES(Explosive(), window=2, workers=3, sigma=1.0)
    with pytest.raises(nres.NonFiniteError, match="128 of 128 contributions"):
        nres.variance.measure(estimator, at["edge"], KEY, samples=64)
    # Members of theta = -1 are at fault if the noise is more than one: of pairs, 32 in a hundred.
    result = nres.variance.measure(estimator, -jnp.ones(1), KEY, samples=256)
    assert 0.2 < result.nonfinite / 512 < 0.45
    assert np.isfinite(result.variance)
    strict = nres.NRES(Explosive(), window=2, workers=3, sigma=1.0, nonfinite="raise")
    with pytest.raises(nres.NonFiniteError, match="contributions were not finite"):
        nres.variance.measure(strict, -jnp.ones(1), KEY, samples=256)
    with pytest.raises(nres.NonFiniteError, match="nothing to predict from"):
        nres.variance.predict(Explosive(), at["edge"], period=4, window=2, sigma=1.0, samples=16)
    # Advice does without a sigma that goes too far.
    advice = nres.variance.advise(
        Explosive(), at["safe"], KEY, budget=(1000, 100), sigmas=[0.1, 3000.0], samples=64
    )
    assert advice.sigma == 0.1
    assert "sigma 3000: 64 of 64 episodes with noise were not finite." in advice.reasons


class Nested(nres.System):
    """Parameters of two leaves and of any precision; the loss is quadratic."""

    horizon: int = 6

    def init(self, theta, key):
        return theta["start"][0]

    def step(self, state, theta, t, key):
        state = 0.9 * state + theta["push"].sum()
        return state, 0.5 * state**2


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float32])
def test_all_precisions_and_several_leaves(dtype):
    """Of half precision, too, sums are taken in single."""
    theta = {"start": jnp.ones(1, dtype), "push": jnp.full((2, 2), 0.125, dtype)}
    predicted = nres.variance.predict(Nested(), theta, period=[2, 6], window=2)
    smoothed = nres.variance.predict(
        Nested(), theta, period=[2, 6], window=2, key=KEY, sigma=0.5, samples=256, episodes=4
    )
    np.testing.assert_allclose(smoothed.variance, predicted.variance, rtol=0.25)
    estimator = nres.NRES(Nested(), window=2, workers=1, sigma=0.5)
    result = nres.variance.measure(estimator, theta, KEY, samples=4096)
    assert jax.tree.structure(result.mean) == jax.tree.structure(theta)
    np.testing.assert_allclose(result.variance, predicted.nres, rtol=0.15)


class Steep(nres.System):
    """A gradient of 300, of which half precision cannot hold many."""

    horizon: int = 2

    def init(self, theta, key):
        return jnp.zeros((), theta.dtype)

    def step(self, state, theta, t, key):
        return state, jnp.asarray(300.0, theta.dtype) * theta[0]


def test_sums_of_half_precision_do_not_overflow(x64):
    theta = jnp.zeros(1, jnp.float16)
    result = nres.variance.measure(nres.BPTT(Steep(), workers=1), theta, KEY, samples=64 * 512)
    np.testing.assert_allclose(result.mean, [300.0])
    np.testing.assert_array_equal(result.z_scores(jnp.array([300.0])), [0.0])
    assert np.isinf(result.z_scores(jnp.array([301.0])))
    # And theta may be less precise than what is computed with.
    theta = jnp.zeros(1, jnp.float32)
    predicted = nres.variance.predict(Steep(), theta, period=2, window=1, sigma=0.1, episodes=8)
    np.testing.assert_allclose(predicted.signal, 300.0**2, rtol=0.2)


@pytest.mark.parametrize(
    ("estimator", "unbiased"),
    [
        (nres.TES(SYSTEM, window=3, workers=2, sigma=0.5), False),
        (nres.TBPTT(quadratic(12, 4, disturbance=0.3), window=3, workers=2), False),
        (nres.DODGE(SYSTEM, window=3, workers=2), True),
        (nres.UORO(SYSTEM, window=3, workers=2), True),
    ],
    ids=["TES", "TBPTT", "DODGE", "UORO"],
)
def test_estimators_of_all_kinds_are_measured(estimator, unbiased):
    result = nres.variance.measure(estimator, PLACE, KEY, samples=2048)
    z = np.abs(result.z_scores(SYSTEM.exact_gradient(PLACE))).max()
    assert z < 4 if unbiased else z > 8
    each = 3 if isinstance(estimator, nres.TES) else 1
    assert result.steps == (2 * each * 3, 3)


def test_costs_where_windows_and_episodes_are_shorter():
    """The last of three windows has one step; of two members, some fall."""
    short = nres.NRES(quadratic(7, 2), window=3, workers=3, sigma=0.5)
    result = nres.variance.measure(short, quadratic_theta(2), KEY, samples=64)
    assert result.steps.total == round(3 * 2 * 7 / 3)
    theta = THETA[Faller]
    falling = nres.NRES(Faller(), window=5, workers=10, sigma=0.1)
    result = nres.variance.measure(falling, theta, KEY, samples=256)
    table = nres.variance.sweep(
        Faller(), theta, KEY, sigmas=[0.1], windows=[5], workers=[10], samples=256
    )
    assert result.steps.total < 0.95 * 2 * 10 * 5
    assert abs(table.rows[0].total_steps - result.steps.total) <= 5
    assert result.cost.total < 0.95 * 2 * 256 * 10


def test_settings_of_a_sweep_are_not_compiled_in():
    def run(**changed):
        settings = {"sigmas": [0.5], "windows": [3], "periods": [6], "samples": 64} | changed
        nres.variance.sweep(SYSTEM, PLACE, KEY, **settings)
        sigma = settings["sigmas"][0]
        nres.variance.predict(SYSTEM, PLACE, period=12, window=3, sigma=sigma, samples=16, key=KEY)

    run()
    before = len(compilations)
    run(sigmas=[0.3])
    run(periods=[3, 9, 12])
    run(sigmas=[0.7], workers=[5])
    assert len(compilations) == before > 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda v: v.measure(nres.FullES(SYSTEM, workers=1, sigma=1.0), PLACE, KEY, samples=7),
            "at least 8",
        ),
        (
            lambda v: v.measure(
                nres.FullES(SYSTEM, workers=1, sigma=1.0), PLACE, KEY, samples=8, level=95.0
            ),
            "between 0 and 1",
        ),
        (lambda v: v.predict(SYSTEM, PLACE, period=4, window=3), "multiple of the window"),
        (lambda v: v.predict(SYSTEM, PLACE, period=12, window=13), "at most the horizon"),
        (lambda v: v.predict(SYSTEM, PLACE, period=12, window=3, episodes=0), "episodes"),
        (
            lambda v: v.predict(SYSTEM, PLACE, period=12, window=3, sigma=-1.0),
            "sigma must be positive",
        ),
        (lambda v: v.sweep(SYSTEM, PLACE, KEY, sigmas=[0.0], windows=[3]), "sigma"),
        (lambda v: v.sweep(SYSTEM, PLACE, KEY, sigmas=[0.1], windows=[3], periods=[4]), "multiple"),
        (lambda v: v.sweep(SYSTEM, PLACE, KEY, sigmas=[0.1], windows=[0]), "window must be"),
        (lambda v: v.sweep(SYSTEM, PLACE, KEY, sigmas=[0.1], windows=[]), "windows must be a list"),
        (lambda v: v.sweep(SYSTEM, PLACE, KEY, sigmas=[0.1], windows=[3], periods=[0]), "periods"),
        (
            lambda v: v.advise(SYSTEM, PLACE, KEY, budget=(1000, 100), sigmas=[]),
            "sigmas must be a list",
        ),
        (lambda v: v.advise(SYSTEM, PLACE, KEY, budget=(100, 20)), "two episodes of 12"),
        (lambda v: v.advise(SYSTEM, PLACE, KEY, budget=(100, 60)), "antithetic pair"),
        (
            lambda v: v.advise(Flat(), PLACE, KEY, budget=(1000, 100), sigmas=[0.1], samples=16),
            "may be flat",
        ),
        (
            lambda v: v.hysteresis(
                nres.FullES(SYSTEM, workers=1, sigma=1.0), optax.sgd, PLACE, KEY, rates=[0.1]
            ),
            "no history",
        ),
        (
            lambda v: v.hysteresis(
                nres.NRES(SYSTEM, window=3, workers=1, sigma=1.0),
                optax.sgd,
                PLACE,
                KEY,
                rates=[0.1],
                updates=3,
            ),
            "at least the windows of an episode, 4",
        ),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call(nres.variance)


def test_what_cannot_be_differentiated_says_so():
    with pytest.raises(TypeError, match="NumpyPool cannot be differentiated: give `sigma`"):
        nres.variance.predict(NumpyPool(Wave()), THETA[Wave], period=10, window=5)
