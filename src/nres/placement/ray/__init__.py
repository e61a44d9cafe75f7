"""Workers in the actors of a Ray cluster."""

from nres.placement.ray.cluster import connect as connect
from nres.placement.ray.placement import Ray as Ray
