"""Hopper: one leg in a plane, with 11 observations and 3 actions."""

import numpy as np

from nres.pools.mujoco.task import MujocoTask, control_cost


class Hopper(MujocoTask):
    """Task of hopping forward. An episode ends early if the hopper falls over."""

    model_file = "hopper.xml"
    frame_skip = 4
    reset_noise = 5e-3

    def position(self, f, ids):
        return f.qpos[ids, 0]

    def observe(self, f, ids):
        return np.concatenate([f.qpos[ids, 1:], np.clip(f.qvel[ids], -10, 10)], axis=1)

    def reward(self, f, ids, velocity, action):
        return velocity + self.survival(f, ids) - control_cost(action, 1e-3)

    def healthy(self, f, ids):
        qpos, qvel = f.qpos[ids], f.qvel[ids]
        bounded = (np.abs(qpos[:, 2:]) < 100).all(axis=1) & (np.abs(qvel) < 100).all(axis=1)
        return bounded & (qpos[:, 1] > 0.7) & (np.abs(qpos[:, 2]) < 0.2)
