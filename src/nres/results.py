"""The results of `train`: of one run, and of several seeds."""

import dataclasses

import numpy as np

from nres.history import History
from nres.progress import TrainState
from nres.seeds import SeedsHistory
from nres.system import Theta


@dataclasses.dataclass(frozen=True, repr=False)
class TrainResult:
    """The result of `train`. Pass its `theta` and `state` to `train` again to resume the run."""

    theta: Theta
    """The parameters after the last update."""
    state: TrainState
    """The state of the run, for `train(..., state=result.state)`."""
    history: History
    """The record of the updates of this call."""
    interrupted: bool
    """True if Ctrl-C was pressed, or if the callback ended the run before its last update."""
    signalled: bool = False
    """True if Ctrl-C was pressed."""
    diverged: bool = False
    """True if training stopped because no worker gave a finite contribution for two episodes."""

    def __repr__(self) -> str:
        ended = " diverged," if self.diverged else " interrupted," if self.interrupted else ""
        return (
            f"TrainResult({self.state.update:,} updates,{ended} {self.history.summary()}; "
            "see .theta, .state, .history)"
        )

    def _repr_html_(self) -> str:
        return self.history._repr_html_()


@dataclasses.dataclass(frozen=True, repr=False)
class SeedsResult:
    """The result of `train` with several seeds."""

    theta: Theta
    """The parameters of every seed after its last update, with an axis of seeds in front."""
    history: SeedsHistory
    """The record of the updates of every seed."""
    interrupted: bool
    """True if Ctrl-C was pressed. Seeds that had not begun by then have no result."""
    diverged: np.ndarray
    """True for each seed that stopped because no worker gave a finite contribution for two
    episodes. The other seeds continue."""

    def __repr__(self) -> str:
        history = self.history
        ended = " interrupted," if self.interrupted else ""
        if self.diverged.any():
            ended += f" {self.diverged.sum()} diverged,"
        return (
            f"SeedsResult({history.described()},{ended} {history.summary()}; see .theta, .history)"
        )

    def _repr_html_(self) -> str:
        return self.history._repr_html_()
