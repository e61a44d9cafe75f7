"""Find the physics of a cart with a pole: mass, friction, damping and gain, from one recording.

The recording comes from MuJoCo itself; the model that is fitted to it runs in JAX (MJX). The cart
bounces off the ends of its rail, and dry friction stops it, so the loss is rough, and gradients
through the simulation are misleading or infinite. NRES needs losses only, and its windows of 20
steps give an update long before an episode is over. It needs `pip install 'nres[brax,mujoco]'`.
"""

import sys

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import optax
from mujoco import mjx

import nres

MODEL = """
<mujoco>
  <option timestep="0.01" iterations="4" ls_iterations="8"/>
  <worldbody>
    <body name="cart">
      <joint name="rail" type="slide" axis="1 0 0" range="-.5 .5" limited="true" frictionloss=".3"/>
      <geom type="box" size=".1 .1 .05" mass="1" contype="0" conaffinity="0"/>
      <body name="pole">
        <joint name="hinge" type="hinge" axis="0 1 0" damping=".01"/>
        <geom type="capsule" fromto="0 0 0 0 0 -.5" size=".03" mass=".3" contype="0" conaffinity="0"/>
      </body>
    </body>
  </worldbody>
  <actuator><motor joint="rail" gear="1"/></actuator>
</mujoco>
"""
POLE, RAIL, HINGE = 2, 0, 1
# What is unknown: factors of the model's values.
TRUTH = {"mass": 1.6, "friction": 2.0, "damping": 2.5, "gain": 0.7}
STEPS, SUBSTEPS = 100, 2


def pushes() -> np.ndarray:
    t = np.arange(STEPS) / STEPS
    return 6.0 * np.sin(6 * np.pi * t) + 2.0 * np.sign(np.sin(14 * np.pi * t))


def recorded(truth: dict[str, float]) -> np.ndarray:
    """Record the motion of the true cart and pole with MuJoCo."""
    model = mujoco.MjModel.from_xml_string(MODEL)
    model.body_mass[POLE] *= truth["mass"]
    model.body_inertia[POLE] *= truth["mass"]
    model.dof_frictionloss[RAIL] *= truth["friction"]
    model.dof_damping[HINGE] *= truth["damping"]
    model.actuator_gainprm[:, 0] *= truth["gain"]
    data = mujoco.MjData(model)
    mujoco.mj_setConst(model, data)
    motion = []
    for push in pushes():
        data.ctrl[0] = push
        mujoco.mj_step(model, data, SUBSTEPS)
        motion.append(data.qpos.copy())
    return np.stack(motion)


class Identify(nres.System):
    """A model whose factors, given by their logarithms, are fitted to a motion."""

    model: mjx.Model
    start: mjx.Data
    motion: jax.Array
    pushes: jax.Array
    horizon: int = STEPS

    def __init__(self):
        model = mujoco.MjModel.from_xml_string(MODEL)
        self.model = mjx.put_model(model)
        self.start = mjx.make_data(model)
        self.motion = jnp.asarray(recorded(TRUTH))
        self.pushes = jnp.asarray(pushes())

    def initial_theta(self, key=None):
        return {name: jnp.zeros(()) for name in TRUTH}

    def init(self, theta, key):
        return self.start

    def step(self, state, theta, t, key):
        factor = jax.tree.map(jnp.exp, theta)
        model = self.model.replace(
            body_mass=self.model.body_mass.at[POLE].mul(factor["mass"]),
            body_inertia=self.model.body_inertia.at[POLE].mul(factor["mass"]),
            dof_frictionloss=self.model.dof_frictionloss.at[RAIL].mul(factor["friction"]),
            dof_damping=self.model.dof_damping.at[HINGE].mul(factor["damping"]),
            actuator_gainprm=self.model.actuator_gainprm.at[:, 0].mul(factor["gain"]),
        )
        state = state.replace(ctrl=self.pushes[t][None])
        for _ in range(SUBSTEPS):
            state = mjx.step(model, state)
        return state, jnp.sum((state.qpos - self.motion[t]) ** 2)


system = Identify()
estimator = nres.NRES(system, workers=40, window=20, sigma=0.05)
key, theta = jax.random.key(0), system.initial_theta()
updates = 3 if "--quick" in sys.argv else 600
before = nres.evaluate(system, theta, key, episodes=1).loss
optimizer = optax.adam(optax.cosine_decay_schedule(0.05, updates))
result = nres.train(estimator, optimizer, theta, updates=updates, key=key)
after = nres.evaluate(system, result.theta, key, episodes=1).loss
print(f"mean squared distance to the recording: {before:.3g} -> {after:.3g}")
for name, true in TRUTH.items():
    print(f"{name}: {float(jnp.exp(result.theta[name])):.2f}, in truth {true}")
