"""A sigma for each parameter, or for each branch of the parameters."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nres
from helpers import Spiral, assert_same, gradients, raises_naming, slow_except, spiral_theta
from table import LAWS, STRATEGIES

KEY = jax.random.key(4)
SCALES = {"rate": jnp.array(0.5), "push": {"x": jnp.array([2.0, 0.25])}}


class Scaled(Spiral):
    """`Spiral` in other units: a parameter times its scale is the original one."""

    def init(self, theta, key):
        return super().init(jax.tree.map(jnp.multiply, theta, SCALES), key)

    def step(self, state, theta, t, key):
        return super().step(state, jax.tree.map(jnp.multiply, theta, SCALES), t, key)


@pytest.mark.parametrize("law", slow_except({"Gaussian"}, LAWS))
@pytest.mark.parametrize("make", slow_except({"NRES"}, STRATEGIES))
def test_a_sigma_per_parameter_is_another_unit(make, law):
    """Noise of scale 0.1 s in one unit is noise of scale 0.1 in the other."""
    theta = spiral_theta()
    there = jax.tree.map(jnp.divide, theta, SCALES)
    expected = gradients(make(Scaled(), noise=law), there, 4)
    expected = jax.tree.map(lambda g, s: g / np.asarray(s), expected, SCALES)
    sigma = jax.tree.map(lambda s: 0.1 * s, SCALES)
    found = gradients(dataclasses.replace(make(Spiral(), noise=law), sigma=sigma), theta, 4)
    assert_same(found, expected, rtol=1e-4)


@pytest.mark.slow
def test_a_prefix_and_a_schedule():
    theta = spiral_theta()
    sigmas = (
        {"rate": 0.05, "push": {"x": jnp.array([0.2, 0.2])}},
        {"rate": 0.05, "push": 0.2},
        lambda update: {"rate": jnp.where(update < 9, 0.05, 1.0), "push": 0.2},
    )
    found = [
        gradients(nres.PES(Spiral(), workers=4, window=4, sigma=sigma), theta, 4)
        for sigma in sigmas
    ]
    assert_same(found[0], found[1], rtol=1e-6)
    assert_same(found[0], found[2], rtol=1e-6)


def test_evaluation_of_the_smoothed_loss():
    theta, options = spiral_theta(), {"episodes": 5}
    sigma = {"rate": 0.1, "push": {"x": jnp.array([0.1, 0.1])}}
    found = [nres.evaluate(Spiral(), theta, KEY, sigma=s, **options).loss for s in (0.1, sigma)]
    np.testing.assert_allclose(*found, rtol=1e-6)


@pytest.mark.parametrize(
    ("sigma", "culprits"),
    [
        ({"rate": 0.1}, ["sigma", "push"]),
        ({"rate": 0.1, "push": {"x": jnp.ones(3)}}, ["sigma", "(3,)", "(2,)"]),
        ({"rate": 0.1, "push": -0.2}, ["sigma['push']", "-0.2"]),
        ({"rate": 0.1, "push": {"x": [0.1, 0.0]}}, ["sigma['push']['x']", "0"]),
        ({"rate": 0.1, "push": {"x": jnp.array([0.1, jnp.nan])}}, ["sigma['push']['x']", "nan"]),
        ({}, ["sigma"]),
        ("wide", ["sigma", "wide"]),
    ],
)
def test_other_sigmas_are_refused(sigma, culprits):
    with raises_naming(ValueError, *culprits):
        nres.NRES(Spiral(), workers=2, window=4, sigma=sigma).init(spiral_theta(), KEY)
