"""`Placement`: where an estimator's workers live."""

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
    """An estimator as a placement sees it."""

    @property
    def workers(self) -> int: ...
    @property
    def members(self) -> int: ...

    def begin(self, theta: Any, workers: Workers) -> Carry | None: ...
    def at(self, update: Any) -> "Placeable": ...
    def rescaled(self, start: Any, scale: Any) -> "Placeable": ...


class Outcome(eqx.Module):
    """The outcome of one window of all workers."""

    carry: Any
    """A `Carry` for the next window, or whatever the placement keeps instead of it."""
    contributions: Contributions
    absent: Bool[Array, " workers"] | None = None
    """Workers that took no part and are still where they were; `None` if all took part."""
    report: Int[Array, " reports"] | None = None
    """The numbers that `Placement.reports` names."""


class Placement(abc.ABC):
    """A place for an estimator's workers: here, several devices, or other machines.

    A placement gives each place its share of the workers, runs the estimator's window there and
    adds up the contributions. Gradients are the same on every placement, but for the order of
    additions. An estimator takes one as its argument `placement`.
    """

    reports: tuple[str, ...] = ()
    """The names of what the placement counts in every update, beside the estimator's numbers."""

    multiple: int = 1
    """The number of workers must be a multiple of this."""

    @abc.abstractmethod
    def can_trace(self, pool: Pool) -> bool:
        """Tell if JAX can trace a window of this pool, placed so."""

    @abc.abstractmethod
    def begin(self, estimator: Placeable, theta: Theta, workers: Workers) -> Any:
        """Return the carry of workers before their first window; `None` if they carry nothing."""

    @abc.abstractmethod
    def run(
        self,
        estimator: Placeable,
        theta: Theta,
        update: Int[Array, ""],
        workers: Workers,
        carry: Any,
        length: Int[Array, " workers"] | None,
    ) -> Outcome:
        """One window of every worker; `update` is the number of updates made before."""

    def check(self, estimator: Placeable) -> None:
        """Raise an error if the workers of this estimator cannot live here."""
        if estimator.workers % self.multiple:
            below = estimator.workers // self.multiple * self.multiple
            near = f"{below} or {below + self.multiple}" if below else f"{self.multiple}"
            raise ValueError(
                f"workers must be a multiple of the number of devices, {self.multiple}, so that "
                f"each has equally many; got {estimator.workers}: take {near}."
            )

    def replicate(self, tree: PyTree) -> PyTree:
        """Give values that every process knows to every device."""
        return jax.tree.map(jnp.asarray, tree)

    def everywhere(self, array: Array) -> Array:
        """Let every device have an array, so that any process can read it."""
        return array

    def gather(
        self, estimator: Placeable, theta: Theta, workers: Workers, carry: Any
    ) -> Carry | None:
        """Return the carry of the workers as arrays, as it would be on a single device."""
        return carry

    def close(self) -> None:
        """Release what lives elsewhere."""
