"""Walker2d: two legs in a plane, with 17 observations and 6 actions."""

import numpy as np

from nres.pools.mujoco.hopper import Hopper


class Walker2d(Hopper):
    """Task of walking forward. An episode ends early if the walker falls over."""

    def __init__(self, version: int = 4):
        super().__init__(version)
        # Version 5 corrected the friction of a foot.
        self.model_file = "walker2d.xml" if version == 4 else "walker2d_v5.xml"

    def healthy(self, f, ids):
        height, angle = f.qpos[ids, 1], f.qpos[ids, 2]
        return (height > 0.8) & (height < 2.0) & (np.abs(angle) < 1.0)
