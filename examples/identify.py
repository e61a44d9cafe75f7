"""Find the mass, friction, damping and gain of a cart with a pole from one recorded motion.

The cart bounces off the ends of its rail, so gradients through the simulation (MJX) mislead.
"""

import sys

import jax
import jax.numpy as jnp
import mujoco
import optax
from mujoco import mjx

import nres

PART = '<geom type="capsule" size=".03" contype="0" conaffinity="0"'
XML = f"""<mujoco><option timestep=".01" iterations="10" ls_iterations="10"/><worldbody><body>
<joint name="rail" type="slide" axis="1 0 0" range="-.5 .5" limited="true" frictionloss=".3"/>
{PART} fromto="-.1 0 0 .1 0 0" mass="1"/><body><joint type="hinge" axis="0 1 0" damping=".05"/>
{PART} fromto="0 0 0 0 0 -.5" mass=".3"/></body></body></worldbody>
<actuator><motor joint="rail"/></actuator></mujoco>"""
NAMES, TRUTH = ("mass", "friction", "damping", "gain"), jnp.array([1.6, 2.0, 2.5, 0.7])
MODEL = mjx.put_model(mujoco.MjModel.from_xml_string(XML))
START = mjx.make_data(MODEL)
PUSHES = 6 * jnp.sin(jnp.linspace(0, 19, 100)) + 2 * jnp.sign(jnp.sin(jnp.linspace(0, 44, 100)))


def move(factors, state, push):
    mass, friction, damping, gain = factors
    model = MODEL.replace(
        body_mass=MODEL.body_mass.at[2].mul(mass),
        body_inertia=MODEL.body_inertia.at[2].mul(mass),
        dof_frictionloss=MODEL.dof_frictionloss.at[0].mul(friction),
        dof_damping=MODEL.dof_damping.at[1].mul(damping),
        actuator_gainprm=MODEL.actuator_gainprm.at[0, 0].mul(gain),
    )
    state = mjx.step(model, mjx.step(model, state.replace(ctrl=push[None])))
    return state, state.qpos


class Cart(nres.System):
    recorded: jax.Array
    horizon: int = 100

    def init(self, theta, key):
        return START

    def step(self, state, theta, t, key):
        state, position = move(jnp.exp(theta), state, PUSHES[t])
        return state, jnp.sum((position - self.recorded[t]) ** 2)


recorded = jax.lax.scan(lambda state, push: move(TRUTH, state, push), START, PUSHES)[1]
system, theta, key = Cart(recorded), jnp.zeros(4), jax.random.key(0)
updates = 3 if "--quick" in sys.argv else 1500
estimator = nres.NRES(system, workers=40, window=20, sigma=0.05)
optimizer = optax.adam(optax.cosine_decay_schedule(0.05, updates))
result = nres.train(estimator, optimizer, theta, updates=updates, key=key)
print({name: round(float(x), 2) for name, x in zip(NAMES, jnp.exp(result.theta), strict=True)})
