"""`LowRank`: noise whose matrices have a low rank, for large models."""

import importlib.util
import math

import equinox as eqx
import jax
import jax.numpy as jnp

from nres.checks import whole_number
from nres.noise.factors import Factors, is_factors
from nres.noise.gaussian import Gaussian
from nres.noise.law import Noise, scale_rows
from nres.system import Theta


class LowRank(Noise):
    r"""Noise of low rank: $\epsilon = \sigma A B^\top / \sqrt r$ for each matrix in $\theta$.

    The elements of $A$ ($m \times r$) and $B$ ($n \times r$) are independent standard normal
    numbers, so the elements of $\epsilon$ have mean 0 and variance $\sigma^2$ and are uncorrelated.
    Leaves of $\theta$ that are not matrices have Gaussian noise, and so have matrices that are too
    small to gain. A worker stores $(m + n)\, r$ numbers per matrix instead of $m n$. In an
    `nres.JaxPool`, products with the perturbed matrix are products with $W$, which all workers
    share, plus a correction from $A$ and $B$: the system needs no change.

    With $\epsilon / \sigma^2$ as weight, estimates are unbiased for the gradient of a loss that
    responds linearly to the noise. Otherwise they are those of another smoothed loss than the
    Gaussian one, and approach it as the rank grows: the difference comes from the fourth moments of
    the noise, and is of order $\sigma^2 / r$.

    It is for estimators with one noise per episode or window: `NRES`, `FullES` and `TES`. It needs
    the package quax: `pip install "nres[large]"`.

    Args:
        rank: r, the number of columns of A and B.

    Raises:
        ValueError: If `rank` is less than 1.
        ImportError: If quax is not installed.

    Example:
        ```python
        estimator = nres.NRES(
            system, workers=1000, window=10, sigma=0.01, noise=nres.noise.LowRank(1)
        )
        ```

    Reference:
        Sarkar et al., *Evolution strategies at the hyperscale*, 2025.
    """

    rank: int = eqx.field(static=True, default=1)
    factored = True

    def __check_init__(self):
        whole_number("rank", self.rank)
        if importlib.util.find_spec("quax") is None:
            raise ImportError('LowRank noise needs quax: pip install "nres[large]".')

    def draw(self, keys, number, sigma, theta):
        rows = Gaussian().draw(keys, number, jnp.ones(len(keys)), self._factors(theta))
        # A product of r columns has r times the variance of one.
        shrunk = jax.tree.map(
            lambda x: Factors(x.a / math.sqrt(self.rank), x.b) if is_factors(x) else x,
            rows,
            is_leaf=is_factors,
        )
        return scale_rows(sigma, shrunk)

    def size(self, theta: Theta) -> int:
        return sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(self._factors, theta)))

    def _factors(self, theta: Theta) -> Theta:
        """Return arrays like the noise of one worker."""

        def factors(x):
            if x.ndim != 2 or sum(x.shape) * self.rank >= x.size:
                return x
            m, n = x.shape
            return Factors(jnp.zeros((m, self.rank), x.dtype), jnp.zeros((n, self.rank), x.dtype))

        return jax.tree.map(factors, theta)
