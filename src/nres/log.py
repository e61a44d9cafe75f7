"""`Log`: the collector of updates that makes a `History`."""

import math
import time
import warnings

import numpy as np

from nres import diagnostics
from nres.errors import users_level
from nres.estimators.base import Estimator
from nres.estimators.nonfinite import NonFiniteError, nonfinite_message
from nres.estimators.values import PARTS
from nres.history import COLUMNS, History, NonFiniteWarning
from nres.monitor import Monitor, NoSignalWarning
from nres.system import Theta
from nres.workers import Steps

# Training stops only after at least this many consecutive updates without a finite contribution.
LEAST_PATIENCE = 20


class Log:
    """Collector that turns reports of updates into a `History`.

    Args:
        estimator: The estimator.
        unlock_steps: The steps that brought the workers to their starting points.
        update: The number of updates made before.
        steps: The number of steps before the next update.
        seconds: The seconds of updates made before.
        seed: The number of the seed for messages, if there are several.
    """

    def __init__(
        self,
        estimator: Estimator,
        unlock_steps: Steps,
        update: int,
        steps: Steps,
        seconds: float,
        seed: int | None = None,
    ):
        self.prefix = "" if seed is None else f"seed {seed}: "
        self.bound = estimator.most_steps
        self.policy = estimator.nonfinite
        self.unlock_steps = unlock_steps
        self.update, self.steps, self.seconds = update, steps, seconds
        self.began = seconds
        self.workers = estimator.workers
        self.reports = estimator.placement.reports
        self.diagnostics = diagnostics.columns(min(PARTS, estimator.windows))
        # After two episodes every worker has begun a new one, so no old state can be the cause.
        self.patience = max(LEAST_PATIENCE, 2 * estimator.windows)
        self.hopeless = 0
        self.diverged = False
        self.setup_time = self.eval_time = 0.0
        self.parts: list[dict[str, np.ndarray]] = []
        self.eval_rows: list[tuple[int, float, dict[str, float]]] = []
        self.warned = False
        # A resumed run may have converged already, which looks the same as a run without signal.
        self.monitor = Monitor(estimator.windows) if update == 0 else None

    def position(self) -> tuple[int, Steps, float]:
        return self.update, self.steps, self.seconds

    def add(self, rows: dict[str, np.ndarray], elapsed: float) -> dict[str, np.ndarray]:
        """Add the report of some updates from `nres.updates`, and return their columns."""
        nonfinite, norm = rows["nonfinite"], rows["grad_norm"]
        self._report_nonfinite(nonfinite, rows["first_nonfinite"], rows["first_nonfinite_start"])
        self._count_hopeless(nonfinite, rows["loss"])
        number = np.arange(1, len(norm) + 1)
        unused = (rows["unused_total"], rows["unused_sequential"])
        total, sequential = (
            before + np.cumsum(bound - part.astype(np.int64))
            for before, bound, part in zip(self.steps, self.bound, unused, strict=True)
        )
        part = {
            "update": self.update + number,
            "total_steps": total,
            "sequential_steps": sequential,
            "seconds": self.seconds + elapsed * number / len(number),
            "loss": rows["loss"],
            "grad_norm": norm,
            "nonfinite": nonfinite,
        } | {name: rows[name] for name in (*self.reports, *self.diagnostics)}
        self.parts.append(part)
        self._watch(part)
        self.update += len(number)
        self.steps = Steps(int(total[-1]), int(sequential[-1]))
        self.seconds += elapsed
        return part

    def nothing(self) -> dict[str, np.ndarray]:
        """Return the columns of zero updates."""
        names = (*COLUMNS, *self.reports, *self.diagnostics)
        return {name: np.zeros(0, np.int64) for name in names}

    def _report_nonfinite(self, nonfinite, worker, start) -> None:
        if not nonfinite.any() or self.warned:
            return
        row = int(np.argmax(nonfinite > 0))
        update = self.update + row + 1
        where = (int(nonfinite[row]), int(worker[row]), int(start[row]), update)
        message = self.prefix + nonfinite_message(*where)
        if self.policy == "raise":
            raise NonFiniteError(message)
        warnings.warn(
            message + " They are left out; `history.nonfinite` counts them.",
            NonFiniteWarning,
            stacklevel=users_level(),
        )
        self.warned = True

    def _watch(self, part: dict[str, np.ndarray]) -> None:
        """Warn once if the updates so far are nothing but noise."""
        if self.monitor is None:
            return
        self.monitor.add(part)
        problem = self.monitor.problem
        if problem is not None:
            self.monitor = None
            message = f"{self.prefix}after update {part['update'][-1]}: {problem}"
            warnings.warn(message, NoSignalWarning, stacklevel=users_level())

    def _count_hopeless(self, nonfinite: np.ndarray, loss: np.ndarray) -> None:
        """Count the latest consecutive updates without a finite contribution."""
        lost = (nonfinite > 0) & np.isnan(loss)  # the loss is a mean over the finite workers
        # The lengths of all stretches; the first may have begun in an earlier call.
        ends = np.flatnonzero(np.append(~lost, True))
        lengths = np.diff(ends, prepend=-1) - 1
        lengths[0] += self.hopeless
        self.hopeless = int(lengths[-1])
        if lengths.max() >= self.patience and not self.diverged:
            self.diverged = True
            warnings.warn(
                f"{self.prefix}training stopped at update {self.update + len(lost)}: no worker "
                f"gave a finite loss or gradient in {lengths.max()} consecutive updates. Smaller "
                "steps (learning rate, sigma) or a bounded loss may help.",
                NonFiniteWarning,
                stacklevel=users_level(),
            )

    def evaluate(self, eval_fn, theta: Theta) -> dict[str, float]:
        began = time.perf_counter()
        result = eval_fn(theta)
        values = result if isinstance(result, dict) else {"eval": result}
        evals = {name: float(value) for name, value in values.items()}  # in the order given
        self.eval_time += time.perf_counter() - began
        self.eval_rows.append((self.update, self.seconds, evals))
        return evals

    def history(self) -> History:
        parts = self.parts or [self.nothing()]
        columns = {
            name: np.concatenate([part[name] for part in parts])
            for name in (*COLUMNS, *self.reports, *self.diagnostics)
        }
        names = dict.fromkeys(name for row in self.eval_rows for name in row[2])
        return History(
            **{name: columns[name] for name in COLUMNS},
            placement={name: columns[name] for name in self.reports},
            diagnostics={name: columns[name] for name in self.diagnostics},
            eval_update=np.array([row[0] for row in self.eval_rows], np.int64),
            eval_seconds=np.array([row[1] for row in self.eval_rows]),
            evals={
                name: np.array([row[2].get(name, math.nan) for row in self.eval_rows])
                for name in names
            },
            unlock_steps=self.unlock_steps,
            began=self.began,
            setup_time=self.setup_time,
            eval_time=self.eval_time,
        )
