r"""Noise: the distributions of perturbations, and the noise that workers carry.

A worker's key and the index of a noise in that worker's life determine the noise, so it can be
regenerated instead of stored. The $\sigma$ that scaled a noise is stored with it: under a
schedule, old noise is never weighted with a new $\sigma$.
"""

import abc
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from nres.noise.factors import Perturbed, is_factors
from nres.system import Theta, at_least_single, parameter_count


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

    factored: ClassVar[bool] = False
    """True if rows may be `nres.noise.Factors`, which cannot be added up."""

    @abc.abstractmethod
    def draw(
        self,
        keys: Key[Array, " workers"],
        number: Int[Array, " workers"],
        sigma: PyTree,
        theta: Theta,
    ) -> PyTree:
        """Draw one noise for each worker.

        Args:
            keys: The key of each worker, the same for its whole life.
            number: The index of the noise to draw, for each worker. The same key and index give
                the same noise, whatever the other workers do.
            sigma: The scale of each worker's noise, for `scale_rows`: one number per worker; or,
                if parameters have different scales, a pytree with one row per worker.
            theta: The parameters, for their shapes and dtypes.

        Returns:
            The noise: a pytree like `theta` with one row per worker.
        """

    def group_size(self, workers: int, parameters: int) -> int:
        """Return the number of workers whose noises are drawn jointly.

        A law that returns more than 1 gets the `Group` of every worker as a further argument of
        `draw`, named `group`.

        Args:
            workers: N, the number of workers.
            parameters: d, the number of parameters.
        """
        return 1

    def size(self, theta: Theta) -> int:
        """Return the number of numbers in one worker's noise."""
        return parameter_count(theta)

    def gain(self, theta: Theta) -> float | None:
        r"""Return $E\lVert g_i \rVert^2 / \lVert g \rVert^2$ of a loss that is linear in the noise.

        Here $g_i$ is the estimate of one worker, and $g$ its mean. The ratio may be wrong by 1%; it
        is `None` if it depends on the loss by more, or is not known.
        """
        return None

    def perturb(self, theta: Theta, epsilon: PyTree) -> PyTree:
        r"""Return the parameters of each member on a new first axis: here $\theta \pm \epsilon$.

        Args:
            theta: The parameters.
            epsilon: The noise, one row per worker.

        Returns:
            A pytree like `theta` with axes `(members, workers)` in front.
        """

        def members(x, e):
            if is_factors(e):
                signs = jnp.asarray([1, -1], x.dtype)
                return Perturbed(x, e.a.astype(x.dtype), e.b.astype(x.dtype), signs)
            x, e = jnp.broadcast_to(x, e.shape), e.astype(x.dtype)
            return jnp.stack([x + e, x - e])

        return jax.tree.map(members, theta, epsilon)

    def score(self, epsilon: PyTree, sigma: PyTree) -> tuple[Float[Array, " workers"], PyTree]:
        r"""Return the score as one factor per worker and the rows that it multiplies.

        Here they are $\sigma^{-2}$ and $\epsilon$.

        Args:
            epsilon: The noise, one row per worker.
            sigma: The scale of each worker's noise, as for `draw`.

        Returns:
            The factors, and rows like `epsilon`.
        """
        precision = jax.tree.map(lambda s: s**-2, sigma)
        if is_single(sigma):
            return precision, epsilon
        return jnp.ones(len(jax.tree.leaves(sigma)[0])), scale_rows(precision, epsilon)


class Group(eqx.Module):
    """The place of each worker in a group of workers whose noises are drawn jointly."""

    key: Key[Array, " workers"]
    """The key that all workers of a group share."""
    row: Int[Array, " workers"]
    """The position of each worker in its group, from 0."""
    size: int = eqx.field(static=True)
    """The number of workers in the largest group."""


class NoiseState(eqx.Module):
    """The noise that workers carry from one window to the next."""

    sigma: PyTree
    """The scale of each worker's current noise: one number per worker, or a pytree of rows."""
    epsilon: PyTree | None
    """The current noise, one row per worker; `None` if it is regenerated."""
    score: PyTree | None
    r"""The sum of the scores of the episode's noises; `None` if one noise serves a whole episode,
    because the score then follows from it."""
    excess: PyTree | None = None
    """The sum of the `excess` of the episode's noises, if sigma adapts."""


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


def is_single(sigma: PyTree) -> bool:
    """Return true if the noise of each worker has a single scale."""
    return isinstance(sigma, jax.Array) and sigma.ndim == 1


def scale_rows(factor: PyTree, rows: PyTree) -> PyTree:
    """Multiply each worker's row by that worker's factor, in at least single precision.

    Args:
        factor: One number per worker; or a pytree whose structure is a prefix of that of `rows`,
            whose leaves have an axis of workers in front and broadcast with the rows.
        rows: A pytree with one row per worker.

    Returns:
        The scaled rows.
    """

    def scale(f, r):
        if is_factors(r):
            return r.scaled(f)
        r = r.astype(at_least_single(r.dtype))
        return jnp.expand_dims(f, range(1, 1 + r.ndim - f.ndim)).astype(r.dtype) * r

    def branch(f, part):
        return jax.tree.map(lambda r: scale(f, r), part, is_leaf=is_factors)

    return jax.tree.map(branch, factor, rows)


def excess(law: Noise, epsilon: PyTree, sigma: PyTree) -> PyTree:
    r"""Return $w(\epsilon) \cdot \epsilon - d$ for each worker, where $w$ is the score.

    It is the derivative of the logarithm of the density by $\log \sigma$.

    Args:
        law: The distribution of the noise.
        epsilon: The noise, one row per worker.
        sigma: The scale of each worker's noise, as for `Noise.draw`.

    Returns:
        A pytree like `sigma`: each element sums over the parameters that it scales.
    """
    score = scale_rows(*law.score(epsilon, sigma))
    terms = jax.tree.map(lambda e, w: e.astype(w.dtype) * w - 1, epsilon, score)

    def gather(scale, branch):
        return sum(_sum_to(x, scale.shape).astype(scale.dtype) for x in jax.tree.leaves(branch))

    return jax.tree.map(gather, sigma, terms)


def _sum_to(x: Array, shape: tuple[int, ...]) -> Array:
    """Sum over the axes along which an array of this shape, workers first, is broadcast."""
    wide = (shape[0], *(1,) * (x.ndim - len(shape)), *shape[1:])
    axes = tuple(i for i, (n, m) in enumerate(zip(x.shape, wide, strict=True)) if n != m)
    return x.sum(axis=axes).reshape(shape)


class OfWorkers(eqx.Module):
    """Scales that workers have already: the sigma of an estimator that regenerates noise."""

    sigma: PyTree
    """The scale of each worker's noise, as in `NoiseState`."""
    adapts: bool = eqx.field(static=True, default=False)
    """True if workers carry the `excess` of their noise."""


def for_workers(sigma: PyTree, count: int) -> PyTree:
    """Return the scale of the noise of each of `count` workers.

    Args:
        sigma: A number, a pytree of arrays, or an `OfWorkers`.
        count: The number of workers.

    Returns:
        The same scales with an axis of workers in front.
    """
    if isinstance(sigma, OfWorkers):
        return sigma.sigma
    return jax.tree.map(lambda s: jnp.broadcast_to(s, (count, *jnp.shape(s))), sigma)


def _redrawn(law, epsilon, fresh, few, theta, keys, number, scale) -> PyTree:
    """Draw new noises in the memory of the old ones, for `few` workers at a time."""

    def draw_for_some(position):
        waiting, epsilon = position
        (chosen,) = jnp.nonzero(waiting, size=few, fill_value=waiting.size)
        take = lambda x: x.at[chosen].get(mode="clip")  # noqa: E731
        drawn = law.draw(take(keys), take(number), jax.tree.map(take, scale), theta)
        put = lambda old, new: old.at[chosen].set(new, mode="drop")  # noqa: E731
        return put(waiting, False), jax.tree.map(put, epsilon, drawn)

    # Once is enough in most windows of a training.
    return jax.lax.while_loop(lambda p: p[0].any(), draw_for_some, (fresh, epsilon))[1]


def update_noise(
    law: Noise,
    noise: NoiseState | None,
    theta: Theta,
    keys: Key[Array, " workers"],
    number: Int[Array, " workers"],
    start: Int[Array, " workers"],
    sigma: PyTree,
    *,
    period: int | Int[Array, ""],
    store: bool,
    accumulate: bool,
    adapts: bool = False,
    group: Group | None = None,
    few: int | None = None,
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
        sigma: The scale of new noises: a number, or a pytree of arrays that is a prefix of `theta`.
        period: The number of steps for which a noise is kept.
        store: True if the noise is carried, false if it is regenerated in every window.
        accumulate: True if the scores are summed over the episode.
        adapts: True if sigma adapts, so that the `excess` of the noise is needed.
        group: The groups of the workers, if the law draws the noises of several workers jointly.
        few: Draw for this many workers at a time, until all have drawn that have to. `None` to draw
            for all, and to drop what is not new: faster if noises are small.

    Returns:
        The `NoiseState` to carry to the next window, and the noise itself.
    """
    fresh = start % period == 0
    scale = for_workers(sigma, start.size)
    if noise is not None:
        scale = where_worker(fresh, scale, noise.sigma)
    old = None if noise is None else noise.epsilon
    if old is not None and few is not None:
        epsilon = _redrawn(law, old, fresh, few, theta, keys, number, scale)
    else:
        jointly = {} if group is None else {"group": group}
        epsilon = law.draw(keys, number, scale, theta, **jointly)
        if old is not None:
            epsilon = where_worker(fresh, epsilon, old)

    def carried(new, old):
        """Add new values to those of the episode's earlier noises, where a noise begins."""
        if noise is None:
            return new
        added = jax.tree.map(jnp.add, old, new) if accumulate else new
        return where_worker(start == 0, new, where_worker(fresh, added, old))

    score = beyond = None
    if accumulate:
        score = carried(scale_rows(*law.score(epsilon, scale)), noise and noise.score)
    if adapts:
        beyond = carried(excess(law, epsilon, scale), noise and noise.excess)
    return NoiseState(scale, epsilon if store else None, score, beyond), epsilon
