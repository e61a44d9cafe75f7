"""The values that estimators carry from call to call, and the values that they return."""

from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float, Int

from nres.system import Theta
from nres.workers import Steps, Workers


class Spent(eqx.Module):
    """Unroll steps as compiled code counts them: a bound, and how much of it was not needed.

    The bound is a Python int of any size; what was not needed is exact up to 2³¹ steps per call.
    """

    bound: Steps = eqx.field(static=True)
    unused: Int[Array, "2"]

    def steps(self) -> Steps:
        total, sequential = np.asarray(self.unused).tolist()
        return Steps(self.bound.total - total, self.bound.sequential - sequential)


class EstimatorState(eqx.Module):
    """Everything an estimator carries from one estimate to the next. A value: save it, copy it."""

    workers: Workers
    carry: Any
    """Unrolled states and noise, as the estimator's placement keeps them."""
    update: Int[Array, ""]
    """How many estimates were made: what a schedule of sigma is a function of."""
    signature: Any = eqx.field(static=True)


class Info(eqx.Module):
    """Diagnostics of one estimate: nothing here is needed for the next one."""

    window_start: Int[Array, " workers"]
    """The step of its episode at which each worker's window started."""
    steps: Int[Array, " workers"]
    """The number of steps that the unrolls of each worker took."""
    contribution_norm: Float[Array, " workers"]
    """The Euclidean norm of each worker's own gradient estimate; not a number if left out."""
    variance: Float[Array, ""]
    r"""Total variance $\operatorname{tr}\operatorname{Cov}$ of `grad`, estimated from the spread
    of the workers' contributions; infinite when fewer than two contribute."""
    nonfinite: Int[Array, ""]
    """How many workers were left out because their contribution was not finite."""
    first_nonfinite: Int[Array, ""]
    """The index of the first of them, or -1."""


class Estimate(eqx.Module):
    """A gradient estimate."""

    grad: Theta
    """The estimate itself, like `theta`."""
    loss: Float[Array, ""]
    """The mean loss of the unrolls, perturbed as they are, per step."""
    state: EstimatorState
    """What the next call of `estimate` needs."""
    spent: Spent
    """What `steps` is made of."""
    info: Info
    """Diagnostics."""
    report: Int[Array, " reports"] | None = None
    """The counts of the estimator's placement, in the order of `Placement.reports`."""

    @property
    def steps(self) -> Steps:
        """Unroll steps spent in this call, total and sequential, as Python ints."""
        return self.spent.steps()
