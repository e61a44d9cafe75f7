"""Ant: four legs in space, with 27 observations (105 in version 5) and 8 actions."""

import numpy as np

from nres.pools.mujoco.task import MujocoTask, control_cost


class Ant(MujocoTask):
    """Task of walking forward. An episode ends early if the ant tumbles."""

    model_file = "ant.xml"
    frame_skip = 5
    reset_noise = 0.1
    normal_velocity = True

    @property
    def fields(self):
        return ("xpos",)

    @property
    def contact_forces(self):
        return self.version == 5

    def position(self, f, ids):
        return f.xpos[ids, 1, 0]  # the torso is the first body after the world

    def observe(self, f, ids):
        parts = [f.qpos[ids, 2:], f.qvel[ids]]
        if self.version == 5:
            forces = self._forces(f, ids)[:, 1:]
            parts.append(forces.reshape(len(forces), -1))
        return np.concatenate(parts, axis=1)

    def reward(self, f, ids, velocity, action):
        reward = velocity + self.survival(f, ids) - control_cost(action, 0.5)
        if self.version == 5:
            reward = reward - 5e-4 * (self._forces(f, ids) ** 2).sum(axis=(1, 2))
        return reward

    def healthy(self, f, ids):
        height = f.qpos[ids, 2]
        finite = np.isfinite(f.qpos[ids]).all(axis=1) & np.isfinite(f.qvel[ids]).all(axis=1)
        return finite & (height >= 0.2) & (height <= 1.0)

    def _forces(self, f, ids):
        return np.clip(f.cfrc_ext[ids], -1.0, 1.0)
