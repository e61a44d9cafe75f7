"""The values that estimators carry from call to call, and the values that they return."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from nres.noise import Adaptation
from nres.system import Theta
from nres.workers import Steps, Workers

# The largest number of parts of the episode for which contributions are added up.
PARTS = 8


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
    """Diagnostics of one estimate, which the next estimate does not need.

    The numbers from `signal` on come from antithetic pairs. They are NaN for methods without
    pairs, and `signal` and `even` are NaN for a single worker. One estimate gives them with much
    noise: docs/diagnostics.md says how to read them.
    """

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
    sigma: Float[Array, ""]
    """The sigma of noises that began with this estimate, if it adapts; a geometric mean if there
    are several. NaN if sigma does not adapt."""
    square: Float[Array, ""]
    r"""$\lVert \hat g \rVert^2$, the squared norm of the gradient estimate."""
    signal: Float[Array, ""]
    r"""An estimate of $\lVert g \rVert^2$, the squared norm of the gradient itself, from the
    products of different workers' contributions. It is unbiased at fixed parameters, if workers
    are at independent windows and their noises are independent, and approximately otherwise; a
    single one may be negative."""
    signal_weight: Float[Array, ""]
    """The share of pairs of workers behind `signal`, for means over several estimates. It is less
    than 1 if workers were left out, or if some of them share an orthogonal noise. Each pair is
    weighted by the typical size of contributions at its two windows."""
    power: Float[Array, ""]
    r"""The mean of $\lVert g_i \rVert^2$ over the workers."""
    linear_signal: Float[Array, ""]
    r"""The squared norm of the gradient that explains `power`, if losses respond linearly to the
    noise: $P / (d + 2)$. It is NaN if parameters have different sigmas."""
    even: Float[Array, ""]
    """The variance over workers of the mean loss of each pair."""
    odd: Float[Array, ""]
    """The mean square over workers of half the difference of each pair's losses."""
    phase_power: Float[Array, " parts"]
    """The part of `power` that comes from windows in each part of the episode, out of at most eight
    equal parts, divided by that part's share of the windows."""

    @property
    def snr(self) -> Float[Array, ""]:
        r"""The signal-to-noise ratio $S / (\lVert \hat g \rVert^2 - S)$ of the gradient estimate.

        `History.snr` averages over many estimates, as a ratio of sums.
        """
        return self.signal / (self.square - self.signal)

    @property
    def linear_share(self) -> Float[Array, ""]:
        """The share of the contributions that a linear response to the noise explains."""
        return self.signal / self.linear_signal

    @property
    def phase_rms(self) -> Float[Array, " parts"]:
        """The root mean square of contributions by part of the episode.

        It presumes that the workers are spread evenly over the windows, as they are on average.
        """
        return jnp.sqrt(self.phase_power)


class Estimate(eqx.Module):
    """A gradient estimate, with the state for the next one and diagnostics."""

    grad: Theta
    """The gradient estimate, with the structure, shapes and dtypes of `theta`; `None` for its
    measured parts, if it has any."""
    loss: Float[Array, ""]
    """The mean loss per step of the perturbed unrolls."""
    state: EstimatorState
    """The state for the next call of `estimate`."""
    spent: Spent
    """The step counts behind `steps`."""
    info: Info
    """Diagnostics."""
    measured: PyTree = None
    """The next value of the measured parts of `theta`, with `None` in place of what is learned."""
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
