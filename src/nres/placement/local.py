"""`Local`: all workers in this process, on one device."""

import dataclasses

from nres.execution import run_window
from nres.placement.base import Placement, WindowOutcome


@dataclasses.dataclass(frozen=True)
class Local(Placement):
    """All workers in this process, on one device. This is the default."""

    vectorises = True

    def can_trace(self, pool):
        return pool.traceable

    def begin(self, estimator, theta, workers):
        return estimator.begin(theta, workers)

    def run(self, estimator, theta, update, workers, carry, length):
        return WindowOutcome(*run_window(estimator.at(update), theta, workers, carry, length))
