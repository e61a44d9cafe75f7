"""The paper's initial parameters: their seeds, and what is known about them."""

import jax
import numpy as np
import pytest

from nres import runs
from nres.pools.mujoco import MujocoPool
from nres.runs.starts import model_start, optimizer_start, policy_start


def old_split(key):
    with jax.threefry_partitionable(False):
        return jax.random.split(key)


def old_normal(key, shape):
    with jax.threefry_partitionable(False):
        return np.asarray(jax.random.truncated_normal(key, -2, 2, shape))


def test_the_policy_of_halfcheetah():
    pool = MujocoPool("halfcheetah", variance=0.03)
    theta = policy_start(pool, 1)
    drawn = old_normal(old_split(jax.random.PRNGKey(1))[1], (17, 6))
    scale = np.sqrt(0.03 / 17) / 0.87962566
    np.testing.assert_allclose(theta, scale * drawn.T, rtol=1e-5)
    # The paper's start returns about -1018; the mean over 20 episodes scatters by about 48.
    found = float(pool.metrics(theta, jax.random.key(2))["return"])
    assert abs(found + 1018) < 3 * 48


def test_the_larger_policy():
    pool = MujocoPool("halfcheetah", "mlp:30:relu", variance=0.3)
    theta = policy_start(pool, 1)
    key, own = old_split(jax.random.PRNGKey(1))
    _, second = old_split(key)
    scale = np.sqrt(0.3 / np.array([17, 30])) / 0.87962566
    np.testing.assert_allclose(
        theta[0]["weight"], scale[0] * old_normal(own, (17, 30)).T, rtol=1e-5
    )
    np.testing.assert_allclose(
        theta[1]["weight"], scale[1] * old_normal(second, (30, 6)).T, rtol=1e-5
    )
    assert sum(leaf.size for leaf in jax.tree.leaves(theta)) == 726
    assert not any(layer["bias"].any() for layer in theta)


def test_policies_that_the_paper_does_not_have():
    plain = MujocoPool("halfcheetah", variance=0.03)
    normalised = MujocoPool("halfcheetah", variance=0.03, normalise=True)
    theta = policy_start(normalised, 1)
    np.testing.assert_array_equal(theta["policy"], policy_start(plain, 1))
    assert theta["observations"].count == 0
    normalised.check(theta)
    recurrent = MujocoPool("halfcheetah", "gru:4")
    recurrent.check(policy_start(recurrent, 1))


def test_the_learned_optimizer_has_the_papers_weights():
    system = runs.SYSTEMS["learned-optimizer"].make(model_seed=88, horizon=1)
    theta = np.asarray(optimizer_start(system, 2))
    drawn = old_normal(old_split(jax.random.PRNGKey(2))[1], (19, 32)) / np.sqrt(19)
    first = theta[: 19 * 32].reshape(19, 32)
    # Here the running means come before the gradient and the parameter.
    np.testing.assert_allclose(first[:6], drawn[2:8], rtol=1e-5)
    np.testing.assert_allclose(first[6:8], drawn[:2], rtol=1e-5)
    np.testing.assert_allclose(first[8:], drawn[8:], rtol=1e-5)
    assert theta.shape == (1762,)
    # The key of the model, and the half that is spent before its first layer.
    key = old_split(old_split(jax.random.PRNGKey(88))[0])[0]
    key, _ = old_split(key)
    weight = old_normal(old_split(key)[1], (64, 32)) / np.sqrt(64)
    np.testing.assert_allclose(system.start[0]["weight"], weight, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("data_seed", [0, 1])
def test_the_loss_at_the_start_of_the_learned_optimizer(data_seed):
    system = runs.SYSTEMS["learned-optimizer"].make(model_seed=88, data_seed=data_seed)
    theta = optimizer_start(system, 2)
    assert 80 < float(system.metrics(theta, jax.random.key(0))["loss"]) < 88


def test_the_convolutional_model_has_a_start():
    task = runs.SYSTEMS["learned-optimizer-cifar10"]
    assert (task.start_seed, task.options) == (66, {"model_seed": 5})
    small = runs.SYSTEMS["learned-optimizer"].make(horizon=1).task
    assert [layer["weight"].shape for layer in model_start(small, 0)] == [
        (64, 32),
        (32, 32),
        (32, 32),
        (32, 10),
    ]


def test_presets_start_there_whatever_the_seed():
    for seed in (0, 1):
        settings = runs.resolve("halfcheetah", "nres", seed=seed, eval_every=10)
        assert settings.start_seed == 1
        built = runs.build(settings)
        np.testing.assert_array_equal(built.theta, policy_start(built.system, 1))
    other = runs.resolve("halfcheetah", "nres", start_seed=7, eval_every=10)
    assert other.start_seed == 7
    assert runs.resolve("swimmer", "nres", eval_every=10).start_seed is None
    assert not np.any(runs.build(runs.resolve("swimmer", "nres", eval_every=10)).theta)


def test_the_optimizers_of_the_papers_runs():
    presets = runs.SYSTEMS["learned-optimizer"].presets
    assert (presets["tbptt"].optimizer, presets["tbptt"].lr) == ("sgd", "1e-2")
    assert presets["nres"].optimizer == "adam_root"
    optimizer = runs.OPTIMIZERS["adam_root"](1.0)
    grad = np.full(3, 1e-6, np.float32)
    with jax.numpy_dtype_promotion("standard"):
        updates, _ = optimizer.update(grad, optimizer.init(grad), grad)
    # m / (sqrt(v + 1e-8) + 1e-8), after bias correction.
    np.testing.assert_allclose(updates, -1e-6 / (np.sqrt(1e-12 + 1e-8) + 1e-8), rtol=1e-4)
