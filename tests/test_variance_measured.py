"""Measured variances: closed forms on the quadratic, intervals, costs, and half precision."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nres
from helpers import THETA, Faller, Wave, quadratic, quadratic_theta, raises_naming, slow
from nres.estimators.computing import blank_state
from nres.variance import measured, statistics
from numpy_pool import NumpyPool
from reference import theorem

KEY = jax.random.key(8)
SYSTEM, PLACE = quadratic(12, 4), quadratic_theta(4)


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
def test_standard_error_of_the_signal(signal):
    """It equals the standard deviation over many experiments, with and without a signal."""
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
    """Tell if 95 % intervals contain the truth often enough, within four standard errors."""
    return abs(hits / count - 0.95) < 4 * np.sqrt(0.95 * 0.05 / count)


@pytest.mark.slow
def test_measured_is_predicted_for_all_periods_and_windows(monkeypatch):
    """Over many seeds the intervals have their coverage, too."""
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
        slow(lambda **kw: nres.PES(SYSTEM, window=2, **kw), 2, 2),
        slow(lambda **kw: nres.GPES(SYSTEM, window=1, period=5, **kw), 5, 1),
        slow(lambda **kw: nres.FullES(SYSTEM, **kw), 12, 12),
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


class Explosive(nres.System):
    """A system whose loss is infinite for half of all parameters."""

    horizon: int = 4

    def init(self, theta, key):
        return theta[0]

    def step(self, state, theta, t, key):
        return state, jnp.where(theta[0] > 0, jnp.inf, state)


@pytest.mark.slow
def test_nonfinite_contributions_are_left_out_and_counted():
    """One member of every pair around zero is infinite; three sigmas away, hardly any is."""
    at = {"edge": jnp.zeros(1), "safe": -3.0 * jnp.ones(1)}
    settings = {"sigmas": [1.0], "windows": [2], "samples": 64}
    table = nres.variance.sweep(Explosive(), at["edge"], KEY, **settings)
    assert table.rows[0].nonfinite == 64
    assert np.isnan(table.rows[0].variance)
    table = nres.variance.sweep(Explosive(), at["safe"], KEY, **settings)
    assert table.rows[0].nonfinite <= 2
    assert np.isfinite(table.rows[0].variance)
    estimator = nres.NRES(Explosive(), window=2, workers=3, sigma=1.0)
    with raises_naming(nres.NonFiniteError, 128):
        nres.variance.measure(estimator, at["edge"], KEY, samples=64)
    # Members of theta = -1 are at fault if the noise is more than one: of pairs, 32 in a hundred.
    result = nres.variance.measure(estimator, -jnp.ones(1), KEY, samples=256)
    assert 0.2 < result.nonfinite / 512 < 0.45
    assert np.isfinite(result.variance)
    strict = nres.NRES(Explosive(), window=2, workers=3, sigma=1.0, nonfinite="raise")
    with pytest.raises(nres.NonFiniteError):
        nres.variance.measure(strict, -jnp.ones(1), KEY, samples=256)
    with pytest.raises(nres.NonFiniteError):
        nres.variance.predict(Explosive(), at["edge"], period=4, window=2, sigma=1.0, samples=16)
    # Advice does without a sigma that goes too far.
    advice = nres.variance.advise(
        Explosive(), at["safe"], KEY, budget=(1000, 100), sigmas=[0.1, 3000.0], samples=64
    )
    assert advice.sigma == 0.1
    assert any("sigma 3000" in reason and "64 of 64" in reason for reason in advice.reasons)


class Steep(nres.System):
    """A system with a gradient of 300; half precision cannot add up many of those."""

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
        slow(nres.DODGE(SYSTEM, window=3, workers=2), True),
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


@pytest.mark.slow
def test_costs_where_windows_and_episodes_are_shorter():
    """The last of three windows has one step, and some members end early."""
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
