"""Orthogonal noise: exactly Gaussian for each worker, with less variance for all of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nres
from helpers import (
    as_users_run,
    create_run,
    quadratic,
    quadratic_theta,
    samples,
    slow,
    z_scores,
)
from nres import runs
from nres.noise.orthogonal import MOST_PARAMETERS
from nres.workers import groups_of, worker_keys

KEY = jax.random.key(5)
SYSTEM, THETA = quadratic(4, 3), quadratic_theta(3)
SLOPE = jnp.array([1.0, -2.0, 0.5, 3.0])


class Slope(nres.System):
    """The loss is linear, so that theory knows the variance exactly."""

    horizon: int = 4

    def init(self, theta, key):
        return jnp.zeros(())

    def step(self, state, theta, t, key):
        return state, theta @ SLOPE


def draw(key, workers, number, theta, sigma=1.0):
    """Draw the noises of workers in groups, flattened to one row per worker."""
    law, size = nres.Orthogonal(), sum(x.size for x in jax.tree.leaves(theta))
    group = groups_of(key, workers, law.group_size(workers, size))
    keys, number = worker_keys(key, workers), jnp.full(workers, number, jnp.int32)
    rows = law.draw(keys, number, jnp.full(workers, sigma), theta, group=group)
    leaves = [x.reshape(workers, -1) for x in jax.tree.leaves(rows)]
    return jnp.concatenate([x.astype(leaves[-1].dtype) for x in leaves], axis=1)


@pytest.mark.parametrize("workers", [slow(3), slow(5), 12])
def test_noises_of_a_group_are_orthogonal(workers):
    theta = {"a": jnp.zeros((2, 2)), "b": jnp.zeros(())}
    rows = np.asarray(draw(KEY, workers, 7, theta, 0.1), float)
    products = rows @ rows.T / np.linalg.norm(rows, axis=1) / np.linalg.norm(rows, axis=1)[:, None]
    size = min(workers, 5)
    same = np.arange(workers)[:, None] // size == np.arange(workers) // size
    np.testing.assert_allclose(products[same & ~np.eye(workers, dtype=bool)], 0, atol=2e-6)
    assert np.abs(products[~same]).min(initial=1) > 1e-4


@pytest.mark.parametrize("dtype", ["float32", slow("float64"), slow("bfloat16")])
def test_each_noise_is_gaussian(dtype, x64):
    """All moments up to the fourth, of single elements and of products within a worker."""
    theta = jnp.zeros(4, dtype)
    one = jax.jit(lambda key: draw(key, 3, 2, theta))
    rows = np.asarray(jax.lax.map(one, jax.random.split(KEY, 4000)), float)
    for power, moment in [(1, 0), (2, 1), (3, 0), (4, 3)]:
        assert np.abs(z_scores(rows**power, moment)).max() < 4.5  # of 12
    i, j = np.triu_indices(4, 1)
    for left, right, moment in ((1, 1, 0), (2, 2, 1), (1, 3, 0)):
        products = rows[:, :, i] ** left * rows[:, :, j] ** right
        assert np.abs(z_scores(products, moment)).max() < 4.5  # of 18


def test_noise_depends_on_the_group_and_the_number_alone():
    law, theta, count = nres.Orthogonal(), jnp.zeros(4), 8
    keys, group = worker_keys(KEY, count), groups_of(KEY, count, 4)
    number = jnp.array([0, 0, 1, 1, 0, 2, 2, 2], jnp.int32)
    rows = law.draw(keys, number, jnp.ones(count), theta, group=group)
    part = slice(2, 7)
    some = law.draw(
        keys[part],
        number[part],
        jnp.ones(5),
        theta,
        group=nres.noise.Group(group.key[part], group.row[part], 4),
    )
    np.testing.assert_array_equal(rows[part], some)
    products = np.asarray(rows @ rows.T)
    for i, j, same in [(0, 1, True), (2, 3, True), (1, 2, False), (5, 7, True), (4, 5, False)]:
        assert (abs(products[i, j]) < 1e-5) == same


def test_few_workers_on_many_parameters_are_independent():
    law = nres.Orthogonal()
    assert law.group_size(100, 30) == 30
    assert law.group_size(25, 100) == 25
    assert law.group_size(24, 100) == 1
    assert law.group_size(10**6, MOST_PARAMETERS + 1) == 1
    theta, keys = jnp.zeros(100), worker_keys(KEY, 24)
    for noise in (law, nres.Gaussian()):
        assert (
            nres.NRES(Slope(), workers=24, window=2, sigma=0.1, noise=noise).group_size(theta) == 1
        )
    number = jnp.zeros(24, jnp.int32)
    np.testing.assert_array_equal(
        *(n.draw(keys, number, jnp.ones(24), theta) for n in (law, nres.Gaussian()))
    )


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        (nres.NRES, {"window": 1}),
        slow(nres.FullES, {}),
        slow(nres.PES, {"window": 1}),
        slow(nres.GPES, {"window": 1, "period": 2}),
        slow(nres.DODGE, {"window": 2}),
    ],
)
def test_unbiased_after_workers_were_moved_apart(method, arguments):
    if method is not nres.DODGE:
        arguments = arguments | {"sigma": 0.5}
    estimator = method(SYSTEM, workers=6, noise=nres.Orthogonal(), **arguments)
    z = z_scores(samples(estimator, THETA, updates=3), SYSTEM.exact_gradient(THETA))
    assert np.abs(z).max() < 4


@pytest.mark.parametrize("workers", [4, slow(3)])
def test_variance_is_that_of_the_theory(workers):
    """The variance of a group's mean is ((d + 2) / B - 1) |g|² where losses are linear."""
    estimator = nres.FullES(Slope(), workers=workers, sigma=0.3, noise=nres.Orthogonal())
    measured = nres.variance.measure(estimator, jnp.zeros(4), KEY, samples=1600, level=0.999)
    low, high = measured.interval
    expected = (6 / workers - 1) * float(SLOPE @ SLOPE)
    assert low < expected < high
    assert high < 5 / workers * float(SLOPE @ SLOPE)  # of independent noises
    assert np.abs(measured.z_scores(SLOPE)).max() < 4


@pytest.mark.slow
def test_variance_of_a_running_pool_is_less():
    """Workers at different steps of their episodes are orthogonal to most others."""
    found = []
    for noise in (nres.Gaussian(), nres.Orthogonal()):
        estimator = nres.NRES(Slope(), workers=4, window=1, sigma=0.3, noise=noise)
        options = {"samples": 1600, "level": 0.999, "together": True}
        found.append(nres.variance.measure(estimator, jnp.zeros(4), KEY, **options))
    assert found[1].interval[1] < found[0].interval[0]


@pytest.mark.slow
def test_a_run_goes_on_as_if_uninterrupted(tmp_path):
    with as_users_run():
        runs.execute(create_run(tmp_path / "part", updates=10, noise="orthogonal"))
        runs.execute(runs.Run.open(tmp_path / "part"), updates=20)
        whole = runs.execute(create_run(tmp_path / "whole", noise="orthogonal"))
        other = runs.execute(create_run(tmp_path / "other", noise="gaussian"))
    found = runs.Run.open(tmp_path / "part").theta()["velocity"]
    np.testing.assert_array_equal(found, whole.result.theta["velocity"])
    assert not np.allclose(found, other.result.theta["velocity"])
