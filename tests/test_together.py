"""Several systems with the same parameters, whose losses are averaged."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nres
from helpers import Wave, Well, raises_naming
from nres.systems import learned_optimizer as lo
from nres.systems.together import Together
from small_tasks import small_task

KEY = jax.random.key(4)


def gradient(system, theta, **options):
    estimator = nres.BPTT(system, workers=1, **options)
    return estimator.estimate(theta, estimator.init(theta, KEY)).grad


def test_the_gradient_is_the_mean_of_the_systems_gradients():
    systems = [Well(), Scaled()]
    theta = jnp.asarray([0.3, -0.2])
    each = [gradient(system, theta) for system in systems]
    np.testing.assert_allclose(gradient(Together(systems), theta), sum(each) / 2, rtol=1e-6)


class Scaled(nres.System):
    horizon: int = 6

    def init(self, theta, key):
        return theta[0]

    def step(self, state, theta, t, key):
        state = jnp.sin(state + theta[1])
        return state, 3 * state**2


@pytest.mark.slow
def test_an_optimizer_learns_on_models_of_two_shapes():
    optimizer = lo.PerParameterMLP(4, 1)
    wide = small_task()
    narrow = lo.Task(
        lambda key: {"w": jax.random.normal(key, (3,))},
        lambda params, x: jnp.mean((x @ params["w"] - 1) ** 2),
        np.eye(3, dtype=np.float32),
        batch=2,
    )
    systems = [
        lo.LearnedOptimizerSystem(task, optimizer, horizon=6, sequence="random")
        for task in (wide, narrow)
    ]
    system = Together(systems)
    theta = system.initial_theta(KEY)
    estimator = nres.NRES(system, workers=4, window=2, sigma=0.01)
    estimate = estimator.estimate(theta, estimator.init(theta, KEY))
    assert np.isfinite(estimate.grad).all()
    assert np.abs(estimate.grad).sum() > 0
    metrics = system.metrics(theta, KEY)
    own = [
        each.metrics(theta, jax.random.fold_in(KEY, i))["loss"] for i, each in enumerate(systems)
    ]
    np.testing.assert_allclose(metrics["loss"], np.mean(own), rtol=1e-6)
    np.testing.assert_allclose([metrics["loss_0"], metrics["loss_1"]], own, rtol=1e-6)
    assert system.metrics_steps == 12


def test_a_system_without_metrics_is_measured_by_its_loss():
    theta = jnp.asarray([0.3, -0.2])
    metrics = Together([Well(), Scaled()]).metrics(theta, KEY)
    losses = [nres.evaluate(system, theta, KEY).loss for system in (Well(), Scaled())]
    np.testing.assert_allclose(metrics["loss"], np.mean(losses), rtol=1e-6)


class Ending(Scaled):
    def step(self, state, theta, t, key):
        return *super().step(state, theta, t, key), state > 2


def test_what_does_not_fit_is_refused():
    with raises_naming(ValueError, "at least one"):
        Together([])
    with raises_naming(ValueError, "horizon"):
        Together([Well(), Wave(horizon=10)])
    with raises_naming(ValueError, "Ending"):
        gradient(Together([Well(), Ending()]), jnp.asarray([0.3, -0.2]))
