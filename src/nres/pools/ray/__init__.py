"""Pools on a Ray cluster."""

from nres.pools.ray.actor import Noisy as Noisy
from nres.pools.ray.cluster import connect as connect
from nres.pools.ray.pool import RayPool as RayPool
from nres.pools.ray.post import RayWindow as RayWindow
from nres.pools.ray.shares import RayState as RayState
