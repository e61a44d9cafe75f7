r"""Noise: the laws that perturbations follow, and what workers carry of them.

A noise is known by its worker's key and its number in the worker's life, so it can be drawn again
instead of being stored. The $\sigma$ that scaled it is stored with it: under a schedule, old noise
is never weighed with a new $\sigma$.
"""

import abc
import math
from collections.abc import Iterator
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree, UInt32

from nres.system import Theta, at_least_single

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


class Noise(eqx.Module):
    r"""A law of perturbations: how $\epsilon$ is drawn, applied and weighed.

    With the score $w(\epsilon) = -\nabla_\epsilon \ln p(\epsilon)$ and the members' losses $L_m$, a
    worker contributes $\big(\sum_m c_m L_m\big)\, w(\epsilon)$, where $c$ is the `contrast` of the
    members. A new law is a subclass that says how to `draw`, and overrides what else differs:

    ```python
    class Rademacher(nres.Noise):
        def draw(self, keys, number, sigma, theta):
            return nres.noise.scale_rows(sigma, nres.noise.draw_signs(keys, number, theta))
    ```
    """

    contrast: ClassVar[tuple[float, ...]] = (0.5, -0.5)
    """The weight of each member's loss in the difference that the score is multiplied with."""

    @abc.abstractmethod
    def draw(
        self,
        keys: Key[Array, " workers"],
        number: Int[Array, " workers"],
        sigma: Float[Array, " workers"],
        theta: Theta,
    ) -> PyTree:
        """Draw the noise with this number of each worker.

        **Arguments:**

        - `keys`: the key of each worker, the same for its whole life.
        - `number`: which of its noises each worker is to have. The same key and number give the
            same noise, whatever the other workers are.
        - `sigma`: the scale of each worker's noise.
        - `theta`: the parameters, for their shapes and dtypes.

        **Returns:** one row per worker, each like `theta`.
        """

    def perturb(self, theta: Theta, epsilon: PyTree) -> PyTree:
        r"""The parameters of each member, on a new first axis: here $\theta \pm \epsilon$."""

        def members(x, e):
            x, e = jnp.broadcast_to(x, e.shape), e.astype(x.dtype)
            return jnp.stack([x + e, x - e])

        return jax.tree.map(members, theta, epsilon)

    def score(
        self, epsilon: PyTree, sigma: Float[Array, " workers"]
    ) -> tuple[Float[Array, " workers"], PyTree]:
        r"""The score as a factor per worker and rows to be multiplied by it: here
        $\sigma^{-2}$ and $\epsilon$."""
        return sigma**-2, epsilon


class Gaussian(Noise):
    r"""Independent normal numbers, $\epsilon \sim \mathcal N(0, \sigma^2 I)$."""

    def draw(self, keys, number, sigma, theta):
        # Element j of noise n hashes the counter (n + 1, j) with the worker's key;
        # `jax.random.fold_in` uses the counters (0, .), so the two never meet.
        leaves, structure = jax.tree.flatten(theta)
        doubles = [leaf.dtype == jnp.float64 for leaf in leaves]
        counts = [
            leaf.size if double else -(-leaf.size // 2)
            for leaf, double in zip(leaves, doubles, strict=True)
        ]
        rows = []
        for leaf, double, bits in zip(leaves, doubles, _hash(keys, number, counts), strict=True):
            normal = _normal64(*bits) if double else _normal32(jnp.concatenate(bits, axis=1))
            scaled = sigma[:, None].astype(normal.dtype) * normal[:, : leaf.size]
            rows.append(scaled.astype(leaf.dtype).reshape(-1, *leaf.shape))
        return jax.tree.unflatten(structure, rows)


class NoiseState(eqx.Module):
    """The noise that workers carry from one window to the next."""

    sigma: Float[Array, " workers"]
    """The scale of each worker's current noise."""
    epsilon: PyTree | None
    """The current noise, one row per worker; `None` where it is regenerated."""
    score: PyTree | None
    r"""The sum of the scores of the episode's noises; `None` where one noise serves a whole
    episode and the score follows from it."""


def threefry(key: tuple[Array, Array], counter: tuple[Array, Array]) -> tuple[Array, Array]:
    """The Threefry-2x32 hash, 20 rounds: two words of 32 random bits for each counter.

    JAX's default generator is the same function. On CPUs it compiles it as a loop of many small
    kernels, which takes longer than the unrolls it serves; written out, it is one.

    **Reference:** Salmon et al., *Parallel random numbers: as easy as 1, 2, 3*, SC 2011.
    """
    words = (*key, key[0] ^ key[1] ^ jnp.uint32(0x1BD11BDA))
    x, y = counter[0] + words[0], counter[1] + words[1]
    for i in range(5):
        for r in _ROTATIONS[i % 2]:
            x = x + y
            y = x ^ ((y << jnp.uint32(r)) | (y >> jnp.uint32(32 - r)))
        x = x + words[(i + 1) % 3]
        y = y + words[(i + 2) % 3] + jnp.uint32(i + 1)
    return x, y


def draw_signs(
    keys: Key[Array, " workers"], number: Int[Array, " workers"], like: PyTree
) -> PyTree:
    """Draw independent signs, -1 or 1: rows like `like`, one per worker."""
    leaves, structure = jax.tree.flatten(like)
    rows = []
    for leaf, (bits, _) in zip(
        leaves, _hash(keys, number, [leaf.size for leaf in leaves]), strict=True
    ):
        signs = jnp.where(bits >> jnp.uint32(31), -1, 1).astype(leaf.dtype)
        rows.append(signs.reshape(-1, *leaf.shape))
    return jax.tree.unflatten(structure, rows)


def _hash(
    keys: Key[Array, " workers"], number: Int[Array, " workers"], counts: list[int]
) -> Iterator[tuple[Array, Array]]:
    """For every leaf, so many pairs of words of random bits per worker."""
    data = jax.random.key_data(keys)
    words = jnp.split(data, data.shape[1], axis=1)
    # Keys of other generators than Threefry have four words.
    key = (words[0], words[1])
    if len(words) == 4:
        key = threefry(key, (words[2], words[3]))
    first = 0
    for count in counts:
        element = jnp.arange(first, first + count, dtype=jnp.uint32)[None, :]
        first += count
        yield threefry(key, (number.astype(jnp.uint32)[:, None] + jnp.uint32(1), element))


def _normal32(bits: UInt32[Array, "..."]) -> Float[Array, "..."]:
    """Standard normal numbers by inversion, from 23 random bits each."""
    unit = (bits >> jnp.uint32(9)).astype(jnp.float32) * 2.0**-22 + (2.0**-23 - 1.0)
    return math.sqrt(2) * jax.lax.erf_inv(unit)


def _normal64(high: UInt32[Array, "..."], low: UInt32[Array, "..."]) -> Float[Array, "..."]:
    """The same in double precision, from 52 random bits each."""
    bits = (high >> jnp.uint32(6)).astype(jnp.float64) * 2.0**26
    bits = bits + (low >> jnp.uint32(6)).astype(jnp.float64)
    return math.sqrt(2) * jax.lax.erf_inv(bits * 2.0**-51 + (2.0**-52 - 1.0))


def where_worker(condition: Bool[Array, " workers"], new: PyTree, old: PyTree) -> PyTree:
    """Choose between two pytrees, worker by worker."""

    def choose(n, o):
        return jnp.where(jnp.expand_dims(condition, range(1, n.ndim)), n, o)

    return jax.tree.map(choose, new, old)


def scale_rows(factor: Float[Array, " workers"], rows: PyTree) -> PyTree:
    """Scale the row of each worker by its own factor, in single precision at least."""

    def scale(r):
        r = r.astype(at_least_single(r.dtype))
        return jnp.expand_dims(factor, range(1, r.ndim)).astype(r.dtype) * r

    return jax.tree.map(scale, rows)


def update_noise(
    law: Noise,
    noise: NoiseState | None,
    theta: Theta,
    keys: Key[Array, " workers"],
    number: Int[Array, " workers"],
    start: Int[Array, " workers"],
    sigma: Float[Array, "..."],
    *,
    period: int | Int[Array, ""],
    store: bool,
    accumulate: bool,
) -> tuple[NoiseState, PyTree]:
    """The noise of the windows that begin at `start`, and what is carried of it.

    Workers at a multiple of `period` draw a new noise, the others go on with theirs; `number` is
    that of the noise in use, whether it is new or not. `sigma` is that of new noises.

    **Returns:** the carried `NoiseState` and the noise itself.
    """
    fresh = start % period == 0
    scale = jnp.broadcast_to(sigma, start.shape)
    if noise is not None:
        scale = jnp.where(fresh, scale, noise.sigma)
    epsilon = law.draw(keys, number, scale, theta)
    if noise is not None and noise.epsilon is not None:
        epsilon = where_worker(fresh, epsilon, noise.epsilon)
    score = None
    if accumulate:
        score = scale_rows(*law.score(epsilon, scale))
        if noise is not None:
            added = jax.tree.map(jnp.add, noise.score, score)
            score = where_worker(start == 0, score, where_worker(fresh, added, noise.score))
    return NoiseState(scale, epsilon if store else None, score), epsilon
