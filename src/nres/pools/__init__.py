"""Where batches of unrolls run."""

from nres.pools.base import Pool as Pool
from nres.pools.base import Window as Window
from nres.pools.jax import JaxPool as JaxPool
