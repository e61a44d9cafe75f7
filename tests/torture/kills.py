"""SIGKILL at random moments, after which runs resume exactly and no file is half-written."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path

from context import TRAINING, Context, Failure, content, difference

# The first and the last bytes of a complete file.
WHOLE = {".png": (b"\x89PNG", b"IEND\xaeB`\x82"), ".html": (b"<!doctype html>", b"</html>")}


def attack(context: Context) -> Iterator[Failure | None]:
    """Kill a run several times until it is complete, and kill its readers."""
    expected = context.complete
    number = 0
    while True:
        number += 1
        yield killed_run(context, context.folder / f"run-{number}") or difference_failure(
            context.folder / f"run-{number}", expected
        )
        yield killed_reader(context, expected.path, number)


def killed_run(context: Context, out: Path) -> Failure | None:
    """Train in `out`, with a few kills on the way."""
    for _ in range(context.random.randint(1, 4)):
        process = context.start(command(out))
        if context.random.random() < 0.25:
            time.sleep(context.random.uniform(0, 5))
        else:  # while it makes updates, which is only a small part of its time
            made = len(content(out / "metrics.jsonl"))
            deadline = time.monotonic() + 60
            while process.is_alive() and time.monotonic() < deadline:
                if len(content(out / "metrics.jsonl")) not in (0, made):
                    break
                time.sleep(0.001)
            time.sleep(context.random.expovariate(4))
        process.signal(signal.SIGKILL)
        ended = process.wait()
        if ended.code not in (0, -signal.SIGKILL):
            return Failure(process.call, f"exit status {ended.code}: {ended.errors}")
    ended = context.run(command(out))
    if complaint := ended.complaint(codes=(0,)):
        return Failure(" ".join(command(out)), complaint)
    return None


def command(out: Path) -> list[str]:
    """Return the command that starts the run, or resumes it if it exists."""
    if (out / "config.json").exists():
        return ["resume", str(out)]
    return ["train", *TRAINING, "--out", str(out)]


def difference_failure(path: Path, expected) -> Failure | None:
    """Compare the killed run with the undisturbed one."""
    try:
        found = difference(path, expected)
    except Exception as error:  # every error is a failure here
        found = repr(error)
    return Failure(f"kill and resume {path}", found) if found else None


def killed_reader(context: Context, run: Path, number: int) -> Failure | None:
    """Kill `plot` or `report`, if possible while it writes its file."""
    name, suffix = context.random.choice([("plot", ".png"), ("report", ".html")])
    file = context.folder / f"{name}-{number}{suffix}"
    process = context.start([name, str(run), "--out", str(file)])
    begun = time.monotonic()
    patience = context.random.uniform(2, 15)
    while process.is_alive() and time.monotonic() < begun + patience:
        if any(".partial" in other.name for other in context.folder.iterdir()):
            break
        time.sleep(0.0005)
    process.signal(signal.SIGKILL)
    ended = process.wait()
    if ended.code not in (0, -signal.SIGKILL):
        return Failure(process.call, f"exit status {ended.code}: {ended.errors}")
    for other in context.folder.glob(".*.partial*"):
        other.unlink()
    first, last = WHOLE[suffix]
    found = content(file)
    if file.exists() and not (found.lower().startswith(first.lower()) and last in found[-20:]):
        return Failure(process.call, f"{file.name} is incomplete after SIGKILL")
    return None
