"""`Measured`: the parts of `theta` that come from measurements instead of learning."""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree


class Measured(eqx.Module):
    """Base class of a part of `theta` that is measured while workers run, and never perturbed.

    Estimators draw no noise for such a part and return no gradient for it. Instead, they add up
    what the unrolls observe and return the part's next value in `estimate.measured`; `nres.train`
    puts it into `theta`. A system or pool that uses the part must keep the value with which an
    episode began until it ends. Members of a pair and windows of an episode then run the same
    policy, and estimates stay unbiased for it.
    """

    @abc.abstractmethod
    def updated(self, observed: PyTree) -> "Measured":
        """Return the part after the unrolls of an estimate.

        Args:
            observed: This part's entry of `Window.observed`, summed over all unrolls.
        """


class Moments(Measured):
    """The mean and variance of the observations so far, component by component.

    `Moments.empty(size)` are those of no observations.

    Example:
        ```python
        moments = nres.measured.Moments.empty(17)
        ```
    """

    count: Float[Array, ""]
    """The number of observations."""
    mean: Float[Array, " size"]
    square: Float[Array, " size"]
    """The sum of the squared deviations from the mean."""
    frozen: bool = eqx.field(static=True, default=False)
    """True to leave the moments as they are, whatever is observed."""

    @classmethod
    def empty(cls, size: int) -> "Moments":
        """Return the moments of no observations, with which observations are not scaled."""
        return cls(jnp.zeros(()), jnp.zeros(size), jnp.zeros(size))

    def updated(self, observed: PyTree) -> "Moments":
        """Add observations, given as their number and the sums of their deviations from `mean`."""
        if self.frozen:
            return self
        added, first, second = observed
        count = self.count + added
        some = jnp.maximum(count, 1)
        square = jnp.maximum(self.square + second - first**2 / some, 0)
        return Moments(count, self.mean + first / some, square)


def _is_measured(x: Any) -> bool:
    return isinstance(x, Measured)


def learned(theta: PyTree) -> PyTree:
    """Return `theta` with `None` instead of its measured parts."""
    return jax.tree.map(lambda x: None if _is_measured(x) else x, theta, is_leaf=_is_measured)


def measured(theta: PyTree) -> PyTree:
    """Return `theta` with `None` instead of what is learned."""
    return jax.tree.map(lambda x: x if _is_measured(x) else None, theta, is_leaf=_is_measured)


def frozen(theta: PyTree) -> PyTree:
    """Return `theta` with measured parts that stay as they are."""
    stop = lambda x: dataclasses.replace(x, frozen=True) if isinstance(x, Moments) else x  # noqa: E731
    return jax.tree.map(stop, theta, is_leaf=_is_measured)


def has_measured(theta: PyTree) -> bool:
    """Return true if `theta` has measured parts."""
    return any(map(_is_measured, jax.tree.leaves(theta, is_leaf=_is_measured)))


def all_learned(who: str, theta: PyTree, instead: str = "") -> PyTree:
    """Return `theta`; raise a `ValueError` if it has measured parts.

    Args:
        who: What cannot use such a `theta`.
        theta: The parameters.
        instead: What could use it, if anything, for the error message.
    """
    if has_measured(theta):
        raise ValueError(
            f"{who} cannot use the measured parts of theta, such as the moments of observations: "
            f"{instead and f'use {instead}, or '}give a theta without them."
        )
    return theta


def joined(learned: PyTree, measured: PyTree) -> PyTree:
    """Put the learned and the measured parts of `theta` together."""
    return eqx.combine(learned, measured)


def map_learned(function: Callable[..., Any], theta: PyTree, *others: PyTree) -> PyTree:
    """Apply a function to what is learned, as `jax.tree.map` does, and keep what is measured."""
    return joined(jax.tree.map(function, learned(theta), *map(learned, others)), measured(theta))


def updated(theta: PyTree, observed: tuple[PyTree, ...] | None) -> PyTree:
    """Return the measured parts of `theta` after an estimate.

    Args:
        theta: The parameters.
        observed: The sum of `Window.observed`; `None` leaves the parts as they are.
    """
    parts = measured(theta)
    if observed is None:
        return parts
    flat, structure = jax.tree.flatten(parts, is_leaf=_is_measured)
    after = [part.updated(x) for part, x in zip(flat, observed, strict=True)]
    return jax.tree.unflatten(structure, after)
