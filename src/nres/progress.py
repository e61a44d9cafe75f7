"""The state of a training run, and the progress that callbacks receive."""

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import numpy as np
from jaxtyping import PyTree

from nres.estimators.values import EstimatorState
from nres.system import Theta
from nres.workers import Steps


class TrainState(eqx.Module):
    """The state of a run: together with `theta`, all that is needed to resume it exactly."""

    estimator: EstimatorState
    """The state of the estimator."""
    optimizer: PyTree
    """The state of the optax optimizer."""
    update: int
    """The number of updates made so far."""
    steps: Steps
    """The number of unroll steps so far, including the steps that moved the workers apart."""
    seconds: float
    """The wall-clock seconds spent on updates so far."""


@dataclasses.dataclass(frozen=True)
class Progress:
    """The progress of a run, as passed to callbacks.

    Its arrays are valid only during the call. Copy what you want to keep.
    """

    theta: Theta
    """The current parameters."""
    state: TrainState
    """The current state of the run."""
    updates: int
    """The update at which the run will end."""
    rows: dict[str, np.ndarray]
    """The columns of `History` for the updates since the last call."""
    evals: dict[str, float] | None
    """The result of `eval_fn`, if it was called after the last of these updates; else `None`."""


Callback = Callable[[Progress], Any]
"""A function that `train` calls from time to time; true ends the run."""


@runtime_checkable
class Reporter(Protocol):
    """Protocol of an object that displays the progress of training.

    Pass one as `progress` to `nres.train`; `nres.display.Display` is an example.
    """

    def phase(self, name: str) -> None:
        """Receive the phase that begins now.

        Args:
            name: `"compiling"`, `"unlocking"`, `"evaluating"` or `"updating"`.
        """
        ...

    def __call__(self, progress: Progress) -> Any:
        """Receive the progress, at the same times as the `callback` of `train`.

        If several seeds run together, `theta` and the arrays of the state have an axis of seeds in
        front, step counts are sums over the seeds, and rows and evaluations are means.
        """
        ...
