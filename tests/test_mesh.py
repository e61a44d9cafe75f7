"""Workers on several devices: the same results, whatever their number."""

import jax
import numpy as np
import optax
import pytest

import nres
from helpers import THETA, Faller, Spiral, as_users_run, spiral_theta

KEY = jax.random.key(2)
ESTIMATORS = {
    "FullES": lambda pool: nres.FullES(pool, workers=8, sigma=0.1),
    "NRES": lambda pool: nres.NRES(pool, workers=8, window=4, sigma=0.1),
    "PES": lambda pool: nres.PES(pool, workers=8, window=5, sigma=0.1),
    "TES": lambda pool: nres.TES(pool, workers=8, window=5, sigma=0.1, noise="regenerate"),
    "BPTT": lambda pool: nres.BPTT(pool, workers=8),
    "TBPTT": lambda pool: nres.TBPTT(pool, workers=8, window=4),
    "DODGE": lambda pool: nres.DODGE(pool, workers=8, window=4),
    "UORO": lambda pool: nres.UORO(pool, workers=8, window=4),
}


def mesh_of(*shape):
    names = ("hosts", "devices")[: len(shape)]
    return jax.make_mesh(shape, names, devices=jax.devices()[: np.prod(shape)])


def gradients(estimator, theta):
    state, found = estimator.init(theta, KEY), []
    unlocked = state.unlock_steps
    for _ in range(4):
        estimate = estimator.estimate(theta, state)
        found.append(jax.device_get((estimate.grad, estimate.loss, estimate.info)))
        state = estimate.state
    return found, (estimate.steps, unlocked)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_any_number_of_devices_gives_the_same(name):
    theta, make = spiral_theta(), ESTIMATORS[name]
    alone, steps = gradients(make(Spiral()), theta)
    for shape in ((2,), (2, 4)) if name == "NRES" else ((4,),):
        together, their_steps = gradients(make(nres.JaxPool(Spiral(), mesh=mesh_of(*shape))), theta)
        assert their_steps == steps
        for one, other in zip(jax.tree.leaves(alone), jax.tree.leaves(together), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_workers_stay_where_they_are():
    pool = nres.JaxPool(Faller(), mesh=mesh_of(8))
    estimator = nres.PES(pool, workers=16, window=4, sigma=0.1)
    theta = THETA[Faller]
    state = estimator.init(theta, KEY)
    estimate = estimator.estimate(theta, state)
    for leaf in jax.tree.leaves(estimate.state.carry):
        assert len(leaf.sharding.device_set) == 8
        assert not leaf.is_fully_replicated
    assert estimate.grad.is_fully_replicated


def test_training_is_the_same_and_continues_on_other_devices():
    def train(mesh, **options):
        pool = nres.JaxPool(Faller(), mesh=mesh)
        estimator = nres.NRES(pool, workers=8, window=4, sigma=0.1)
        return nres.train(estimator, optax.adam(0.01), **options)

    with as_users_run():
        theta = THETA[Faller]
        alone = train(None, theta=theta, updates=20, key=KEY)
        half = train(mesh_of(8), theta=theta, updates=10, key=KEY)
        # As from a checkpoint: without a memory of where it was.
        theta, state = jax.device_get((half.theta, half.state))
        whole = train(mesh_of(2), theta=theta, updates=10, state=state)
    np.testing.assert_allclose(whole.theta, alone.theta, rtol=1e-4)
    assert whole.state.steps == alone.state.steps


def test_measuring_on_several_devices():
    estimators = [
        nres.NRES(nres.JaxPool(Faller(), mesh=mesh), workers=4, window=5, sigma=0.1)
        for mesh in (None, mesh_of(4))
    ]
    one, other = (nres.variance.measure(e, THETA[Faller], KEY, samples=256) for e in estimators)
    np.testing.assert_allclose(other.variance, one.variance, rtol=1e-3)


def test_one_device_needs_no_mesh():
    assert nres.JaxPool(Spiral(), mesh=mesh_of(1)).mesh is None
    other = jax.make_mesh((1,), ("workers",), devices=jax.devices()[3:4])
    pool = nres.JaxPool(Faller(), mesh=other)
    estimator = nres.NRES(pool, workers=3, window=4, sigma=0.1)
    state = estimator.init(THETA[Faller], KEY)
    grad = estimator.estimate(THETA[Faller], state).grad
    assert grad.devices() == {jax.devices()[3]}


def test_what_does_not_fit():
    pool = nres.JaxPool(Spiral(), mesh=mesh_of(8))
    with pytest.raises(ValueError, match="12 is no multiple of that: take 8 or 16"):
        nres.NRES(pool, workers=12, window=4, sigma=0.1)
    with pytest.raises(ValueError, match="5 is no multiple of that: take 8"):
        nres.BPTT(pool, workers=5)
    with pytest.raises(TypeError, match=r"must be a jax\.sharding\.Mesh"):
        nres.JaxPool(Spiral(), mesh=8)
