"""The state of a training run, and what callbacks are told of it."""

import dataclasses
from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import numpy as np
from jaxtyping import PyTree

from nres.estimators.values import EstimatorState
from nres.system import Theta
from nres.workers import Steps


class TrainState(eqx.Module):
    """Everything needed, together with `theta`, to go on exactly where a run stopped."""

    estimator: EstimatorState
    optimizer: PyTree
    update: int
    """Updates made so far."""
    steps: Steps
    """Unroll steps spent so far, unlocking included."""
    seconds: float
    """Wall-clock spent on updates so far."""


@dataclasses.dataclass(frozen=True)
class Progress:
    """The progress of a run. Its arrays are valid during the call: copy what is to be kept."""

    theta: Theta
    state: TrainState
    updates: int
    """The update at which the run will end."""
    rows: dict[str, np.ndarray]
    """The columns of `History` for the updates since the last call."""
    evals: dict[str, float] | None
    """The result of `eval_fn`, if it was called after the last of these updates."""


@runtime_checkable
class Reporter(Protocol):
    """Told how training goes; `nres.display.Display` is one."""

    def phase(self, name: str) -> None:
        """Told what begins now: `"compiling"`, `"unlocking"`, `"evaluating"` or `"updating"`."""
        ...

    def __call__(self, progress: Progress) -> Any:
        """Called like the `callback` of `train`."""
        ...
