"""MuJoCo: a pool of natively batched simulations, and its tasks."""

from nres.pools.mujoco.ant import Ant as Ant
from nres.pools.mujoco.half_cheetah import HalfCheetah as HalfCheetah
from nres.pools.mujoco.hopper import Hopper as Hopper
from nres.pools.mujoco.humanoid import Humanoid as Humanoid
from nres.pools.mujoco.pool import TASKS as TASKS
from nres.pools.mujoco.pool import MujocoPool as MujocoPool
from nres.pools.mujoco.swimmer import Swimmer as Swimmer
from nres.pools.mujoco.task import MujocoTask as MujocoTask
from nres.pools.mujoco.walker2d import Walker2d as Walker2d
