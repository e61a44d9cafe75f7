"""Swimmer: three links in a viscous fluid, with 8 observations and 2 actions."""

import numpy as np

from nres.pools.mujoco.task import MujocoTask, control_cost


class Swimmer(MujocoTask):
    """Task of swimming forward. Episodes never end early."""

    model_file = "swimmer.xml"
    frame_skip = 4
    reset_noise = 0.1

    def position(self, f, ids):
        return f.qpos[ids, 0]

    def observe(self, f, ids):
        return np.concatenate([f.qpos[ids, 2:], f.qvel[ids]], axis=1)

    def reward(self, f, ids, velocity, action):
        return velocity - control_cost(action, 1e-4)
