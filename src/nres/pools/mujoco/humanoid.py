"""Humanoid: a human figure in space, with 376 observations (348 in version 5) and 17 actions."""

import numpy as np

from nres.pools.mujoco.task import MujocoTask, control_cost


class Humanoid(MujocoTask):
    """Task of walking forward. An episode ends early if the humanoid falls."""

    model_file = "humanoid.xml"
    frame_skip = 5
    reset_noise = 1e-2
    healthy_reward = 5.0

    @property
    def fields(self):
        return ("xipos", "cinert", "cvel", "qfrc_actuator")

    @property
    def contact_forces(self):
        return True

    def position(self, f, ids):
        mass = f.model.body_mass
        return np.einsum("b,lb->l", mass, f.xipos[ids, :, 0]) / mass.sum()

    def observe(self, f, ids):
        # Version 5 omits the world and the joint without an actuator, whose values are all zero.
        body, joint = (0, 0) if self.version == 4 else (1, 6)
        parts = [f.qpos[ids, 2:], f.qvel[ids], f.cinert[ids, body:], f.cvel[ids, body:]]
        parts += [f.qfrc_actuator[ids, joint:], f.cfrc_ext[ids, body:]]
        return np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1)

    def reward(self, f, ids, velocity, action):
        reward = 1.25 * velocity + self.survival(f, ids) - control_cost(action, 0.1)
        if self.version == 5:
            reward = reward - np.minimum(5e-7 * (f.cfrc_ext[ids] ** 2).sum(axis=(1, 2)), 10.0)
        return reward

    def healthy(self, f, ids):
        height = f.qpos[ids, 2]
        return (height > 1.0) & (height < 2.0)
