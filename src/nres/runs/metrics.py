"""`metrics.jsonl`: the metrics of a run, one JSON object per line."""

import json
import math
import os
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from nres.callbacks import TensorBoard
from nres.diagnostics import is_diagnostic, summarised
from nres.files import read_plain, replacing, write_lines
from nres.history import COLUMNS
from nres.progress import Progress
from nres.workers import Steps

_AVERAGED = ("loss", "grad_norm")
_COUNTS = COLUMNS[:3]


class MetricsError(RuntimeError):
    """A file of metrics cannot be read."""


class DamagedMetricsWarning(UserWarning):
    """Damaged lines of a file of metrics were skipped."""


class MetricsWriter:
    """Writer that appends an entry every `log_every` updates and at each evaluation.

    An entry summarizes the updates since the previous one: `loss` and `grad_norm` are means,
    diagnostics are ratios of sums and left out where they are unknown, and `nonfinite` is a sum.
    The counters of the placement are sums, too, and appear only where they are not zero. Every
    call flushes the file, so that a crash loses at most one line.

    Args:
        path: The file to append to.
        log_every: The number of updates per entry.
        pending: The value of `pending` when the run stopped, if it resumes.
        tensorboard: A folder for TensorBoard event files.
        remark: Values to add to the first entry that is written.
        earlier: The number of unroll steps before the run, which its entries include.
    """

    def __init__(
        self,
        path: Path,
        log_every: int,
        pending: dict[str, list[float]] | None = None,
        tensorboard: Path | None = None,
        remark: dict[str, Any] | None = None,
        earlier: Steps = Steps(0, 0),  # noqa: B008 - immutable
    ):
        self.path, self.log_every, self.earlier = path, log_every, earlier
        self.pending: dict[str, list[float]] = {name: [] for name in (*_AVERAGED, "nonfinite")}
        self.pending |= pending or {}
        self.remark = remark or {}
        before = read_plain(path) if path.exists() or path.is_symlink() else b""
        self._bytes, self._crc = len(before), zlib.crc32(before)
        self._file = path.open("ab")
        self._board = None if tensorboard is None else TensorBoard(tensorboard)

    def add(self, progress: Progress) -> None:
        """Add the updates since the last call, and the evaluation after them, if there is one."""
        rows = {name: column.tolist() for name, column in progress.rows.items()}
        for name, steps in zip(("total_steps", "sequential_steps"), self.earlier, strict=True):
            rows[name] = [count + steps for count in rows[name]]
        numbers = rows["update"]
        for name in [name for name in rows if name not in COLUMNS]:
            self.pending.setdefault(name, [])
        if not numbers and progress.evals is not None:
            self._write(self._start(progress) | _named(progress.evals))
        complete = progress.evals is not None or progress.state.update == progress.updates
        added = 0
        for i, update in enumerate(numbers):
            last = i == len(numbers) - 1
            closes = complete and last
            if update % self.log_every == 0 or last:
                for name, values in self.pending.items():
                    new = slice(added, i + 1)
                    values += rows[name][new] if name in rows else [0] * (i + 1 - added)
                added = i + 1
            if update % self.log_every == 0 or closes:
                entry = {name: rows[name][i] for name in COLUMNS[:4]} | self._summary()
                if closes and progress.evals is not None:
                    entry |= _named(progress.evals)
                self._write(entry)
        self._file.flush()
        self._check_place()

    def sync(self) -> None:
        """Wait until everything is on disk."""
        self._check_place()
        self._file.flush()
        os.fsync(self._file.fileno())

    def written(self) -> dict[str, int]:
        """Return the length and the checksum of the file, to recognize it later."""
        return {"bytes": self._bytes, "crc32": self._crc}

    def close(self) -> None:
        self._file.close()
        if self._board is not None:
            self._board.close()

    def _check_place(self) -> None:
        """Raise an error if the file was deleted or replaced: writing to it would not."""
        try:
            there = os.stat(self.path)
        except FileNotFoundError:
            there = None
        if there is None or there.st_ino != os.fstat(self._file.fileno()).st_ino:
            raise MetricsError(f"{self.path} was deleted or replaced while the run wrote to it.")

    def _start(self, progress: Progress) -> dict[str, Any]:
        """Return the entry of an evaluation before the first update."""
        total, sequential = Steps.added([progress.state.steps, self.earlier])
        entry: dict[str, Any] = dict.fromkeys(COLUMNS)
        entry |= {"update": progress.state.update, "total_steps": total}
        return entry | {"sequential_steps": sequential, "seconds": progress.state.seconds}

    def _summary(self) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for name in _AVERAGED:
            # The sum is exact, so that it does not depend on where a run was resumed.
            finite = [value for value in self.pending[name] if math.isfinite(value)]
            result[name] = math.fsum(finite) / len(finite) if finite else None
        names = [n for n in self.pending if not (n in _AVERAGED or is_diagnostic(n))]
        counts = {name: sum(self.pending[name]) for name in names}
        result |= {name: n for name, n in counts.items() if n or name == "nonfinite"}
        if "signal" in self.pending:  # a checkpoint of an earlier version has none
            result |= summarised(self.pending)
        for values in self.pending.values():
            values.clear()
        return result

    def _write(self, entry: dict[str, Any]) -> None:
        entry, self.remark = entry | self.remark, {}
        line = (json.dumps(entry) + "\n").encode()
        self._file.write(line)
        self._bytes, self._crc = self._bytes + len(line), zlib.crc32(line, self._crc)
        if self._board is not None:
            known = {n: v for n, v in entry.items() if v is not None and n != "update"}
            self._board.log(known, entry["update"])


def _named(evals: dict[str, float]) -> dict[str, float | None]:
    return {f"eval/{n}": v if math.isfinite(v) else None for n, v in evals.items()}


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read a file with one JSON value per line, and ignore an incomplete last line."""
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


def parse_entries(data: bytes) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the intact entries of `metrics.jsonl`, and a description of each damaged line.

    An incomplete last line counts as neither.
    """
    entries: list[dict[str, Any]] = []
    damage = []
    lines = data.split(b"\n")
    cut_off = lines.pop()  # empty, if the last line is complete
    for number, line in enumerate([*lines, cut_off] if _is_whole(cut_off) else lines, start=1):
        try:
            entry = json.loads(line.decode())
            problem = _problem(entry)
        except (ValueError, RecursionError) as error:
            problem = f"is not JSON ({str(error).partition(':')[0]})"
        if problem is None and entries and entry["update"] <= entries[-1]["update"]:
            problem = f"is for update {entry['update']}, after one for {entries[-1]['update']}"
        if problem is None:
            entries.append(entry)
        else:
            damage.append(f"line {number} {problem}")
    return entries, damage


def _is_whole(line: bytes) -> bool:
    """Return whether a last line without a line break is a complete entry."""
    try:
        return _problem(json.loads(line.decode())) is None
    except (ValueError, RecursionError):
        return False


def _problem(entry: Any) -> str | None:
    """Return the reason why a value is not an entry, or `None` if it is one."""
    if not isinstance(entry, dict):
        return "is not an entry"
    for name in _COUNTS:
        value = entry.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
            return f"has no whole number as {name}"
    for name, value in entry.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            return f"has no number as {name}"
        if isinstance(value, int) and abs(value) >= 2**63:
            return f"has too large a number as {name}"
    if entry.get("seconds") is None:
        return "has no number as seconds"
    return None


def read_entries(path: Path) -> list[dict[str, Any]]:
    """Read the intact entries of a run; skip damaged lines with a warning."""
    if not path.exists() and not path.is_symlink():
        return []
    try:
        entries, damage = parse_entries(read_plain(path))
    except OSError as error:
        raise MetricsError(f"{path} cannot be read: {error.strerror}.") from error
    if damage:
        warnings.warn(f"{path}: {_listed(damage)}; skipped.", DamagedMetricsWarning, stacklevel=2)
    return entries


def _listed(damage: list[str]) -> str:
    more = len(damage) - 3
    return "; ".join(damage[:3]) + (f"; and {more} more" if more > 0 else "")


def read_metrics(path: Path) -> dict[str, np.ndarray]:
    """Read the entries of a run as one array per column; NaN where an entry lacks the column."""
    entries = read_entries(path)
    names = dict.fromkeys([*COLUMNS[:-2], *(name for entry in entries for name in entry)])
    columns = {}
    for name in names:
        values = [entry.get(name) for entry in entries]
        if name in _COUNTS:
            columns[name] = np.array(values, np.int64)
        else:
            columns[name] = np.array([math.nan if v is None else v for v in values], np.float64)
    return columns


def rewind_metrics(path: Path, update: int, written: dict[str, int] | None) -> None:
    """Remove the entries after a checkpoint, because the run will compute them again.

    If the file differs from what it was at the checkpoint, the function warns, copies the damaged
    file to `metrics.damaged.jsonl`, and keeps the intact entries.

    Args:
        path: The file.
        update: The update of the checkpoint; -1 removes everything.
        written: The value of `MetricsWriter.written` at the checkpoint, if it was recorded.
    """
    try:
        data = read_plain(path) if path.exists() or path.is_symlink() else b""
    except OSError as error:
        raise MetricsError(f"{path} cannot be read: {error.strerror}. Delete it.") from error
    if update < 0:
        write_lines(path, [])
        return
    if written is not None and _matches(data[: written["bytes"]], written):
        with replacing(path) as partial:
            partial.write_bytes(data[: written["bytes"]])
        return
    entries, damage = parse_entries(data)
    if written is not None and not damage:
        damage = [f"it differs from what it was at the checkpoint of update {update}"]
    if damage:
        # The lines may only be in another order.
        whole = [parse_entries(line)[0] for line in data.splitlines()]
        found = {entry["update"]: entry for found in whole for entry in found}
        entries = [found[number] for number in sorted(found)]
    kept = "".join(json.dumps(e) + "\n" for e in entries if e["update"] <= update).encode()
    if damage and not (written is not None and _matches(kept, written)):
        copy = path.with_name("metrics.damaged.jsonl")
        with replacing(copy) as partial:
            partial.write_bytes(data)
        warnings.warn(
            f"{path} is damaged: {_listed(damage)}. The run resumes from update {update} with the "
            f"intact entries; {copy.name} is a copy of the damaged file.",
            DamagedMetricsWarning,
            stacklevel=2,
        )
    with replacing(path) as partial:
        partial.write_bytes(kept)


def _matches(data: bytes, written: dict[str, int]) -> bool:
    return len(data) == written["bytes"] and zlib.crc32(data) == written["crc32"]
