"""`Orthogonal`: Gaussian noise whose directions are orthogonal among the workers of a group."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree

from nres.noise.gaussian import Gaussian, normal_rows
from nres.noise.law import Group, scale_rows
from nres.system import Theta

# A group costs as many reflections per noise as it has workers. It reduces the variance by about
# the ratio of its workers to the parameters, so few workers on many parameters gain nothing.
LEAST_SHARE = 0.25
MOST_PARAMETERS = 1024


class Orthogonal(Gaussian):
    r"""Gaussian noise whose directions are orthogonal among the workers of a group.

    Consecutive workers form groups of $B = \min(N, d)$, where N is the number of workers and d the
    number of parameters. Their noises are $\epsilon_i = \sigma \ell_i q_i$, where the $q_i$ are
    rows of a random orthogonal matrix (uniformly distributed) and the lengths
    $\ell_i \sim \chi_d$ are independent. So each noise alone is exactly
    $\mathcal N(0, \sigma^2 I)$: the smoothed loss is the same as with `Gaussian`, and estimates
    stay unbiased. If losses respond linearly to the noise, the variance of the mean over a group
    at the same step is

    $$ \operatorname{tr}\operatorname{Cov} \bar g
       = \Big(\frac{d + 2}{B} - 1\Big) \lVert g \rVert^2
       \quad\text{instead of}\quad \frac{d + 1}{B} \lVert g \rVert^2. $$

    The matrix depends on the seed, the group and the index of the noise alone. Workers need not be
    at the same step: two of a group are orthogonal while both are in their k-th episode.
    If N is less than a quarter of d, or d is greater than 1,024, noises are independent, because
    little variance would be saved and much time would be spent.

    Example:
        ```python
        estimator = nres.NRES(
            system, workers=200, window=100, sigma=0.04, noise=nres.Orthogonal()
        )
        ```

    Reference:
        Choromanski et al., *Structured Evolution with Compact Architectures for Scalable Policy
        Optimization*, ICML 2018. Stewart, *The efficient generation of random orthogonal matrices
        with an application to condition estimators*, SIAM Journal on Numerical Analysis 17, 1980.
    """

    def group_size(self, workers, parameters):
        if parameters > MOST_PARAMETERS or workers < LEAST_SHARE * parameters:
            return 1
        return min(workers, parameters)

    def draw(
        self,
        keys: Key[Array, " workers"],
        number: Int[Array, " workers"],
        sigma: PyTree,
        theta: Theta,
        group: Group | None = None,
    ) -> PyTree:
        if group is None:
            return super().draw(keys, number, sigma, theta)
        leaves, structure = jax.tree.flatten(theta)
        dtype = jnp.float64 if any(leaf.dtype == jnp.float64 for leaf in leaves) else jnp.float32
        ends = np.cumsum([leaf.size for leaf in leaves])
        size = int(ends[-1])
        length = jnp.linalg.norm(normal_rows(keys, number, 0, size), axis=1)
        rows = length.astype(dtype)[:, None] * _directions(group, number, size, dtype)
        parts = jnp.split(rows, ends[:-1], axis=1)
        unit = [x.reshape(-1, *leaf.shape) for x, leaf in zip(parts, leaves, strict=True)]
        scaled = scale_rows(sigma, jax.tree.unflatten(structure, unit))
        return jax.tree.map(lambda row, leaf: row.astype(leaf.dtype), scaled, theta)


def _directions(
    group: Group, number: Int[Array, " workers"], size: int, dtype: Any
) -> Float[Array, "workers {size}"]:
    r"""Return each worker's row of the orthogonal matrix of its group.

    With Gaussian vectors $x_j$ on the coordinates from $j$ on, and reflections $H_j$ that map
    $x_j$ to a multiple of $e_j$, row $r$ is $H_0 \cdots H_{r-1} x_r / \lVert x_r \rVert$. Every
    worker computes its own row alone, so workers of a group may be on different devices.
    """
    coordinates = jnp.arange(size, dtype=jnp.int32)
    row = group.row[:, None]

    def reflect(i, direction):
        j = group.size - 1 - i
        # Each vector has its own stretch of counters, whose elements come in pairs.
        x = normal_rows(group.key, number, j * (-(-size // 2)), size).astype(dtype)
        x = jnp.where(coordinates >= j, x, 0)
        norm = jnp.linalg.norm(x, axis=1, keepdims=True)
        pivot = jnp.where(coordinates == j, x, 0).sum(axis=1, keepdims=True)
        # The sign avoids a difference of nearly equal numbers.
        w = x + jnp.where(coordinates == j, jnp.where(pivot < 0, -norm, norm), 0)
        along = (w * direction).sum(axis=1, keepdims=True) / (w * w).sum(axis=1, keepdims=True)
        reflected = direction - 2 * along * w
        return jnp.where(j < row, reflected, jnp.where(j == row, x / norm, direction))

    return jax.lax.fori_loop(0, group.size, reflect, jnp.zeros((row.shape[0], size), dtype))
