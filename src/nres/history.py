"""`History`: the record of a run, update by update."""

import dataclasses
import html
import math
import time
import warnings
from typing import Any

import numpy as np

from nres.errors import users_level
from nres.estimators.base import Estimator
from nres.estimators.nonfinite import NonFiniteError, nonfinite_message
from nres.system import Theta
from nres.workers import Steps

COLUMNS = (
    "update",
    "total_steps",
    "sequential_steps",
    "seconds",
    "loss",
    "grad_norm",
    "nonfinite",
)

# The columns that a history can be plotted against, and their labels.
AXES = {
    "update": "updates",
    "sequential_steps": "sequential unroll steps",
    "total_steps": "total unroll steps",
    "seconds": "seconds of training",
}

# Training stops only after at least this many consecutive updates without a finite contribution.
LEAST_PATIENCE = 20


def needs_log(values: Any) -> bool:
    """Tell whether numbers, in a sequence or an array, need a logarithmic axis.

    They do if all finite ones are positive and the largest is at least ten times the smallest.
    """
    array = np.asarray(values, float)
    finite = array[np.isfinite(array)]
    return bool(finite.size and finite.min() > 0 and finite.max() >= 10 * finite.min())


class NonFiniteWarning(RuntimeWarning):
    """Warning that an update left out workers whose loss or gradient was not finite."""


@dataclasses.dataclass(frozen=True, repr=False)
class History:
    """The record of a run, update by update.

    Row i of a column belongs to update `update[i]`; the first update has the number 1. Columns
    are NumPy arrays.
    """

    update: np.ndarray
    """The number of the update."""
    total_steps: np.ndarray
    """Cumulative number of unroll steps, including the steps that moved the workers apart."""
    sequential_steps: np.ndarray
    """Cumulative number of sequential unroll steps, including those of unlocking."""
    seconds: np.ndarray
    """Cumulative wall-clock seconds of updates, without compilation, unlocking and evaluation."""
    loss: np.ndarray
    """The training loss: the mean loss per step of the perturbed unrolls. Because of the noise, it
    may be much larger than the loss at `theta` itself, which `nres.evaluate` computes."""
    grad_norm: np.ndarray
    """The Euclidean norm of the gradient estimate."""
    nonfinite: np.ndarray
    """The number of workers left out because their contribution was not finite."""
    placement: dict[str, np.ndarray]
    """The counts that the estimator's placement reports, by the names in `Placement.reports`."""
    eval_update: np.ndarray
    """The number of updates made before each call of `eval_fn`; 0 is before the first update."""
    eval_seconds: np.ndarray
    """The value of `seconds` at each call of `eval_fn`."""
    evals: dict[str, np.ndarray]
    """The results of `eval_fn`, by name; a bare number is named `"eval"`."""
    unlock_steps: Steps
    """The number of unroll steps that brought the workers to their starting points; zero in a
    resumed run."""
    began: float
    """The value of `seconds` before the first of these updates: zero unless the run was resumed."""
    setup_time: float
    """Seconds spent on compilation and on unlocking the workers."""
    eval_time: float
    """Seconds spent in `eval_fn`."""

    def summary(self) -> str:
        """Summarise the run in one line: first and last losses, steps, and seconds."""
        parts = [f"{name} {first:.4g} → {last:.4g}" for name, first, last in self._changes()]
        steps = f"{self.total_steps[-1]:.2e} unroll steps" if len(self.total_steps) else ""
        seconds = f"{self._seconds():.1f} s"
        return ", ".join(filter(None, [*parts, steps, seconds]))

    def plot(self, axis: str = "update", *, ax: Any = None) -> Any:
        """Draw the training loss and the evaluations with matplotlib.

        Args:
            axis: The horizontal axis: `"update"`, `"total_steps"`, `"sequential_steps"` or
                `"seconds"`.
            ax: The matplotlib axes to draw on; new ones by default.

        Returns:
            The matplotlib axes.

        Example:
            ```python
            ax = result.history.plot("total_steps")
            ax.figure.savefig("history.png")
            ```
        """
        if axis not in AXES:
            raise ValueError(f"axis must be one of {', '.join(AXES)}; got {axis!r}.")
        if ax is None:
            import matplotlib.pyplot as plt  # here, because it is slow to import

            _, ax = plt.subplots(layout="constrained")
        clock = getattr(self, axis)
        ax.plot(clock, self.loss, lw=1, alpha=0.7, label="training loss")
        # Evaluations happen between updates; the first may come before any.
        before = np.concatenate([[self._clock_before(axis)], clock])
        at = before[np.searchsorted(self.update, self.eval_update, side="right")]
        for name, values in self.evals.items():
            ax.plot(at, values, ".-", label=name)
        if needs_log(np.concatenate([self.loss, *self.evals.values()])):
            ax.set_yscale("log")
        ax.set_xlabel(AXES[axis])
        ax.legend()
        return ax

    def to_dataframe(self) -> Any:
        """Return the record as a pandas DataFrame, one row per update.

        The index is the number of the update. Evaluations are columns named `eval/NAME`, with NaN
        for updates without an evaluation. Row 0 is the evaluation before the first update; if there
        is one, counts are floating-point numbers, because row 0 has none.

        Raises:
            ImportError: If pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            raise ImportError("to_dataframe needs pandas: pip install 'nres[pandas]'.") from error
        columns = {name: getattr(self, name) for name in COLUMNS} | self.placement
        updates = pandas.DataFrame(columns).set_index("update")
        evaluations = {f"eval/{name}": values for name, values in self.evals.items()}
        return updates.join(
            pandas.DataFrame(evaluations, index=pandas.Index(self.eval_update, name="update")),
            how="outer",
        )

    def _clock_before(self, axis: str) -> float:
        """Return the value of a horizontal axis before the first update of this history."""
        if axis == "update":
            return float(self.update[0] - 1) if len(self.update) else 0.0
        if axis == "seconds":
            return self.began
        return float(getattr(self.unlock_steps, axis.removesuffix("_steps")))

    def __repr__(self) -> str:
        return f"History({len(self.update):,} updates, {self.summary()})"

    def _repr_html_(self) -> str:
        cells = [(name, f"{first:.4g}", f"{last:.4g}") for name, first, last in self._changes()]
        return html_table(
            f"{len(self.update):,} updates in {self._seconds():.1f} s "
            f"({self.eval_time:.1f} s evaluating, {self.setup_time:.1f} s compiling and unlocking)",
            cells,
        )

    def _seconds(self) -> float:
        """Return the seconds spent on the updates of this history."""
        if not len(self.seconds):
            return 0.0
        return float(self.seconds[-1] - self.began)

    def _changes(self) -> list[tuple[str, float, float]]:
        """Return name, first and last finite value of the training loss and the evaluations."""
        found = [("training loss", self.loss), *self.evals.items()]
        finite = [(name, values[np.isfinite(values)]) for name, values in found]
        return [(name, float(v[0]), float(v[-1])) for name, v in finite if v.size]


def html_table(caption: str, changes: list[tuple[str, str, str]]) -> str:
    """Return a table in HTML of names with their first and last values."""
    rows = "".join(
        f"<tr><td>{html.escape(name)}</td><td>{first}</td><td>{last}</td></tr>"
        for name, first, last in changes
    )
    return f"<p>{caption}</p><table><tr><th></th><th>first</th><th>last</th></tr>{rows}</table>"


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
        # After two episodes every worker has begun a new one, so no old state can be the cause.
        self.patience = max(LEAST_PATIENCE, 2 * estimator.windows)
        self.hopeless = 0
        self.diverged = False
        self.setup_time = self.eval_time = 0.0
        self.parts: list[dict[str, np.ndarray]] = []
        self.eval_rows: list[tuple[int, float, dict[str, float]]] = []
        self.warned = False

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
        } | {name: rows[name] for name in self.reports}
        self.parts.append(part)
        self.update += len(number)
        self.steps = Steps(int(total[-1]), int(sequential[-1]))
        self.seconds += elapsed
        return part

    def nothing(self) -> dict[str, np.ndarray]:
        """Return the columns of zero updates."""
        return {name: np.zeros(0, np.int64) for name in (*COLUMNS, *self.reports)}

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
            for name in (*COLUMNS, *self.reports)
        }
        names = dict.fromkeys(name for row in self.eval_rows for name in row[2])
        return History(
            **{name: columns[name] for name in COLUMNS},
            placement={name: columns[name] for name in self.reports},
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
