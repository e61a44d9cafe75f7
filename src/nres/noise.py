r"""How perturbations are drawn, kept or regenerated.

Every worker perturbs $\theta$ by $\epsilon \sim \mathcal N(0, \sigma^2 I)$. A noise is known by
its worker's key, its episode and its number within the episode, so it can be drawn again
instead of being kept. The $\sigma$ that scaled it is stored with it: under a schedule, old noise
is never weighed with a new $\sigma$.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from nres.system import Theta


class Noise(eqx.Module):
    """The noise that workers carry from one window to the next."""

    sigma: Float[Array, "workers"]
    """The scale of each worker's current noise."""
    epsilon: PyTree | None
    """The current noise, a row for each worker; `None` where it is regenerated."""
    score: PyTree | None
    r"""$\sum_i \epsilon_i / \sigma_i^2$ over the noises of the episode; `None` where one noise
    serves a whole episode and the score follows from it."""


def draw(keys: Key[Array, "workers"], sigma: Float[Array, "workers"], theta: Theta) -> PyTree:
    r"""One $\epsilon \sim \mathcal N(0, \sigma_i^2 I)$ a worker: `theta` with rows in front."""
    leaves, structure = jax.tree.flatten(theta)

    def one(key, sigma):
        leaf_keys = [key] if len(leaves) == 1 else jax.random.split(key, len(leaves))
        return [
            sigma.astype(leaf.dtype) * jax.random.normal(k, leaf.shape, leaf.dtype)
            for k, leaf in zip(leaf_keys, leaves, strict=True)
        ]

    return jax.tree.unflatten(structure, jax.vmap(one)(keys, sigma))


def where_worker(condition: Bool[Array, "workers"], new: PyTree, old: PyTree) -> PyTree:
    """Choose between two pytrees, worker by worker."""

    def choose(n, o):
        return jnp.where(jnp.expand_dims(condition, range(1, n.ndim)), n, o)

    return jax.tree.map(choose, new, old)


def times_worker(factor: Float[Array, "workers"], rows: PyTree) -> PyTree:
    """Scale the row of each worker by its own factor."""
    return jax.tree.map(
        lambda r: jnp.expand_dims(factor, range(1, r.ndim)).astype(r.dtype) * r, rows
    )


def noise_count(horizon: int, period: int) -> int:
    """How many noises an episode uses."""
    return -(-horizon // period)


def update_noise(
    noise: Noise | None,
    theta: Theta,
    keys: Key[Array, "workers"],
    start: Int[Array, "workers"],
    sigma: Float[Array, ""],
    *,
    period: int,
    keep: bool,
    accumulate: bool,
) -> tuple[Noise, PyTree]:
    """The noise of the windows that begin at `start`, and what is carried of it.

    Workers at a multiple of `period` draw a new noise, the others go on with theirs. `keys`
    identify the noise in use at `start`, whether it is new or not.

    **Returns:** the carried `Noise` and the noise itself.
    """
    fresh = start % period == 0
    scale = jnp.broadcast_to(sigma, start.shape)
    if noise is not None:
        scale = jnp.where(fresh, scale, noise.sigma)
    epsilon = draw(keys, scale, theta)
    if noise is not None and noise.epsilon is not None:
        epsilon = where_worker(fresh, epsilon, noise.epsilon)
    score = None
    if accumulate:
        score = times_worker(scale**-2, epsilon)
        if noise is not None:
            added = jax.tree.map(jnp.add, noise.score, score)
            score = where_worker(start == 0, score, where_worker(fresh, added, noise.score))
    return Noise(scale, epsilon if keep else None, score), epsilon
