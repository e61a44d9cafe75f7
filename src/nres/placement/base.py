"""`Placement`: the interface of devices and processes that run an estimator's workers."""

import abc
from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PyTree

from nres.execution import Runner
from nres.pools.base import Pool
from nres.system import Theta
from nres.workers import Carry, Contributions, Workers


@runtime_checkable
class Placeable(Runner, Protocol):
    """The part of an estimator that placements use."""

    @property
    def workers(self) -> int: ...
    @property
    def members(self) -> int: ...

    def begin(self, theta: Any, workers: Workers) -> Carry | None: ...
    def at(self, update: Any) -> "Placeable": ...
    def rescaled(self, start: Any, scale: Any) -> "Placeable": ...


class WindowOutcome(eqx.Module):
    """The outcome of one window of all workers."""

    carry: Any
    """A `Carry` for the next window, or whatever the placement keeps instead."""
    contributions: Contributions
    """The contributions of the workers."""
    absent: Bool[Array, " workers"] | None = None
    """The workers that took no part and did not move; `None` if all took part."""
    report: Int[Array, " reports"] | None = None
    """The numbers that `Placement.reports` names."""


class Placement(abc.ABC):
    """Base class of placements: one device, several devices, or the actors of a cluster.

    A placement splits the workers among its devices or actors, runs the estimator's window on
    each, and adds up the contributions. Gradients are the same on every placement, except for
    rounding, because the order of additions differs. Pass one to an estimator as `placement`.
    """

    reports: tuple[str, ...] = ()
    """The names of the numbers that the placement counts in every update."""

    multiple: int = 1
    """The number of workers must be a multiple of this."""

    vectorises: bool = False
    """True if `jax.vmap` can turn a traced window of one run into a window of several runs."""

    @abc.abstractmethod
    def can_trace(self, pool: Pool) -> bool:
        """Return true if JAX can trace a window of this pool on this placement."""

    @abc.abstractmethod
    def begin(self, estimator: Placeable, theta: Theta, workers: Workers) -> Any:
        """Return what workers carry before their first window; `None` if they carry nothing."""

    @abc.abstractmethod
    def run(
        self,
        estimator: Placeable,
        theta: Theta,
        update: Int[Array, ""],
        workers: Workers,
        carry: Any,
        length: Int[Array, " workers"] | None,
    ) -> WindowOutcome:
        """Run one window of every worker.

        Args:
            estimator: The estimator.
            theta: The parameters.
            update: The number of updates made so far.
            workers: The positions of the workers.
            carry: Their carry, from `begin` or from the last window.
            length: The number of steps that each worker takes; `None` means W for all.

        Returns:
            The new carry, the contributions, and the placement's counts.
        """

    def check(self, estimator: Placeable) -> None:
        """Raise an error if this placement cannot run the estimator's workers."""
        if estimator.workers % self.multiple:
            below = estimator.workers // self.multiple * self.multiple
            near = f"{below} or {below + self.multiple}" if below else f"{self.multiple}"
            raise ValueError(
                f"workers must be a multiple of the number of devices, {self.multiple}, so that "
                f"each has the same number; got {estimator.workers}: take {near}."
            )

    def replicate(self, tree: PyTree) -> PyTree:
        """Copy values that every process knows to every device."""
        return jax.tree.map(jnp.asarray, tree)

    def everywhere(self, array: Array) -> Array:
        """Copy an array to every device, so that any process can read it."""
        return array

    def gather(
        self, estimator: Placeable, theta: Theta, workers: Workers, carry: Any
    ) -> Carry | None:
        """Return the carry of the workers as arrays, as on a single device."""
        return carry

    def close(self) -> None:
        """Release resources in other processes."""
