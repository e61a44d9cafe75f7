"""Every estimator against a NumPy transcription of its pseudocode, given the same noise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nres
from helpers import THETA, Faller, Twin, Wave, slow, state_at_step_0
from numpy_pool import NumpyPool
from reference import Worker, run

WORKERS = 5
SEED = 3
CASES = [
    # method, T, W, K, and where it runs
    ("FullES", 10, 10, 10, "jax"),
    slow("NRES", 10, 2, 10, "jax"),
    ("NRES", 10, 3, 10, "jax"),
    ("NRES", 10, 3, 10, "numpy"),
    ("NRES", 7, 1, 7, "jax"),
    slow("PES", 10, 2, 2, "jax"),
    ("PES", 10, 4, 4, "jax"),
    slow("GPES", 10, 1, 3, "jax"),
    ("GPES", 9, 2, 6, "jax"),
    ("GPES", 9, 2, 6, "numpy"),
    slow("TES", 10, 2, 2, "jax"),
    ("TES", 10, 3, 3, "jax"),
    ("TES", 10, 3, 3, "numpy"),
    slow("TES", 10, 10, 10, "jax"),
]


def make(method, system, window, period, sigma):
    arguments = {"workers": WORKERS, "sigma": sigma}
    if method != "FullES":
        arguments |= {"window": window, "phases": "independent"}
    if method == "GPES":
        arguments["period"] = period
    return getattr(nres, method)(system, **arguments)


compiled_draw = jax.jit(nres.Gaussian().draw)


def reference_workers(system, window, period, restarts):
    """Workers that know the library's keys: (seed, worker, episode, noise within the episode)."""
    count, windows = -(-system.horizon // period), -(-system.horizon // window)
    workers, offsets = [], []
    for i in range(WORKERS):
        key = jax.random.fold_in(jax.random.key(SEED), i)

        def noise(episode, index, key=key):
            number = jnp.array([episode * count + index])
            rows = compiled_draw(key[None], number, jnp.ones(1), jnp.zeros(2, float))
            return np.asarray(rows[0], np.float64)

        def episode_key(episode, key=key):
            data = jax.random.key_data(jax.random.fold_in(key, episode))
            return np.asarray(data)

        workers.append(
            Worker(Twin(system), noise, episode_key, system.horizon, window, period, restarts)
        )
        offset_key = jax.random.fold_in(key, 2**32 - 1)
        offsets.append(int(jax.random.randint(offset_key, (), 0, windows, jnp.int32)))
    return workers, offsets


@pytest.mark.parametrize("kind", [slow(Wave), Faller])
@pytest.mark.parametrize(("method", "horizon", "window", "period", "where"), CASES)
def test_matches_pseudocode(method, horizon, window, period, where, kind):
    # Members that end early are the harder case for steps that are taken before the first update.
    compare(method, horizon, window, period, where, kind, 2e-5, moved_apart=kind is Faller)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "horizon", "window", "period", "where"), CASES)
def test_matches_pseudocode_after_workers_were_moved_apart(method, horizon, window, period, where):
    compare(method, horizon, window, period, where, Wave, 2e-5, moved_apart=True)


@pytest.mark.parametrize("method", ["NRES", slow("GPES")])
def test_matches_pseudocode_in_double_precision(method, x64):
    period = {"NRES": 10, "GPES": 6}[method]
    compare(method, 10, 3, period, "jax", Wave, 1e-10, moved_apart=True)


def compare(method, horizon, window, period, where, kind, rtol, moved_apart):
    theta = THETA[kind].astype(float)
    system = kind(horizon)
    sigma = lambda update: 0.3 - 0.02 * jnp.minimum(update, 10).astype(float)  # noqa: E731
    pool = NumpyPool(system) if where == "numpy" else system
    estimator = make(method, pool, window, period, sigma)
    updates = 2 * -(-horizon // window) + 1

    restarts = method == "TES" and window < horizon
    workers, offsets = reference_workers(system, window, period, restarts)
    if not moved_apart:
        offsets = [0] * WORKERS
    unlock, expected = run(
        np.asarray(theta, np.float64),
        workers,
        offsets,
        updates,
        lambda u: float(sigma(jnp.asarray(u))),
    )

    key = jax.random.key(SEED)
    if moved_apart:
        state, unlocking = estimator.unlock(theta, key)
        assert unlocking.total == unlock
    else:
        state = state_at_step_0(estimator, theta, key)
    np.testing.assert_array_equal(state.workers.start, np.array(offsets) * window)
    for gradient, loss, steps in expected:
        estimate = estimator.estimate(theta, state)
        scale = max(1.0, np.abs(gradient).max())
        np.testing.assert_allclose(estimate.grad, gradient, rtol=rtol, atol=rtol * scale)
        np.testing.assert_allclose(estimate.loss, loss, rtol=rtol)
        assert estimate.steps.total == steps
        assert estimate.info.nonfinite == 0
        state = estimate.state
