"""Policies, and refused settings of the pools that use them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from environments import KEY, CliffEnv, estimate
from helpers import raises_naming
from nres import policies
from nres.pools import GymPool, MujocoPool

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*out of date.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*settotalmass.*"),
]


def test_policies():
    rng = np.random.default_rng(0)
    observations = rng.normal(size=(5, 17))
    linear, mlp = policies.Linear(17, 6), policies.MLP((17, 30, 6))
    assert linear.initial_theta(KEY).shape == (6, 17)
    assert not linear.initial_theta(KEY).any()
    theta = mlp.initial_theta(KEY)
    assert sum(x.size for x in jax.tree.leaves(theta)) == 726
    lanes = jax.tree.map(lambda x: rng.normal(size=(5, *x.shape)), theta)

    def apply(theta, observation):
        x = jnp.tanh(theta[0]["weight"] @ observation + theta[0]["bias"])
        return theta[1]["weight"] @ x + theta[1]["bias"]

    compiled = policies.Function(apply, mlp.initial_theta)
    np.testing.assert_allclose(
        mlp.act(lanes, observations), compiled.act(lanes, observations), rtol=1e-4, atol=1e-4
    )
    drawn = policies.Linear(400, 100, variance=0.03).initial_theta(KEY)
    np.testing.assert_allclose(np.var(drawn) * 400, 0.03, rtol=0.05)
    assert np.abs(drawn).max() < 2.3 * (0.03 / 400) ** 0.5
    relu = policies.as_policy("mlp:4,3:relu", 2, 1)
    assert (relu.sizes, relu.activation) == ((2, 4, 3, 1), "relu")
    for wrong in ("mlp", "mlp:", "mlp:3:sigmoid", "cnn"):
        with raises_naming(ValueError, wrong.rpartition(":")[2] or wrong):
            policies.as_policy(wrong, 2, 1)


def test_any_function_as_policy():
    def apply(theta, observation):
        return theta @ observation

    linear = MujocoPool("swimmer", "linear", horizon=30)
    theta = jax.random.normal(KEY, (2, 8))
    function = MujocoPool("swimmer", policies.Function(apply, lambda key: theta), horizon=30)
    np.testing.assert_allclose(
        estimate(linear, theta)[0], estimate(function, theta)[0], rtol=1e-3, atol=1e-3
    )


def test_functions_are_compiled_for_few_numbers_of_lanes(compilations):
    policy = policies.Function(lambda theta, x: theta @ x, lambda key: jnp.zeros((2, 3)))
    rng = np.random.default_rng(0)
    thetas, observations = rng.normal(size=(32, 2, 3)), rng.normal(size=(32, 3))
    whole = policy.act(thetas, observations)
    np.testing.assert_allclose(whole, np.einsum("lij,lj->li", thetas, observations), rtol=1e-5)
    compilations.clear()
    for count in range(31, 16, -1):
        found = policy.act(thetas[:count], observations[:count])
        np.testing.assert_array_equal(found, whole[:count])
    assert len(compilations) == 3  # 20, 24 and 28 lanes


def test_the_gates_of_a_recurrent_policy_have_finite_derivatives():
    policy = policies.GRU(1, 1, 2)
    theta = jax.tree.map(lambda x: jnp.full((1, *x.shape), -200.0), policy.initial_theta(KEY))
    loss = lambda theta: policy.act(theta, jnp.ones((1, 1)), jnp.ones((1, 2)))[0].sum()  # noqa: E731
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(jax.grad(loss)(theta)))


@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.parametrize("policy", [5, policies.Linear, lambda theta, x: x])
def test_what_is_no_policy_is_refused(policy):
    with raises_naming(TypeError, "policy", "initial_theta"):
        MujocoPool("swimmer", policy)


@pytest.mark.parametrize(
    ("make", "culprits"),
    [
        (lambda: MujocoPool("swimer"), ["task", "swimer"]),
        (lambda: MujocoPool("swimmer", version=3), ["version", 3]),
        (lambda: MujocoPool("swimmer", horizon=0), ["horizon", 0]),
        (lambda: GymPool("Nope-v0"), ["Nope-v0"]),
        (lambda: GymPool(CliffEnv), ["horizon"]),
        (lambda: GymPool("CartPole-v1", horizon=501), ["horizon", 500, 501]),
        (lambda: GymPool("CartPole-v1", processes=-1), ["processes", -1]),
        (lambda: MujocoPool("swimmer").check(jnp.zeros((2, 9))), ["theta"]),
        (lambda: MujocoPool("swimmer").check(jnp.zeros((3, 8))), ["(3,)"]),
    ],
)
def test_mistakes(make, culprits):
    with raises_naming(ValueError, *culprits):
        make()
