"""HalfCheetah: two legs in a plane, with 17 observations and 6 actions."""

import numpy as np

from nres.pools.mujoco.task import MujocoTask, control_cost


class HalfCheetah(MujocoTask):
    """Task of running forward. Episodes never end early."""

    model_file = "half_cheetah.xml"
    frame_skip = 5
    reset_noise = 0.1
    normal_velocity = True

    def position(self, f, ids):
        return f.qpos[ids, 0]

    def observe(self, f, ids):
        return np.concatenate([f.qpos[ids, 1:], f.qvel[ids]], axis=1)

    def reward(self, f, ids, velocity, action):
        return velocity - control_cost(action, 0.1)
