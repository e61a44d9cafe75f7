"""The one place to add an estimator, a law of noise, a pool or a placement to.

The shared contract (test_contract.py, test_ray.py) runs over these tables. Systems have a horizon
of 10 or 12 steps.
"""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp

import nres
from helpers import Wave
from numpy_pool import NumpyPool

sys.path.append(str(Path(__file__).parents[1] / "examples"))
import batch_pool

STRATEGIES = {
    "FullES": lambda system, **kw: nres.FullES(system, workers=4, sigma=0.1, **kw),
    "NRES": lambda system, **kw: nres.NRES(system, workers=4, window=4, sigma=0.1, **kw),
    "PES": lambda system, **kw: nres.PES(system, workers=4, window=5, sigma=0.1, **kw),
    "GPES": lambda system, **kw: nres.GPES(system, workers=4, window=2, period=4, sigma=0.1, **kw),
    "TES": lambda system, **kw: nres.TES(system, workers=4, window=5, sigma=0.1, **kw),
}
DIFFERENTIATING = {
    "BPTT": lambda system, **kw: nres.BPTT(system, workers=4, **kw),
    "TBPTT": lambda system, **kw: nres.TBPTT(system, workers=4, window=4, **kw),
    "DODGE": lambda system, **kw: nres.DODGE(system, workers=4, window=4, **kw),
    "UORO": lambda system, **kw: nres.UORO(system, workers=4, window=4, **kw),
    "RTRL": lambda system, **kw: nres.RTRL(system, workers=4, window=4, **kw),
}
ESTIMATORS = STRATEGIES | DIFFERENTIATING


class Rademacher(nres.Noise):
    """Independent signs: a noise law in one class."""

    def draw(self, keys, number, sigma, theta):
        return nres.noise.scale_rows(sigma, nres.noise.draw_signs(keys, number, theta))


class OneSided(nres.Gaussian):
    """Forward differences: one member is not perturbed at all."""

    contrast = (1.0, -1.0)

    def perturb(self, theta, epsilon):
        def members(x, e):
            x = jnp.broadcast_to(x, e.shape)
            return jnp.stack([x + e, x])

        return jax.tree.map(members, theta, epsilon)


LAWS = {
    "Gaussian": nres.Gaussian(),
    "Orthogonal": nres.Orthogonal(),
    "Rademacher": Rademacher(),
    "OneSided": OneSided(),
}


class OnePendulum(nres.System):
    """The system whose batch is `batch_pool.Pendulums`."""

    horizon: int = 12

    def init(self, theta, key):
        return jax.random.uniform(key, (2,), minval=-0.5, maxval=0.5)

    def step(self, state, theta, t, key):
        angle, speed = state
        push = theta @ state
        speed = speed + 0.1 * (jnp.sin(angle) - push)
        angle = angle + 0.1 * speed
        return jnp.stack([angle, speed]), angle**2 + 0.01 * push**2


# Pools that unroll something that a `System` does, too: the pool, the system, and theta.
POOLS = {
    "numpy": lambda: (NumpyPool(Wave()), Wave(), jnp.array([0.5, -0.2])),
    "batch": lambda: (batch_pool.Pendulums(horizon=12), OnePendulum(), jnp.array([0.3, 0.1])),
}


def mesh(*shape):
    names = ("hosts", "devices")[: len(shape)]
    count = int(jnp.prod(jnp.array(shape)))
    return jax.make_mesh(shape, names, devices=jax.devices()[:count])


# Those that need no cluster; test_ray.py has the other.
PLACEMENTS = {
    "two devices": lambda: nres.placement.Devices(mesh(2)),
    "two hosts with two devices each": lambda: nres.placement.Devices(mesh(2, 2)),
}
