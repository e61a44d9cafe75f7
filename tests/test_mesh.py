"""Workers on several devices: the same results, whatever their number."""

import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import nres
from helpers import THETA, Faller, Spiral, as_users_run, portions_drawn, raises_naming, slow
from nres.estimators import computing
from nres.estimators.values import PARTS
from numpy_pool import NumpyPool
from table import mesh

KEY = jax.random.key(2)


def on(*shape):
    return nres.placement.Devices(mesh(*shape))


@pytest.mark.slow
def test_workers_stay_where_they_are():
    estimator = nres.PES(Faller(), workers=16, window=4, sigma=0.1, placement=on(8))
    theta = THETA[Faller]
    state = estimator.init(theta, KEY)
    estimate = estimator.estimate(theta, state)
    for leaf in jax.tree.leaves(estimate.state.carry):
        assert len(leaf.sharding.device_set) == 8
        assert not leaf.is_fully_replicated
    assert estimate.grad.is_fully_replicated


@pytest.mark.slow
def test_training_is_the_same_and_continues_on_other_devices():
    def train(placement, **options):
        estimator = nres.NRES(Faller(), workers=8, window=4, sigma=0.1, placement=placement)
        return nres.train(estimator, optax.adam(0.01), **options)

    with as_users_run():
        theta = THETA[Faller]
        alone = train(nres.placement.Local(), theta=theta, updates=20, key=KEY)
        half = train(on(8), theta=theta, updates=10, key=KEY)
        # As from a checkpoint: without a memory of where it was.
        theta, state = jax.device_get((half.theta, half.state))
        whole = train(on(2), theta=theta, updates=10, state=state)
    np.testing.assert_allclose(whole.theta, alone.theta, rtol=1e-4)
    assert whole.state.steps == alone.state.steps


@pytest.mark.slow
def test_drawing_noise_for_few_workers_at_a_time(monkeypatch):
    portions = portions_drawn(monkeypatch)

    def train(placement):
        options = {"window": 1, "sigma": 0.1, "phases": "independent", "placement": placement}
        estimator = nres.NRES(Faller(), workers=96, **options)
        return nres.train(estimator, optax.sgd(0.01), THETA[Faller], updates=20, key=KEY)

    with as_users_run():
        alone, spread = train(nres.placement.Local()), train(on(4))
    np.testing.assert_allclose(spread.theta, alone.theta, rtol=1e-4)
    assert portions == {22, 9}  # of 96 workers, and of a device's 24


def test_measuring_on_several_devices():
    estimators = [
        nres.NRES(Faller(), workers=4, window=5, sigma=0.1, placement=placement)
        for placement in (nres.placement.Local(), on(4))
    ]
    one, other = (nres.variance.measure(e, THETA[Faller], KEY, samples=256) for e in estimators)
    np.testing.assert_allclose(other.variance, one.variance, rtol=1e-3)


def test_a_mesh_of_one_device_computes_on_that_device():
    other = jax.make_mesh((1,), ("workers",), devices=jax.devices()[3:4])
    placement = nres.placement.Devices(other)
    estimator = nres.NRES(Faller(), workers=3, window=4, sigma=0.1, placement=placement)
    state = estimator.init(THETA[Faller], KEY)
    grad = estimator.estimate(THETA[Faller], state).grad
    assert grad.devices() == {jax.devices()[3]}


def test_a_mesh_of_one_device_trains_as_without_and_compiles_once(compilations):
    def train(placement):
        estimator = nres.NRES(Faller(), workers=5, window=4, sigma=0.1, placement=placement)
        compilations.clear()
        result = nres.train(estimator, optax.sgd(0.01), THETA[Faller], updates=6, key=KEY)
        return result.theta, sum("_many_updates" in name for name in compilations)

    (alone, _), (found, compiled) = train(nres.placement.Local()), train(on(1))
    np.testing.assert_allclose(found, alone, rtol=1e-6)
    assert compiled == 1


class Sum(nres.System):
    horizon: int = 12

    def init(self, theta, key):
        return jnp.zeros(())

    def step(self, state, theta, t, key):
        state = 0.9 * state + theta.sum()
        return state, state**2


def collectives(placement):
    """The types and kinds of what devices exchange in one compiled estimate."""
    estimator = nres.NRES(Sum(), workers=8, window=4, sigma=0.1, placement=placement)
    theta = jnp.ones(29)
    state = estimator.init(theta, KEY)
    lowered = eqx.filter_jit(computing.compute_estimate).lower(estimator, theta, state)
    text = lowered.lowered.compile().as_text()
    return re.findall(r"= (.*?) (all-\w+|reduce-scatter|collective-permute)\(", text)


@pytest.mark.parametrize("devices", [slow(2), 4, slow(8)])
def test_devices_exchange_one_sum_of_gradients_and_a_few_numbers(devices):
    found = collectives(on(devices))
    assert {kind for _, kind in found} == {"all-reduce"}
    assert len(found) <= 6
    # The gradient is all of it that is as long as theta: the rest are single numbers.
    sizes = [int(size) for of, _ in found for size in re.findall(r"\[(\d+)\]", of)]
    assert sizes.count(29) == 1
    assert max(size for size in sizes if size != 29) <= PARTS


def test_one_device_exchanges_nothing():
    assert collectives(on(1)) == []


def test_workers_and_pools_that_do_not_fit_are_refused():
    with raises_naming(ValueError, "workers", 12, 8, 16):
        nres.NRES(Spiral(), workers=12, window=4, sigma=0.1, placement=on(8))
    with raises_naming(ValueError, "workers", 5, 8):
        nres.BPTT(Spiral(), workers=5, placement=on(8))
    with raises_naming(TypeError, "mesh"):
        nres.placement.Devices(8)
    with raises_naming(TypeError, "NumpyPool"):
        nres.NRES(NumpyPool(Faller()), workers=8, window=4, sigma=0.1, placement=on(8))
    with raises_naming(TypeError, "placement"):
        nres.NRES(Spiral(), workers=8, window=4, sigma=0.1, placement=mesh(8))
