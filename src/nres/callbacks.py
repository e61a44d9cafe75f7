"""Callbacks for `nres.train`: early stopping, the best parameters, and experiment trackers.

A callback is any function of a `Progress`. These objects cover the common needs. Pass one, or a
list of them:

```python
stopping = nres.callbacks.EarlyStopping(patience=5)
best = nres.callbacks.SaveBest("best.npz")
nres.train(..., eval_fn=test_loss, callback=[stopping, best])
```
"""

import abc
import math
import time
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from nres import diagnostics, multihost, weights
from nres.checks import whole_number
from nres.estimators.base import Estimator
from nres.monitor import Monitor
from nres.progress import Progress


class _Best:
    """The best value so far of one of the numbers that `eval_fn` returns."""

    def __init__(self, name: str | None, mode: str, min_delta: float = 0.0):
        if mode not in ("min", "max"):
            raise ValueError(f'mode must be "min" or "max", got {mode!r}.')
        if not min_delta >= 0:
            raise ValueError(f"min_delta must be at least zero, got {min_delta!r}.")
        self.name, self.sign, self.min_delta = name, 1 if mode == "min" else -1, min_delta
        self.value, self.waited = math.nan, 0

    def improves(self, progress: Progress) -> bool:
        """Take in an evaluation, if there is one, and return whether it is the best so far."""
        if progress.state.update == 0:  # another run may have been watched before
            self.value, self.waited = math.nan, 0
        if not progress.evals:
            if progress.state.update == progress.updates and math.isnan(self.value):
                warnings.warn("no evaluation to watch: give train an eval_fn.", stacklevel=4)
            return False
        evals = progress.evals
        name = next(iter(evals)) if self.name is None else self.name
        if name not in evals:
            raise ValueError(f"eval_fn returns no {name!r}, but {', '.join(map(repr, evals))}.")
        return self.take(evals[name])

    def take(self, value: float) -> bool:
        """Take in an evaluation, and return whether it is the best so far."""
        better = self.sign * value < self.sign * self.value - self.min_delta
        self.waited += 1
        if math.isfinite(value) and (better or math.isnan(self.value)):
            self.value, self.waited = value, 0
        return self.waited == 0


class EarlyStopping:
    """Stop training when evaluations no longer improve.

    Training must have an `eval_fn`. Every run that starts at update 0 is watched anew.

    Args:
        name: The number to watch, if `eval_fn` returns a dictionary; the first one by default.
        patience: Stop after this number of consecutive evaluations without an improvement.
        min_delta: The smallest change that counts as an improvement.
        mode: `"min"` if smaller values are better, `"max"` if larger ones are.

    Example:
        ```python
        stopping = nres.callbacks.EarlyStopping(patience=5)
        nres.train(..., eval_fn=test_loss, eval_every=100, callback=stopping)
        ```
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        patience: int = 10,
        min_delta: float = 0.0,
        mode: str = "min",
    ):
        self.patience = whole_number("patience", patience)
        self._best = _Best(name, mode, min_delta)

    def __call__(self, progress: Progress) -> bool:
        """Take in the latest evaluation, and return true if training should stop."""
        self._best.improves(progress)
        return self.stopped

    @property
    def stopped(self) -> bool:
        """True if the evaluations so far no longer improve, so that training should stop."""
        return self._best.waited >= self.patience

    def replay(self, values: Iterable[float]) -> None:
        """Take in evaluations from before an interruption, when a run is resumed.

        Args:
            values: The values of the watched number, in order; NaN where it was not finite.
        """
        for value in values:
            self._best.take(value)


class SignalStopping:
    """Stop training when it has converged or diverged, by its diagnostics.

    A run has converged if the signal in its gradients is no longer distinguishable from zero over a
    stretch of 20 batches, was distinguishable over such a stretch before, and the training loss
    does not fall. A batch has as many updates as two episodes have windows, and at least 25. A run
    has diverged if its training loss is far above that of its first batch for a whole stretch.

    Runs are judged at evaluations only, so that the update at which they stop does not depend on
    the speed of the machine: training must have an `eval_fn`. Every run that starts at update 0 is
    watched anew. Methods without pairs, or with one worker, never count as converged.

    Args:
        estimator: The estimator of the run.

    Example:
        ```python
        stopping = nres.callbacks.SignalStopping(estimator)
        nres.train(estimator, ..., eval_fn=test_loss, callback=stopping)
        print(stopping.reason)
        ```
    """

    def __init__(self, estimator: Estimator):
        self._monitor = Monitor(estimator.windows)
        self.reason: str | None = None
        """The reason to stop: `"converged"`, `"diverged"`, or `None` if there is none yet."""

    def __call__(self, progress: Progress) -> bool:
        """Take in the latest updates, and return true if training should stop."""
        if progress.state.update == 0:
            self._monitor.reset()
            self.reason = None
        self._monitor.add(progress.rows)
        if progress.evals is not None and self.reason is None:
            if self._monitor.converged:
                self.reason = "converged"
            elif self._monitor.diverged:
                self.reason = "diverged"
        return self.stopped

    @property
    def stopped(self) -> bool:
        """True if the run has converged or diverged, so that training should stop."""
        return self.reason is not None

    @property
    def state(self) -> dict[str, Any]:
        """Everything that later decisions depend on, for JSON."""
        return {"reason": self.reason, "monitor": self._monitor.state}

    def restore(self, state: dict[str, Any]) -> None:
        """Take over the `state` from before an interruption, when a run is resumed.

        Args:
            state: The state of the callback after the last update before the interruption.
        """
        self.reason = state["reason"]
        self._monitor.restore(state["monitor"])


class SaveBest:
    """Save the parameters with the best evaluation, for `nres.load`.

    Training must have an `eval_fn`. The first evaluation of every run that starts at update 0, and
    of every new object, replaces the file.

    Args:
        path: The `.npz` file to write. It is replaced whenever an evaluation is the best so far.
        name: The number to watch, if `eval_fn` returns a dictionary; the first one by default.
        mode: `"min"` if smaller values are better, `"max"` if larger ones are.
    """

    def __init__(self, path: str | Path, name: str | None = None, *, mode: str = "min"):
        self.path = Path(path)
        if self.path.suffix != ".npz":
            raise ValueError(f"path must end in .npz, got {self.path}.")
        self._best = _Best(name, mode)

    @property
    def value(self) -> float:
        """The best value so far; NaN before the first evaluation."""
        return self._best.value

    def __call__(self, progress: Progress) -> None:
        """Save the parameters if their evaluation is the best so far."""
        if self._best.improves(progress):
            theta = multihost.to_local(progress.theta)
            if multihost.is_primary():
                weights.save(self.path, theta, update=progress.state.update)


class Tracker(abc.ABC):
    """Base class of callbacks that send metrics to an experiment tracker.

    At each call it sends the mean `loss` and `grad_norm` of the updates since the last call, their
    diagnostics (`snr`, `linear_share`, `even_spread`, `odd_spread`, `phase_rms_1` and so on), the
    sum of `nonfinite` and of the placement's counts, the number of steps and seconds so far, and
    evaluations as `eval/NAME`. A subclass implements `log`. Of several processes, only the first
    one sends.

    Use a tracker as a context manager, which closes it at the end, and marks the run as failed
    after an error. A run and its continuation may share a tracker.
    """

    @abc.abstractmethod
    def log(self, metrics: Mapping[str, float | int], update: int) -> None:
        """Send metrics.

        Args:
            metrics: Finite numbers by name.
            update: The number of updates made so far.
        """

    def close(self, failed: bool = False) -> None:
        """Send the remaining metrics, and close the tracker.

        Args:
            failed: True if training raised an error.
        """

    def __call__(self, progress: Progress) -> None:
        """Send the metrics of the updates since the last call."""
        if not multihost.is_primary():
            return
        state = progress.state
        metrics = {
            "total_steps": float(state.steps.total),
            "sequential_steps": float(state.steps.sequential),
            "seconds": state.seconds,
        }
        for name, column in progress.rows.items():
            if name in ("update", *metrics) or diagnostics.is_diagnostic(name):
                continue
            finite = column[np.isfinite(column)]
            if finite.size:
                summary = np.mean if name in ("loss", "grad_norm") else np.sum
                metrics[name] = float(summary(finite))
        metrics |= diagnostics.summarised(progress.rows)
        metrics |= {f"eval/{name}": value for name, value in (progress.evals or {}).items()}
        self.log({n: value for n, value in metrics.items() if math.isfinite(value)}, state.update)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self.close(failed=kind is not None)


class TensorBoard(Tracker):
    """Tracker that writes TensorBoard event files; needs `pip install 'nres[tensorboard]'`.

    Args:
        folder: The folder for the files.

    Example:
        ```python
        with nres.callbacks.TensorBoard("logs") as board:
            nres.train(..., callback=board)
        ```
    """

    def __init__(self, folder: str | Path):
        try:
            from tensorboardX import SummaryWriter
        except ImportError as error:
            raise _missing("TensorBoard files", "tensorboardX", "tensorboard") from error
        self._writer: Any = None
        if multihost.is_primary():
            self._writer = SummaryWriter(str(folder))

    def log(self, metrics: Mapping[str, float | int], update: int) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, update)

    def close(self, failed: bool = False) -> None:
        if self._writer is not None:
            self._writer.close()


class WandB(Tracker):
    """Tracker that sends metrics to Weights & Biases; needs `pip install 'nres[wandb]'`.

    Args:
        project: The name of the project.
        config: The settings of the run, to show and compare.
        init: Other arguments of `wandb.init`, for example `{"mode": "offline"}`.

    Example:
        ```python
        with nres.callbacks.WandB("lorenz", config={"sigma": 0.04}) as tracker:
            nres.train(..., callback=tracker)
        ```
    """

    def __init__(
        self,
        project: str | None = None,
        *,
        config: dict[str, Any] | None = None,
        init: dict[str, Any] | None = None,
    ):
        try:
            import wandb
        except ImportError as error:
            raise _missing("Weights & Biases", "wandb", "wandb") from error
        self.run: Any = None
        if multihost.is_primary():
            self.run = wandb.init(project=project, config=config, **(init or {}))

    def log(self, metrics: Mapping[str, float | int], update: int) -> None:
        self.run.log(metrics, step=update, commit=True)

    def close(self, failed: bool = False) -> None:
        if self.run is not None:
            self.run.finish(exit_code=int(failed))


class MLflow(Tracker):
    """Tracker that sends metrics to MLflow; needs `pip install 'nres[mlflow]'`.

    Args:
        experiment: The name of the experiment; MLflow's default if it is not given.
        tracking_uri: The address of the tracking server, or a database such as
            `sqlite:///mlflow.db`; MLflow's default if it is not given.
        run_name: The name of the run.
        params: Parameters to store with the run, for example hyperparameters.

    Example:
        ```python
        with nres.callbacks.MLflow("lorenz", params={"sigma": 0.04}) as tracker:
            nres.train(..., callback=tracker)
        ```
    """

    def __init__(
        self,
        experiment: str | None = None,
        *,
        tracking_uri: str | None = None,
        run_name: str | None = None,
        params: dict[str, Any] | None = None,
    ):
        try:
            from mlflow.tracking import MlflowClient
        except ImportError as error:
            raise _missing("MLflow", "mlflow", "mlflow") from error
        # A client of its own, because `mlflow.start_run` would change the user's active run.
        self._client: Any = None
        if not multihost.is_primary():
            return
        self._client = MlflowClient(tracking_uri)
        name = experiment or "Default"
        found = self._client.get_experiment_by_name(name)
        number = self._client.create_experiment(name) if found is None else found.experiment_id
        self.run_id = self._client.create_run(number, run_name=run_name).info.run_id
        for key, value in (params or {}).items():
            self._client.log_param(self.run_id, key, value)

    def log(self, metrics: Mapping[str, float | int], update: int) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        rows = [Metric(name, value, now, update) for name, value in metrics.items()]
        self._client.log_batch(self.run_id, metrics=rows)

    def close(self, failed: bool = False) -> None:
        if self._client is not None:
            self._client.set_terminated(self.run_id, "FAILED" if failed else "FINISHED")


def _missing(what: str, package: str, extra: str) -> ImportError:
    return ImportError(f"{package} is missing, for {what}: pip install 'nres[{extra}]'.")
