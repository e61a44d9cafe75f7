"""Placements: the devices and processes that run an estimator's workers."""

from nres.placement.base import Placement as Placement
from nres.placement.base import WindowOutcome as WindowOutcome
from nres.placement.local import Local as Local
from nres.placement.mesh import Devices as Devices
from nres.placement.ray import Ray as Ray
