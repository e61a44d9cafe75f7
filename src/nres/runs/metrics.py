"""`metrics.jsonl`: what a run reports, one JSON object a line."""

import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np

from nres.files import write_lines
from nres.history import COLUMNS
from nres.train import Progress

_AVERAGED = ("loss", "grad_norm")
_COUNTED = ("nonfinite", "restarted", "late")


class MetricsError(RuntimeError):
    """A file of metrics that cannot be read."""


class MetricsWriter:
    """Appends entries: one every `log_every` updates, and one for each evaluation.

    An entry tells of the updates since the one before: `loss` and `grad_norm` are means over
    them, `nonfinite` is a sum, and so are `restarted` and `late`, which are only mentioned where
    they are not zero. Every call ends with a flush, so a crash loses at most a line.

    **Arguments:**

    - `path`: the file; it is appended to.
    - `log_every`: updates an entry.
    - `pending`: what `pending` was when the run stopped, to go on from there.
    - `tensorboard`: a folder for event files, too.
    """

    def __init__(
        self,
        path: Path,
        log_every: int,
        pending: dict[str, list[float]] | None = None,
        tensorboard: Path | None = None,
    ):
        self.log_every = log_every
        self.pending = {name: (pending or {}).get(name, []) for name in (*_AVERAGED, *_COUNTED)}
        self._file = path.open("a", encoding="utf-8")
        self._board = None if tensorboard is None else _tensorboard(tensorboard)

    def add(self, progress: Progress) -> None:
        """Take in the updates since the last call, and what was evaluated after them."""
        rows = {name: column.tolist() for name, column in progress.rows.items()}
        numbers = rows["update"]
        if not numbers and progress.evals is not None:
            self._write(self._start(progress) | _named(progress.evals))
        complete = progress.evals is not None or progress.state.update == progress.updates
        for i, update in enumerate(numbers):
            for name, values in self.pending.items():
                values.append(rows[name][i])
            closes = complete and i == len(numbers) - 1
            if update % self.log_every == 0 or closes:
                entry = {name: rows[name][i] for name in COLUMNS[:4]} | self._summary()
                if closes and progress.evals is not None:
                    entry |= _named(progress.evals)
                self._write(entry)
        self._file.flush()

    def sync(self) -> None:
        """Until all is on the disk."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()
        if self._board is not None:
            self._board.close()

    def _start(self, progress: Progress) -> dict[str, Any]:
        """The entry of an evaluation before the first update."""
        total, sequential = progress.state.steps
        entry: dict[str, Any] = dict.fromkeys(COLUMNS[:-2])
        entry |= {"update": progress.state.update, "total_steps": total}
        return entry | {"sequential_steps": sequential, "seconds": progress.state.seconds}

    def _summary(self) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for name in _AVERAGED:
            # An exact sum, so that it does not matter where a run was continued.
            finite = [value for value in self.pending[name] if math.isfinite(value)]
            result[name] = math.fsum(finite) / len(finite) if finite else None
        counts = {name: sum(self.pending[name]) for name in _COUNTED}
        result |= {name: n for name, n in counts.items() if n or name == "nonfinite"}
        for values in self.pending.values():
            values.clear()
        return result

    def _write(self, entry: dict[str, Any]) -> None:
        self._file.write(json.dumps(entry) + "\n")
        if self._board is not None:
            for name, value in entry.items():
                if value is not None and name != "update":
                    self._board.add_scalar(name, value, entry["update"])


def _named(evals: dict[str, float]) -> dict[str, float | None]:
    return {f"eval/{n}": v if math.isfinite(v) else None for n, v in evals.items()}


def _tensorboard(folder: Path) -> Any:
    try:
        from tensorboardX import SummaryWriter
    except ImportError as error:
        raise ImportError(
            "TensorBoard files need tensorboardX: pip install 'nres[tensorboard]'."
        ) from error
    return SummaryWriter(str(folder))


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The entries of a file, without a last line that was not written to its end."""
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    entries = []
    for number, line in enumerate(lines, start=1):
        try:
            entries.append(json.loads(line))
        except json.JSONDecodeError as error:
            if number == len(lines) and not text.endswith("\n"):
                break
            raise MetricsError(f"{path}, line {number}, is not JSON: {error}.") from error
    return entries


def read_metrics(path: Path) -> dict[str, np.ndarray]:
    """The entries as arrays, by column; NaN where an entry has nothing to say."""
    entries = read_lines(path)
    names = dict.fromkeys([*COLUMNS[:-2], *(name for entry in entries for name in entry)])
    columns = {}
    for name in names:
        values = [entry.get(name) for entry in entries]
        if name in COLUMNS[:3]:
            columns[name] = np.array(values, np.int64)
        else:
            columns[name] = np.array([math.nan if v is None else v for v in values], np.float64)
    return columns


def cut_metrics(path: Path, update: int) -> None:
    """Forget what lies after an update: it will be made again."""
    write_lines(path, [entry for entry in read_lines(path) if entry["update"] <= update])
