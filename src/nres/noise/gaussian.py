"""Random numbers from keys and counters, and the Gaussian noise made of them."""

import math
from collections.abc import Iterator

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, PyTree, UInt32

from nres.noise.law import Noise, scale_rows
from nres.system import parameter_count

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


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
            rows.append(normal[:, : leaf.size].reshape(-1, *leaf.shape))
        scaled = scale_rows(sigma, jax.tree.unflatten(structure, rows))
        return jax.tree.map(lambda row, leaf: row.astype(leaf.dtype), scaled, theta)

    def gain(self, theta):
        return parameter_count(theta) + 2.0


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


def normal_rows(
    keys: Key[Array, " workers"],
    number: Int[Array, " workers"],
    first: int | Int[Array, ""],
    size: int,
) -> Float[Array, "workers {size}"]:
    """Draw independent standard normal numbers.

    Args:
        keys: The key of each worker.
        number: The index of the draw, for each worker.
        first: The index of the first pair of numbers. Other pairs of the same draw are independent.
        size: The number of numbers per worker.

    Returns:
        One row of numbers per worker, in single precision.
    """
    bits = _words(keys, number, jnp.uint32(first) + jnp.arange(-(-size // 2), dtype=jnp.uint32))
    return _normal32(jnp.concatenate(bits, axis=1))[:, :size]


def _hash(
    keys: Key[Array, " workers"], number: Int[Array, " workers"], counts: list[int]
) -> Iterator[tuple[Array, Array]]:
    """Yield, for every leaf, the given number of pairs of random words per worker."""
    first = 0
    for count in counts:
        yield _words(keys, number, jnp.arange(first, first + count, dtype=jnp.uint32))
        first += count


def _words(
    keys: Key[Array, " workers"],
    number: Int[Array, " workers"],
    element: UInt32[Array, " elements"],
) -> tuple[Array, Array]:
    """Hash the counters (number + 1, element) with each worker's key, to two words each."""
    data = jax.random.key_data(keys)
    words = jnp.split(data, data.shape[1], axis=1)
    # Keys of generators other than Threefry have four words.
    key = (words[0], words[1])
    if len(words) == 4:
        key = threefry(key, (words[2], words[3]))
    return threefry(key, (number.astype(jnp.uint32)[:, None] + jnp.uint32(1), element[None, :]))


def _normal32(bits: UInt32[Array, "..."]) -> Float[Array, "..."]:
    """Turn 23 random bits each into standard normal numbers, by inversion."""
    unit = (bits >> jnp.uint32(9)).astype(jnp.float32) * 2.0**-22 + (2.0**-23 - 1.0)
    return math.sqrt(2) * jax.lax.erf_inv(unit)


def _normal64(high: UInt32[Array, "..."], low: UInt32[Array, "..."]) -> Float[Array, "..."]:
    """Turn 52 random bits each into standard normal numbers in double precision."""
    bits = (high >> jnp.uint32(6)).astype(jnp.float64) * 2.0**26
    bits = bits + (low >> jnp.uint32(6)).astype(jnp.float64)
    return math.sqrt(2) * jax.lax.erf_inv(bits * 2.0**-51 + (2.0**-52 - 1.0))
