"""The values that estimators carry from call to call, and the values that they return."""

from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from nres.noise import Adaptation
from nres.system import Theta
from nres.workers import Steps, Workers


class Spent(eqx.Module):
    """Number of unroll steps, as compiled code counts them: a bound, and the unused part of it.

    The bound is a Python int of any size. The unused part is exact up to 2³¹ steps per call.
    """

    bound: Steps = eqx.field(static=True)
    unused: Int[Array, "2"]

    def steps(self) -> Steps:
        """Return the counts as Python ints."""
        total, sequential = np.asarray(self.unused).tolist()
        return Steps(self.bound.total - total, self.bound.sequential - sequential)


class EstimatorState(eqx.Module):
    """The state that an estimator carries from one estimate to the next.

    It is an immutable value, which you can copy, or save with `nres.checkpoint`.
    """

    workers: Workers
    """The positions of the workers."""
    carry: Any
    """The states of the unrolls and the noise, in the form that the placement keeps them."""
    update: Int[Array, ""]
    """The number of estimates made so far, which is the argument of a schedule of sigma."""
    signature: Any = eqx.field(static=True)
    """The settings of the estimator and the shapes of `theta` that the state belongs to."""
    adaptation: Adaptation | None = None
    """The present sigma and what it adapts to; `None` unless sigma is an `AdaptiveSigma`."""


class Info(eqx.Module):
    """Diagnostics of one estimate, which the next estimate does not need."""

    window_start: Int[Array, " workers"]
    """The step of the episode at which each worker's window started."""
    steps: Int[Array, " workers"]
    """The number of steps that the unrolls of each worker took."""
    contribution_norm: Float[Array, " workers"]
    """The Euclidean norm of each worker's own gradient estimate; NaN if it was left out."""
    variance: Float[Array, ""]
    r"""Total variance $\operatorname{tr}\operatorname{Cov}$ of `grad`, estimated from the spread
    of the workers' contributions; infinite if fewer than two workers contribute."""
    nonfinite: Int[Array, ""]
    """The number of workers left out because their contribution was not finite."""
    first_nonfinite: Int[Array, ""]
    """The index of the first of these workers, or -1 if there are none."""


class Estimate(eqx.Module):
    """A gradient estimate, with the state for the next one and diagnostics."""

    grad: Theta
    """The gradient estimate, with the structure, shapes and dtypes of `theta`."""
    loss: Float[Array, ""]
    """The mean loss per step of the perturbed unrolls."""
    state: EstimatorState
    """The state for the next call of `estimate`."""
    spent: Spent
    """The step counts behind `steps`."""
    info: Info
    """Diagnostics."""
    report: Int[Array, " reports"] | None = None
    """The counts that the placement reports, in the order of `Placement.reports`."""

    @property
    def steps(self) -> Steps:
        """The number of unroll steps of this call, total and sequential, as Python ints."""
        return self.spent.steps()


class Unlocking(eqx.Module):
    """A round that moves workers to their starting points; its estimate is discarded."""

    on: Bool[Array, ""]
    """True in an unlocking round, false in an update."""
    moving: Bool[Array, " workers"]
    """The workers that run a window; all workers in an update."""
    counts: bool = eqx.field(static=True, default=True)
    """True to leave the steps of waiting workers out of the count. That costs a sum over all
    unrolls in every update; it is not needed if the count is known beforehand."""
