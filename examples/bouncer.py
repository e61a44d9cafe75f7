"""Throw a ball so that it lands, after some bounces, at a distance of 3.

Run it with:

nres train examples/bouncer.py:Bouncer --sigma 0.1 --lr 0.03 --updates 300
"""

import jax.numpy as jnp

import nres


class Bouncer(nres.System):
    """A bouncing ball. Its loss is discontinuous, so the derivative is of little use."""

    horizon: int = 300

    def initial_theta(self, key):
        return {"velocity": jnp.array([1.0, 4.0])}

    def init(self, theta, key):
        return jnp.zeros(2), theta["velocity"]

    def step(self, state, theta, t, key):
        position, velocity = state
        position = position + 0.01 * velocity
        bounced = position[1] < 0
        velocity = jnp.where(bounced, velocity * jnp.array([0.8, -0.8]), velocity)
        velocity = velocity - 0.01 * jnp.array([0.0, 9.8])
        return (jnp.abs(position), velocity), (position[0] - 3.0) ** 2
