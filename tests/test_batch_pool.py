"""A second traceable pool, in one file outside the package, works with every feature."""

from pathlib import Path

import jax
import numpy as np
import optax
import pytest

import nres
from helpers import as_users_run, invoke
from table import ESTIMATORS, PLACEMENTS, POOLS

KEY = jax.random.key(2)
EXAMPLE = Path(__file__).parents[1] / "examples" / "batch_pool.py"


@pytest.mark.slow
def test_evaluation_variance_and_training_accept_it():
    pool, system, theta = POOLS["batch"]()
    ours, theirs = (nres.evaluate(p, theta, KEY, episodes=5).losses for p in (pool, system))
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    make, devices = ESTIMATORS["NRES"], PLACEMENTS["two devices"]()
    one, other, placed = make(system), make(pool), make(pool, placement=devices)
    measured = [nres.variance.measure(e, theta, KEY, samples=64).variance for e in (one, other)]
    np.testing.assert_allclose(*measured, rtol=1e-4)
    options = {"sigmas": [0.1], "windows": [4, 12], "samples": 16}
    tables = [nres.variance.sweep(p, theta, KEY, **options) for p in (pool, system)]
    np.testing.assert_allclose(*(t.column("variance") for t in tables), rtol=1e-4)
    predicted = [nres.variance.predict(p, theta, period=12, window=4) for p in (pool, system)]
    np.testing.assert_allclose(*(p.variance for p in predicted), rtol=1e-4)
    with as_users_run():
        thetas = [
            nres.train(e, optax.sgd(0.1), theta, updates=5, key=KEY).theta for e in (one, placed)
        ]
    np.testing.assert_allclose(*thetas, rtol=1e-4)


@pytest.mark.slow
def test_from_the_command_line(tmp_path, undrawn):
    out = tmp_path / "run"
    options = ["--sigma", 0.1, "--lr", 0.05, "--workers", 4, "--window", 6, "--quiet"]
    name = f"{EXAMPLE}:Pendulums"
    train = ["train", name, *options, "--updates", 4, "--devices", 2, "--out", out]
    for command in (train, ["resume", out, "--updates", 6, "--devices", 1, "--quiet"]):
        result = invoke(*command)
        assert result.exit_code == 0, result.output
    assert nres.runs.Run.open(out).metrics["update"][-1] == 6
