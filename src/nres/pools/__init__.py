"""Pools: batches of unrolls of a system or simulator."""

from nres.pools.base import MaterialisedWarning as MaterialisedWarning
from nres.pools.base import Pool as Pool
from nres.pools.base import PoolError as PoolError
from nres.pools.base import TraceablePool as TraceablePool
from nres.pools.base import Window as Window
from nres.pools.gym import GymPool as GymPool
from nres.pools.jax import JaxPool as JaxPool
from nres.pools.mujoco import MujocoPool as MujocoPool
