"""Pools of gymnasium environments."""

from nres.pools.gym.pool import GymPool as GymPool
