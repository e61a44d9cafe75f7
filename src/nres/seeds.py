"""The history of several seeds in one call of `train`, with the mean and the spread over them."""

import dataclasses
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import equinox as eqx
import jax
import numpy as np

from nres.estimators.base import Estimator
from nres.history import COLUMNS, History, html_table
from nres.log import Log
from nres.system import Theta
from nres.workers import Steps


@dataclasses.dataclass(frozen=True, repr=False)
class SeedsHistory:
    """The record of several seeds, and the mean and the spread over them.

    Columns are NumPy arrays with the axes `(seeds, updates)`, and evaluations have the axes
    `(seeds, evaluations)`. If a seed stopped before the others, the rest of its row is NaN.
    `history[i]` is the `History` of seed i, and `len(history)` is the number of seeds.

    Example:
        ```python
        history = nres.train(..., seeds=8).history
        history.mean.loss, history.std.loss, history[3].loss
        history.plot("total_steps")
        ```
    """

    runs: tuple[History, ...]
    """The history of each seed."""
    update: np.ndarray
    """The number of the update: one axis, because all seeds share it."""
    total_steps: np.ndarray
    """Cumulative number of unroll steps of each seed."""
    sequential_steps: np.ndarray
    """Cumulative number of sequential unroll steps of each seed."""
    seconds: np.ndarray
    """Cumulative wall-clock seconds of updates. Seeds that run together share these seconds."""
    loss: np.ndarray
    """The training loss of each seed."""
    grad_norm: np.ndarray
    """The Euclidean norm of the gradient estimate of each seed."""
    nonfinite: np.ndarray
    """The number of workers of each seed that were left out."""
    placement: dict[str, np.ndarray]
    """The counts that the estimator's placement reports, by name."""
    diagnostics: dict[str, np.ndarray]
    """The numbers behind `snr` and the other diagnostics of each seed's `History`, by name."""
    eval_update: np.ndarray
    """The number of updates made before each evaluation: one axis, because all seeds share it."""
    eval_seconds: np.ndarray
    """The value of `seconds` at each evaluation."""
    evals: dict[str, np.ndarray]
    """The results of `eval_fn`, by name."""

    @classmethod
    def of(cls, runs: Sequence[History]) -> "SeedsHistory":
        """Make the history of several seeds from the history of each.

        Args:
            runs: At least one history. All begin at the first update.

        Returns:
            The history of all, along the updates and evaluations of the longest one.
        """
        longest = max(runs, key=lambda run: len(run.update))

        def along(clock: str, columns: list[np.ndarray]) -> np.ndarray:
            return _aligned(getattr(longest, clock), [getattr(run, clock) for run in runs], columns)

        def evaluations(name: str) -> np.ndarray:
            none = [np.full(len(run.eval_update), np.nan) for run in runs]
            each = zip(runs, none, strict=True)
            return along("eval_update", [run.evals.get(name, nothing) for run, nothing in each])

        return cls(
            runs=tuple(runs),
            update=longest.update,
            **{name: along("update", [getattr(run, name) for run in runs]) for name in COLUMNS[1:]},
            placement={
                name: along("update", [run.placement[name] for run in runs])
                for name in longest.placement
            },
            diagnostics={
                name: along("update", [run.diagnostics[name] for run in runs])
                for name in longest.diagnostics
            },
            eval_update=longest.eval_update,
            eval_seconds=along("eval_update", [run.eval_seconds for run in runs]),
            evals={
                name: evaluations(name)
                for name in dict.fromkeys(name for run in runs for name in run.evals)
            },
        )

    def __len__(self) -> int:
        return len(self.runs)

    def __getitem__(self, seed: int) -> History:
        return self.runs[seed]

    def __iter__(self) -> Iterator[History]:
        return iter(self.runs)

    @property
    def mean(self) -> History:
        """The mean of every column over the seeds that have a number there."""
        return self._over_seeds(np.nanmean)

    @property
    def std(self) -> History:
        """The sample standard deviation of every column; NaN for fewer than two seeds.

        Its `update` and `eval_update`, and the numbers that are no columns, are those of `mean`.
        """
        return self._over_seeds(lambda column, axis: np.nanstd(column, axis=axis, ddof=1))

    def _over_seeds(self, statistic: Callable[..., Any]) -> History:
        def reduced(column: np.ndarray) -> np.ndarray:
            with warnings.catch_warnings(), np.errstate(invalid="ignore"):
                warnings.simplefilter("ignore", RuntimeWarning)  # about columns without a number
                return statistic(column, axis=0)

        steps = np.mean([run.unlock_steps for run in self.runs], axis=0)
        return History(
            update=self.update,
            **{name: reduced(getattr(self, name)) for name in COLUMNS[1:]},
            placement={name: reduced(column) for name, column in self.placement.items()},
            diagnostics={name: reduced(column) for name, column in self.diagnostics.items()},
            eval_update=self.eval_update,
            eval_seconds=reduced(self.eval_seconds),
            evals={name: reduced(column) for name, column in self.evals.items()},
            unlock_steps=Steps(*map(round, steps.tolist())),
            began=0.0,
            setup_time=float(np.mean([run.setup_time for run in self.runs])),
            eval_time=float(np.mean([run.eval_time for run in self.runs])),
        )

    def plot(self, axis: str = "update", *, ax: Any = None) -> Any:
        """Draw the mean of the training loss and of the evaluations, and the range of the seeds.

        The line is the mean over the seeds, and the band reaches from the smallest to the largest
        value of a seed.

        Args:
            axis: The horizontal axis: `"update"`, `"total_steps"`, `"sequential_steps"` or
                `"seconds"`.
            ax: The matplotlib axes to draw on; new ones by default.

        Returns:
            The matplotlib axes.
        """
        ax = self.mean.plot(axis, ax=ax)
        columns = [self.loss, *self.evals.values()]
        for line, column in zip(ax.get_lines()[-len(columns) :], columns, strict=True):
            low, high = np.fmin.reduce(column), np.fmax.reduce(column)  # they ignore NaN
            ax.fill_between(line.get_xdata(), low, high, color=line.get_color(), alpha=0.2, lw=0)
        return ax

    def to_dataframe(self) -> Any:
        """Return the record as a pandas DataFrame, one row per seed and update.

        It has the columns of `History.to_dataframe`, and a column `seed` in front of them.

        Raises:
            ImportError: If pandas is not installed.
        """
        tables = {seed: run.to_dataframe() for seed, run in enumerate(self.runs)}
        import pandas  # `History.to_dataframe` has explained what to do if it is missing

        return pandas.concat(tables, names=["seed"]).reset_index("seed")

    def summary(self) -> str:
        """Summarise the seeds in one line: means and deviations of losses, and steps."""
        parts = [f"{name} {first} → {last}" for name, first, last in self._changes()]
        last = [run.total_steps[-1] for run in self.runs if len(run.total_steps)]
        return ", ".join([*parts, f"{sum(last):.2e} unroll steps"])

    def __repr__(self) -> str:
        return f"SeedsHistory({self.described()}, {self.summary()})"

    def _repr_html_(self) -> str:
        spread = "; mean ± standard deviation" * (len(self) > 1)
        return html_table(f"{self.described()}{spread}", self._changes())

    def described(self) -> str:
        """Return the number of seeds and updates as text."""
        return f"{len(self)} seed{'s' * (len(self) != 1)}, {len(self.update):,} updates"

    def _changes(self) -> list[tuple[str, str, str]]:
        """Return the first and the last mean and deviation of the loss and the evaluations."""
        mean = self.mean
        found = [("training loss", mean.loss, self.loss)]
        found += [(name, mean.evals[name], column) for name, column in self.evals.items()]
        changes = []
        for name, means, column in found:
            known = np.flatnonzero(np.isfinite(means))
            if known.size:
                first, last = (mean_and_spread(column[:, i], digits=4) for i in known[[0, -1]])
                changes.append((name, first, last))
        return changes


def mean_and_spread(values: np.ndarray, *, digits: int) -> str:
    """Return the mean and the sample standard deviation of the numbers that are not NaN, as text.

    One number has no deviation.

    Args:
        values: The values, of which at least one is a number.
        digits: The number of digits of the mean.
    """
    values = values[~np.isnan(values)]
    spread = f" ± {values.std(ddof=1):.2g}" if len(values) > 1 else ""
    return f"{values.mean():.{digits}g}{spread}"


def _aligned(
    updates: np.ndarray, each: Sequence[np.ndarray], columns: Sequence[np.ndarray]
) -> np.ndarray:
    """Stack columns along common updates, with NaN where a column has no entry.

    Args:
        updates: The common updates.
        each: The updates of each column.
        columns: The columns.
    """
    if all(np.array_equal(own, updates) for own in each):
        return np.stack(columns)  # whole numbers stay whole
    result = np.full((len(columns), len(updates)), np.nan)
    for row, own, column in zip(result, each, columns, strict=True):
        _, there, here = np.intersect1d(updates, own, assume_unique=True, return_indices=True)
        row[there] = column[here]
    return result


class SeedsLog:
    """Collector of the reports of several seeds that run together; it is used like a `Log`.

    A seed that has diverged no longer takes part.

    Args:
        estimator: The estimator.
        unlock_steps: The steps that brought the workers of each seed to their starting points.
    """

    def __init__(self, estimator: Estimator, unlock_steps: Sequence[Steps]):
        self.logs = [
            Log(estimator, steps, 0, steps, 0.0, seed=seed)
            for seed, steps in enumerate(unlock_steps)
        ]
        self.setup_time = 0.0

    @property
    def diverged_seeds(self) -> np.ndarray:
        """The seeds that have diverged."""
        return np.array([log.diverged for log in self.logs])

    @property
    def diverged(self) -> bool:
        """True if all seeds have diverged."""
        return bool(self.diverged_seeds.all())

    def position(self) -> tuple[int, Steps, float]:
        """Return the updates and seconds of the longest seed, and the steps of all together."""
        updates, steps, seconds = zip(*(log.position() for log in self.logs), strict=True)
        return max(updates), Steps.added(steps), max(seconds)

    def add(self, rows: dict[str, np.ndarray], elapsed: float) -> dict[str, np.ndarray]:
        """Add the report of some updates, and return their columns, averaged over the seeds."""
        parts = [
            log.add({name: column[:, seed] for name, column in rows.items()}, elapsed)
            for seed, log in enumerate(self.logs)
            if not log.diverged
        ]
        return {name: np.mean([part[name] for part in parts], axis=0) for name in parts[0]}

    def nothing(self) -> dict[str, np.ndarray]:
        """Return the columns of zero updates."""
        return self.logs[0].nothing()

    def evaluate(self, eval_fn: Any, theta: Theta) -> dict[str, float]:
        """Evaluate every seed, and return the means.

        A seed that has diverged is evaluated once more.
        """
        found = [
            log.evaluate(eval_fn, _of_seed(theta, np.int32(seed)))
            for seed, log in enumerate(self.logs)
            if not log.eval_rows or log.eval_rows[-1][0] < log.update
        ]
        names = dict.fromkeys(name for evals in found for name in evals)
        values = ([evals[name] for evals in found if name in evals] for name in names)
        return dict(zip(names, map(float, map(np.mean, values)), strict=True))

    def history(self) -> SeedsHistory:
        """Return the history of all seeds."""
        found = (
            dataclasses.replace(log.history(), setup_time=self.setup_time) for log in self.logs
        )
        return SeedsHistory.of(list(found))


@eqx.filter_jit
def _of_seed(tree: Any, seed: Any) -> Any:
    """Return the part of one seed; the seed is an argument of the compiled code."""
    take = lambda x: jax.lax.dynamic_index_in_dim(x, seed, keepdims=False)  # noqa: E731
    return jax.tree.map(take, tree)
