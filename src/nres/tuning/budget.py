"""`Budget`: the steps of a run, and the workers, window and updates that fit into them."""

import dataclasses
import math
from typing import Any

from nres.checks import check_fits, positive_number, whole_number
from nres.estimators import Estimator
from nres.workers import Steps

# The share of the budget that probes may take, and the share that probes and trials may take.
PROBES, TRIALS = 0.1, 0.15
# The smallest budgets, in episodes.
LEAST = {"total_steps": 100, "sequential_steps": 20}
# The number of pairs of episodes per update, and the fewest updates for which to keep it.
PAIRS, UPDATES = 2.0, 100
# Windows per episode, unless a budget of sequential steps asks for shorter ones.
WINDOWS = 10
# With a budget of sequential steps alone, windows are short enough for this many updates.
SEQUENTIAL_UPDATES = 1000


@dataclasses.dataclass(frozen=True)
class Budget:
    """A budget of total and sequential steps; infinite where there is no limit."""

    horizon: int
    total: float = math.inf
    sequential: float = math.inf

    @classmethod
    def of(cls, horizon: int, total: Any, sequential: Any, seconds: Any) -> "Budget":
        """Check the arguments of `tune`."""
        if seconds is not None:
            positive_number("seconds", seconds)
        if (seconds is None) == (total is None and sequential is None):
            raise ValueError(
                "tune needs one budget: give total_steps, sequential_steps or both, or seconds; "
                f"got total_steps={total}, sequential_steps={sequential}, seconds={seconds}."
            )
        given = {"total_steps": total, "sequential_steps": sequential}
        for name, value in given.items():
            least = LEAST[name] * horizon
            if value is not None and positive_number(name, value) < least:
                raise ValueError(
                    f"{name} must be at least {least}, which is {LEAST[name]} episodes of "
                    f"{horizon} steps; got {value:g}."
                )
        return cls(horizon, *(math.inf if v is None else float(v) for v in given.values()))

    def share(self, share: float, taken: Steps = Steps(0, 0)) -> "Budget":  # noqa: B008
        """Return a share of the budget, less some steps that were taken."""
        return dataclasses.replace(
            self,
            total=share * self.total - taken.total,
            sequential=share * self.sequential - taken.sequential,
        )

    def shape(self, method: str, workers: int | None, window: int | None) -> tuple[int, int]:
        """Return the number of workers and the window, some of which may be given."""
        horizon = self.horizon
        # The workers' way to their starting points takes as many steps as half an episode of each.
        pairs = min(PAIRS, self.total / ((2 * UPDATES + WINDOWS) * horizon))
        if workers is not None:
            workers = whole_number("workers", workers)
        if method == "fulles":
            if window is not None:
                raise ValueError(f"fulles has no window, got window={window}: leave it out.")
            return workers or max(1, round(pairs)), horizon
        if window is None:
            longest = math.ceil(horizon / WINDOWS)
            wanted: float = longest
            if workers is None and self.total < math.inf > self.sequential:
                workers = max(1, int(self.total // (2 * self.sequential)))
            if self.sequential < math.inf:
                wanted = self.sequential / SEQUENTIAL_UPDATES
                wanted = wanted if workers is None else pairs * horizon / workers
            window = max(1, min(math.ceil(wanted), longest))
        check_fits(window, horizon)
        return workers or max(1, round(pairs * horizon / window)), window

    def updates(self, estimator: Estimator, taken: Steps) -> int:
        """Return the number of updates, with the workers' way to their starting points."""
        each, way = estimator.most_steps, estimator.horizon - estimator.window
        total = self.total - taken.total - each.total * way / (2 * each.sequential)
        sequential = self.sequential - taken.sequential - way
        return int(max(0, min(total / each.total, sequential / each.sequential, 1e15)))
