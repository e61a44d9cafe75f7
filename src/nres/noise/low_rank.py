"""`LowRank`: noise whose matrices have a low rank, for large models."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp

from nres.checks import whole_number
from nres.noise.factors import Factors, is_factors
from nres.noise.gaussian import Gaussian
from nres.noise.law import Noise, scale_rows
from nres.system import Theta, at_least_single, parameter_count


class LowRank(Noise):
    r"""Noise of low rank: $\epsilon = \sigma A B^\top / \sqrt r$ for each matrix in $\theta$.

    The elements of $A$ ($m \times r$) and $B$ ($n \times r$) are independent standard normal
    numbers, so the elements of $\epsilon$ have mean 0 and variance $\sigma^2$ and are uncorrelated.
    A leaf with more axes counts as a matrix, too: its first or its last axis stands alone,
    whichever takes fewer numbers, so a stack of matrices has one $B$ for all. Vectors have Gaussian
    noise, and so have matrices that are too small to gain. A worker stores $(m + n)\, r$ numbers
    per matrix instead of $m n$. In an `nres.JaxPool`, products with the perturbed matrix are
    products with $W$, which all workers share, plus a correction from $A$ and $B$: the system needs
    no change.

    With $\epsilon / \sigma^2$ as weight, estimates are unbiased for the gradient if the loss
    responds linearly or quadratically to the noise. Otherwise their mean differs from the gradient
    of the Gaussian-smoothed loss by terms of order $\sigma^2 / r$, which come from the fourth
    moments of the noise.

    It is for estimators with one noise per episode or window: `NRES`, `FullES` and `TES`.

    Raises:
        ValueError: If `rank` is less than 1.

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
    """r, the number of columns of A and B."""
    factored = True

    def __check_init__(self):
        whole_number("rank", self.rank)

    def draw(self, keys, number, sigma, theta):
        like = self._factors(theta)
        wide = jax.tree.map(lambda x: x.astype(at_least_single(x.dtype)), like)
        rows = Gaussian().draw(keys, number, jnp.ones(len(keys)), wide)
        # A product of r columns has r times the variance of one.
        shrunk = jax.tree.map(
            lambda x: Factors(x.a / math.sqrt(self.rank), x.b) if is_factors(x) else x,
            rows,
            is_leaf=is_factors,
        )
        return jax.tree.map(lambda row, x: row.astype(x.dtype), scale_rows(sigma, shrunk), like)

    def size(self, theta: Theta) -> int:
        return sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(self._factors, theta)))

    def gain(self, theta: Theta) -> float | None:
        # If the gradient lies in one leaf, the ratio is d + 2 for Gaussian noise, and 2 (m + n + 1)
        # / r more for an m x n matrix. The middle stands for all if they are within 1% of it.
        leaves = jax.tree.leaves(jax.eval_shape(self._factors, theta), is_leaf=is_factors)
        added = [
            2 + 2 * ((x.a.size + x.b.size) / self.rank + 1) / self.rank if is_factors(x) else 2.0
            for x in leaves
        ]
        count = parameter_count(theta)
        middle = (min(added) + max(added)) / 2
        alike = max(added) - middle <= 0.01 * (count + middle)
        return count + middle if alike else None

    def _factors(self, theta: Theta) -> Theta:
        """Return arrays like the noise of one worker."""

        def factors(x):
            shapes = split_shape(x.shape)
            if shapes is None or sum(map(math.prod, shapes)) * self.rank >= x.size:
                return x
            return Factors(*(jnp.zeros((*shape, self.rank), x.dtype) for shape in shapes))

        return jax.tree.map(factors, theta)


def split_shape(shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Split the axes of an array into those of rows and of columns, with few numbers in all.

    Returns:
        The two shapes, or `None` if there are fewer than two axes.
    """
    if len(shape) < 2:
        return None
    splits = [(shape[:at], shape[at:]) for at in (len(shape) - 1, 1)]
    return min(splits, key=lambda parts: sum(map(math.prod, parts)))
