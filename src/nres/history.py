"""`History`: the record of a run, update by update."""

import dataclasses
import functools
import html
from typing import Any

import numpy as np

from nres import diagnostics
from nres.checks import whole_number
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
    diagnostics: dict[str, np.ndarray]
    """The numbers behind `snr`, `linear_share`, `even_spread`, `odd_spread` and `phase_rms`, by the
    names of the fields of `nres.estimators.Info`."""
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

    def snr(self, over: int = 100) -> np.ndarray:
        r"""Return the signal-to-noise ratio $S / (\lVert \hat g \rVert^2 - S)$ of the updates.

        S is an unbiased estimate of the squared norm of the gradient. Each number is a ratio of
        means over the last `over` updates, or over fewer at the beginning. It is NaN for methods
        without pairs, with a single worker, and where the noise is not positive by chance.

        Args:
            over: The number of updates to average over. A single update says little.
        """
        return self._moving(over).snr

    def linear_share(self, over: int = 100) -> np.ndarray:
        r"""Return the share of the response to the noise that is linear: $(d + 2)\, S / P$.

        P is the mean squared norm of a worker's contribution. The share is 1 if losses are linear
        in the noise with the same gradient in all windows. Curvature of odd order, roughness and
        differences between windows reduce it.

        Args:
            over: The number of updates to average over.
        """
        return self._moving(over).linear_share

    def even_spread(self, over: int = 100) -> np.ndarray:
        """Return the standard deviation over workers of the mean loss of their pairs.

        Args:
            over: The number of updates to average over.
        """
        return self._moving(over).spread("even")

    def odd_spread(self, over: int = 100) -> np.ndarray:
        """Return the root mean square over workers of half the difference of their pairs' losses.

        Args:
            over: The number of updates to average over.
        """
        return self._moving(over).spread("odd")

    def phase_rms(self, over: int = 100) -> np.ndarray:
        """Return the root mean square of the contributions by part of the episode.

        Args:
            over: The number of updates to average over.

        Returns:
            An array with the axes `(updates, parts)`, for at most eight equal parts.
        """
        sums, parts = self._moving(over), diagnostics.parts_of(self.diagnostics)
        return np.stack([sums.phase_rms(i + 1) for i in range(parts)], axis=1)

    def _moving(self, over: int) -> diagnostics.Sums:
        over = whole_number("over", over)
        rows = self.diagnostics | {"grad_norm": self.grad_norm}
        return diagnostics.Sums(rows, functools.partial(diagnostics.moving_sum, over=over))

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
        columns |= self.diagnostics
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
