"""`Keeper`: write the metrics, the checkpoints and the best parameters of a run."""

import contextlib
import math
import time
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nres import multihost, weights
from nres.callbacks import SignalStopping
from nres.checkpoint import CheckpointError, Checkpoints
from nres.estimators.base import Estimator
from nres.estimators.computing import gather_state
from nres.progress import Progress, TrainState
from nres.results import TrainResult
from nres.runs.folder import BEST, Run, RunError
from nres.runs.metrics import MetricsError, MetricsWriter
from nres.weights import Archive, WeightsError


class Keeper:
    """Writer of the metrics, the checkpoints and the best parameters of a run.

    On several hosts the first process writes, and the others send it their part of each checkpoint.
    The keeper reads the first checkpoint back, so that a faulty disk shows at once. It writes no
    checkpoint while no worker is finite, so that the last good one stays.
    """

    def __init__(
        self,
        run: Run,
        checkpoints: Checkpoints,
        metrics: MetricsWriter | None,
        estimator: Estimator,
        signal_stopping: SignalStopping,
    ):
        self.signal_stopping = signal_stopping
        self.run, self.checkpoints = run, checkpoints
        self.metrics, self.estimator = metrics, estimator
        self.saved_update, self.saved_time = -1, time.monotonic()
        self.best = self._best_so_far()

    def __enter__(self) -> "Keeper":
        return self

    def __exit__(self, kind: type | None, *exception: object) -> None:
        try:
            if self.metrics is not None:
                self.metrics.close()
        except OSError:
            if kind is None:  # otherwise the first error matters more
                raise

    def add(self, progress: Progress) -> None:
        """Write the metrics of the new updates, and a checkpoint if one is due."""
        if self.metrics is not None:
            with self._explaining():
                self.metrics.add(progress)
        if progress.evals:
            self._keep_best(progress)
        settings, update = self.run.settings, progress.state.update
        every = settings.checkpoint_every
        due = time.monotonic() - self.saved_time >= settings.checkpoint_seconds
        if every is not None:
            due = due or update // every > self.saved_update // every
        kept = settings.keep_every is not None and update % settings.keep_every == 0
        due = (due and not self._is_lost(progress)) or kept or self.saved_update < 0
        if multihost.agree_on(int(due), False)[0]:  # the first process decides, by its clock
            self.save(progress.theta, progress.state)

    def finish(self, result: TrainResult) -> bool:
        """Save the final state and wait until it is on disk; return whether the run diverged.

        The state of a run that has diverged is not saved.
        """
        diverged = result.diverged or not _is_finite(result.theta)
        if not diverged:
            self.save(result.theta, result.state)
        with self._explaining():
            self.checkpoints.wait()
        return diverged

    def save(self, theta: Any, state: TrainState) -> None:
        """Write a checkpoint, unless it exists or the parameters are not finite."""
        if state.update == self.saved_update or not _is_finite(theta):
            return
        if self.metrics is not None:
            with self._explaining():
                self.metrics.sync()
        carried = gather_state(self.estimator, theta, state.estimator)
        tree = {"theta": theta, "optimizer": state.optimizer, "estimator": carried}
        metadata = {
            "update": state.update,
            "steps": list(state.steps),
            "seconds": state.seconds,
            "settings": self.run.settings.determining(),
            "pending": None if self.metrics is None else self.metrics.pending,
            "metrics": None if self.metrics is None else self.metrics.written(),
            "remark": None if self.metrics is None else self.metrics.remark,
            "signal_stopping": self.signal_stopping.state,
        }
        with self._explaining():
            self.checkpoints.save(state.update, tree, metadata)
            if self.saved_update < 0:
                self.checkpoints.verify(state.update)
        self.saved_update, self.saved_time = state.update, time.monotonic()

    @contextlib.contextmanager
    def _explaining(self) -> Iterator[None]:
        try:
            yield
        except MetricsError as error:
            raise RunError(f"{error} The run has stopped.") from error
        except (OSError, CheckpointError) as error:
            raise RunError(
                f"{self.run.path} is not writable: {error}. Resume from the newest checkpoint "
                f"with: nres resume {self.run.path}"
            ) from error

    def _is_lost(self, progress: Progress) -> bool:
        """Return whether no worker was finite in the last update."""
        rows = progress.rows
        if not len(rows["nonfinite"]):
            return False
        # The loss is a mean over the finite workers, and NaN if there are none.
        return bool(rows["nonfinite"][-1] > 0 and np.isnan(rows["loss"][-1]))

    def _best_so_far(self) -> float:
        file = self.run.path / BEST
        if not file.exists():
            return math.inf
        try:
            with Archive(file, follow=False) as archive:
                return float(archive.read("value", 8))
        except (WeightsError, OSError, TypeError, ValueError):
            return math.inf  # it is damaged, and the next evaluation replaces it

    def _keep_best(self, progress: Progress) -> None:
        """Write the parameters if their first metric is the smallest so far."""
        assert progress.evals is not None
        value = next(iter(progress.evals.values()))
        if self.metrics is None or not value < self.best:
            return
        self.best = value
        update = np.int64(progress.state.update)
        with self._explaining():
            theta = multihost.to_local(progress.theta)
            weights.save(self.run.path / BEST, theta, update=update, value=np.float64(value))


def _is_finite(theta: Any) -> bool:
    return all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(theta))
