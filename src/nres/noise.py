r"""Noise: the distributions of perturbations, and the noise that workers carry.

A worker's key and the index of a noise in that worker's life determine the noise, so it can be
regenerated instead of stored. The $\sigma$ that scaled a noise is stored with it: under a
schedule, old noise is never weighted with a new $\sigma$.
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
    r"""A distribution of perturbations: how $\epsilon$ is drawn, applied and weighted.

    With the score $w(\epsilon) = -\nabla_\epsilon \ln p(\epsilon)$ and the members' losses $L_m$, a
    worker contributes $\big(\sum_m c_m L_m\big)\, w(\epsilon)$, where $c$ is the `contrast` of the
    members. For antithetic pairs, $c = (\tfrac12, -\tfrac12)$. A new distribution is a subclass
    that implements `draw` and overrides whichever of `contrast`, `perturb` and `score` differ.

    Example:
        ```python
        class Rademacher(nres.Noise):
            def draw(self, keys, number, sigma, theta):
                return nres.noise.scale_rows(sigma, nres.noise.draw_signs(keys, number, theta))
        ```
    """

    contrast: ClassVar[tuple[float, ...]] = (0.5, -0.5)
    """The weight of each member's loss in the difference that multiplies the score."""

    @abc.abstractmethod
    def draw(
        self,
        keys: Key[Array, " workers"],
        number: Int[Array, " workers"],
        sigma: Float[Array, " workers"],
        theta: Theta,
    ) -> PyTree:
        """Draw one noise for each worker.

        Args:
            keys: The key of each worker, the same for its whole life.
            number: The index of the noise to draw, for each worker. The same key and index give
                the same noise, whatever the other workers do.
            sigma: The scale of each worker's noise.
            theta: The parameters, for their shapes and dtypes.

        Returns:
            The noise: a pytree like `theta` with one row per worker.
        """

    def perturb(self, theta: Theta, epsilon: PyTree) -> PyTree:
        r"""Return the parameters of each member on a new first axis: here $\theta \pm \epsilon$.

        Args:
            theta: The parameters.
            epsilon: The noise, one row per worker.

        Returns:
            A pytree like `theta` with axes `(members, workers)` in front.
        """

        def members(x, e):
            x, e = jnp.broadcast_to(x, e.shape), e.astype(x.dtype)
            return jnp.stack([x + e, x - e])

        return jax.tree.map(members, theta, epsilon)

    def score(
        self, epsilon: PyTree, sigma: Float[Array, " workers"]
    ) -> tuple[Float[Array, " workers"], PyTree]:
        r"""Return the score as one factor per worker and the rows that it multiplies.

        Here they are $\sigma^{-2}$ and $\epsilon$.

        Args:
            epsilon: The noise, one row per worker.
            sigma: The scale of each worker's noise.

        Returns:
            The factors, and rows like `epsilon`.
        """
        return sigma**-2, epsilon


class Gaussian(Noise):
    r"""Gaussian noise with independent components, $\epsilon \sim \mathcal N(0, \sigma^2 I)$."""

    def draw(self, keys, number, sigma, theta):
        # Element j of noise n hashes the counter (n + 1, j) with the worker's key.
        # `jax.random.fold_in` uses the counters (0, .), so the two never collide.
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
    """The current noise, one row per worker; `None` if it is regenerated."""
    score: PyTree | None
    r"""The sum of the scores of the episode's noises; `None` if one noise serves a whole episode,
    because the score then follows from it."""


def threefry(key: tuple[Array, Array], counter: tuple[Array, Array]) -> tuple[Array, Array]:
    """Compute the Threefry-2x32 hash, 20 rounds: two words of 32 random bits per counter.

    JAX's default generator is the same function. On CPUs JAX compiles it as a loop of many small
    kernels, which takes longer than the unrolls that need the noise. Written out, it is one kernel.

    Args:
        key: Two words of 32 bits.
        counter: Two words of 32 bits, of shapes that broadcast with the key's.

    Returns:
        Two words of 32 random bits.

    Reference:
        Salmon et al., *Parallel random numbers: as easy as 1, 2, 3*, SC 2011.
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
    """Draw independent signs, -1 or 1 with equal probability.

    Args:
        keys: The key of each worker.
        number: The index of the draw, for each worker.
        like: A pytree of arrays, for their shapes and dtypes.

    Returns:
        A pytree like `like` with one row per worker.
    """
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
    """Yield, for every leaf, the given number of pairs of random words per worker."""
    data = jax.random.key_data(keys)
    words = jnp.split(data, data.shape[1], axis=1)
    # Keys of generators other than Threefry have four words.
    key = (words[0], words[1])
    if len(words) == 4:
        key = threefry(key, (words[2], words[3]))
    first = 0
    for count in counts:
        element = jnp.arange(first, first + count, dtype=jnp.uint32)[None, :]
        first += count
        yield threefry(key, (number.astype(jnp.uint32)[:, None] + jnp.uint32(1), element))


def _normal32(bits: UInt32[Array, "..."]) -> Float[Array, "..."]:
    """Turn 23 random bits each into standard normal numbers, by inversion."""
    unit = (bits >> jnp.uint32(9)).astype(jnp.float32) * 2.0**-22 + (2.0**-23 - 1.0)
    return math.sqrt(2) * jax.lax.erf_inv(unit)


def _normal64(high: UInt32[Array, "..."], low: UInt32[Array, "..."]) -> Float[Array, "..."]:
    """Turn 52 random bits each into standard normal numbers in double precision."""
    bits = (high >> jnp.uint32(6)).astype(jnp.float64) * 2.0**26
    bits = bits + (low >> jnp.uint32(6)).astype(jnp.float64)
    return math.sqrt(2) * jax.lax.erf_inv(bits * 2.0**-51 + (2.0**-52 - 1.0))


def where_worker(condition: Bool[Array, " workers"], new: PyTree, old: PyTree) -> PyTree:
    """Select between two pytrees, worker by worker, as `jnp.where` does.

    Args:
        condition: One boolean per worker.
        new: The rows of workers whose condition is true.
        old: The rows of the others.

    Returns:
        A pytree like `new`.
    """

    def choose(n, o):
        return jnp.where(jnp.expand_dims(condition, range(1, n.ndim)), n, o)

    return jax.tree.map(choose, new, old)


def scale_rows(factor: Float[Array, " workers"], rows: PyTree) -> PyTree:
    """Multiply each worker's row by that worker's factor, in at least single precision.

    Args:
        factor: One number per worker.
        rows: A pytree with one row per worker.

    Returns:
        The scaled rows.
    """

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
    """Return the noise of the windows that begin at `start`.

    Workers whose `start` is a multiple of `period` draw a new noise; the others keep theirs.

    Args:
        law: The distribution of the noise.
        noise: The noise that the workers carry; `None` before the first window.
        theta: The parameters, for their shapes and dtypes.
        keys: The key of each worker.
        number: The index of each worker's noise in use, new or not.
        start: The step of the episode at which each worker's window begins.
        sigma: The scale of new noises.
        period: The number of steps for which a noise is kept.
        store: True if the noise is carried, false if it is regenerated in every window.
        accumulate: True if the scores are summed over the episode.

    Returns:
        The `NoiseState` to carry to the next window, and the noise itself.
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
