"""Common tools of all attacks: a scratch folder, processes with limits, and runs to attack."""

import contextlib
import dataclasses
import functools
import json
import os
import random
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from nres.files import read_plain
from nres.runs import Run

HERE = Path(__file__).parent
BOUNCER = f"{HERE.parent.parent}/examples/bouncer.py:Bouncer"
# Short, with frequent checkpoints, so that a kill often hits one that is being written.
TRAINING = [BOUNCER, "--sigma", "0.1", "--lr", "0.01", "--window", "50", "--workers", "16"]
TRAINING += ["--updates", "20000", "--eval-every", "1000", "--log-every", "7"]
TRAINING += ["--checkpoint-seconds", "0.01"]
# Words that a user must never see, whatever happens.
NOISE = ("Traceback", "Exception ignored", "Event loop is closed", "Task was destroyed")
# The address space of a process in bytes: an attack must not exhaust the machine.
MEMORY = 12 * 2**30
SECONDS = 120.0


@dataclasses.dataclass(frozen=True)
class Failure:
    """A try that the library did not survive."""

    call: str
    outcome: str


@dataclasses.dataclass(frozen=True)
class Ended:
    """Outcome of a process or of a call."""

    code: int | None
    """The exit status; `None` if the time limit was reached."""
    output: str = ""
    errors: str = ""

    def complaint(self, codes: tuple[int, ...] = (0, 1, 2)) -> str | None:
        """Return a description of the problem with this outcome, or `None`."""
        if self.code is None:
            return "it did not end within the time limit"
        for word in NOISE:
            if word in self.output + self.errors:
                return f"{word!r} in the output: {shortened(self.errors or self.output)}"
        if self.code not in codes:
            return f"exit status {self.code}: {shortened(self.errors)}"
        if self.code and not self.errors.strip():
            return f"exit status {self.code} without a message"
        return None


@dataclasses.dataclass
class Context:
    """The scratch folder, the randomness and the environment of one attack."""

    folder: Path
    random: random.Random
    environment: dict[str, str]

    def start(self, arguments: list[str], cwd: Path | None = None, **more: str) -> "Process":
        """Start `nres` with these arguments in a process of its own."""
        command = [sys.executable, "-m", "nres", *arguments]
        return Process(command, cwd or self.folder, self.environment | more)

    def run(self, arguments: list[str], seconds: float = SECONDS, **more: str) -> Ended:
        """Run `nres` with these arguments to its end."""
        return self.start(arguments, **more).wait(seconds)

    @functools.cached_property
    def complete(self) -> Run:
        """An undisturbed run."""
        path = self.folder.parent / "complete"
        if not path.exists():
            ended = self.run(["train", *TRAINING, "--out", str(path)])
            if ended.code != 0:
                raise RuntimeError(f"the undisturbed run failed: {ended}")
        return Run.open(path, trust_code=True)

    @functools.cached_property
    def unfinished(self) -> Run:
        """The same run, interrupted by SIGTERM."""
        path = self.folder.parent / "unfinished"
        if not path.exists():
            process = self.start(["train", *TRAINING, "--out", str(path)])
            while process.is_alive() and b'"update": 7,' not in content(path / "metrics.jsonl"):
                time.sleep(0.002)
            process.signal(signal.SIGTERM)
            ended = process.wait()
            if ended.code != 128 + signal.SIGTERM:
                raise RuntimeError(f"the unfinished run ended otherwise: {ended}")
        return Run.open(path, trust_code=True)


class Process:
    """A process in a session of its own, with limits, whose output goes to files."""

    def __init__(self, command: list[str], cwd: Path, environment: dict[str, str]):
        self.call = " ".join(command[2:])
        self.files = [tempfile.TemporaryFile() for _ in ("output", "errors")]  # noqa: SIM115
        self.process = subprocess.Popen(
            command,
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=self.files[0],
            stderr=self.files[1],
            start_new_session=True,
        )
        limit(self.process)

    def is_alive(self) -> bool:
        return self.process.poll() is None

    def signal(self, number: int) -> None:
        """Send a signal to the process and to all processes that it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def wait(self, seconds: float = SECONDS) -> Ended:
        """Wait for the end, and kill the process after the time limit."""
        try:
            code: int | None = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
        self.signal(signal.SIGKILL)
        self.process.wait()
        texts = [os.pread(f.fileno(), 2**20, 0).decode(errors="replace") for f in self.files]
        for file in self.files:
            file.close()
        return Ended(code, *texts)


class Worker:
    """A long-lived process that answers calls, replaced by a new one when it hangs or dies."""

    def __init__(self, context: Context, seconds: float, **more: str):
        self.context, self.seconds = context, seconds
        self.environment = context.environment | more
        self.process: subprocess.Popen | None = None

    def __call__(self, **request: Any) -> dict[str, Any]:
        """Return the answer; its `code` is `None` after the time limit, negative after a crash."""
        if self.process is None:
            self._begin()
        assert self.process is not None
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # the process has died, and no answer comes
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()
        ready, _, _ = select.select([self.process.stdout], [], [], self.seconds)
        line = self.process.stdout.readline() if ready else b""
        if line:
            return json.loads(line)
        code = self.close()
        return {"code": code if ready else None}

    def close(self) -> int | None:
        """End the process and return its exit status."""
        if self.process is None:
            return None
        process, self.process = self.process, None
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.5)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        return process.wait()

    def _begin(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "worker.py")],
            cwd=self.context.folder,
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        limit(self.process)
        if not self.process.stdout or self.process.stdout.readline() != b"ready\n":
            raise RuntimeError("the worker of the attack did not start.")


@contextlib.contextmanager
def working(context: Context, seconds: float, **more: str) -> Iterator[Worker]:
    """Provide a worker, and close it at the end."""
    worker = Worker(context, seconds, **more)
    try:
        yield worker
    finally:
        worker.close()


def limit(process: subprocess.Popen) -> None:
    """Limit the memory of a process, if the system allows that from outside."""
    if hasattr(resource, "prlimit"):
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(process.pid, resource.RLIMIT_AS, (MEMORY, MEMORY))


def content(path: Path) -> bytes:
    """Read a plain file, or return nothing for anything else, such as a pipe of an attack."""
    try:
        return read_plain(path)
    except OSError:
        return b""


def shortened(text: str, most: int = 1200) -> str:
    """Keep the beginning and the end of a long text."""
    return text if len(text) <= most else f"{text[: most // 2]} [...] {text[-most // 2 :]}"


def difference(path: Path, expected: Run, *, metrics: bool = True) -> str | None:
    """Compare a run with an undisturbed one, bit for bit, and return the first difference."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = Run.open(path, trust_code=True)
        leaves = zip(*(jax.tree.leaves(r.theta()) for r in (run, expected)), strict=True)
        if any(np.asarray(a).tobytes() != np.asarray(b).tobytes() for a, b in leaves):
            return "theta differs from the undisturbed run"
        mine, theirs = run.metrics, expected.metrics
    if metrics and mine.keys() != theirs.keys():
        return f"the metrics have other columns: {sorted(mine.keys() ^ theirs.keys())}"
    for name in theirs.keys() - {"seconds"}:
        if metrics and mine[name].tobytes() != theirs[name].tobytes():
            return f"the column {name} differs from the undisturbed run"
    return None
