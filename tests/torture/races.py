"""Races: many processes start or resume runs at the same time."""

import json
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from context import BOUNCER, SECONDS, Context, Ended, Failure

SHORT = [BOUNCER, "--sigma", "0.1", "--lr", "0.01", "--window", "50", "--workers", "4"]
SHORT += ["--updates", "20", "--set", "horizon=100"]
# Words of the errors about a folder that is taken, and about a run that another process uses.
REFUSED, BUSY = "run", "process"


def attack(context: Context) -> Iterator[Failure | None]:
    """Let processes race for a name, for a folder and for a run."""
    while True:
        # In random order, because there may be time for the first one only.
        for race in context.random.sample([for_a_name, for_a_folder, for_a_run], 3):
            yield race(context)


def scratch(context: Context) -> Path:
    """Make an empty folder to race in."""
    path = context.folder / f"race-{context.random.getrandbits(48):012x}"
    path.mkdir()
    return path


def together(context: Context, commands: list[list[str]], cwd: Path) -> list[Ended]:
    """Start all commands at once, and wait for them."""
    processes = [context.start(command, cwd) for command in commands]
    return [process.wait(300) for process in processes]


def for_a_name(context: Context) -> Failure | None:
    """Start processes without --out: each must get a folder of its own."""
    cwd, count = scratch(context), context.random.randint(8, 12)
    commands = [["train", *SHORT, "--seed", str(i)] for i in range(count)]
    ends = together(context, commands, cwd)
    call = f"{count} times at once: nres {' '.join(commands[0])}"
    for ended in ends:
        if complaint := ended.complaint(codes=(0,)):
            return Failure(call, complaint)
    folders = sorted((cwd / "runs").iterdir())
    seeds = set()
    for folder in folders:
        seeds.add(json.loads((folder / "config.json").read_text())["settings"]["seed"])
        last = (folder / "metrics.jsonl").read_text().splitlines()[-1]
        if json.loads(last)["update"] != 20:
            return Failure(call, f"{folder.name} ends with {last}")
        named = [ended for ended in ends if f"runs/{folder.name}\n" in ended.output]
        if len(named) != 1:
            return Failure(call, f"{len(named)} processes claim {folder.name}")
    if len(folders) != count or len(seeds) != count:
        return Failure(call, f"{len(folders)} folders with {len(seeds)} seeds")
    return None


def for_a_folder(context: Context) -> Failure | None:
    """Start processes with the same --out: exactly one must get it."""
    cwd, count = scratch(context), context.random.randint(4, 8)
    commands = [["train", *SHORT, "--seed", str(i), "--out", "run"] for i in range(count)]
    ends = together(context, commands, cwd)
    call = f"{count} times at once: nres {' '.join(commands[0])}"
    won = [i for i, ended in enumerate(ends) if ended.code == 0]
    if len(won) != 1:
        return Failure(call, f"{len(won)} succeeded: {[ended.errors for ended in ends]}")
    for ended in ends:
        complaint = ended.complaint(codes=(0, 1))
        if ended.code and REFUSED not in ended.errors:
            complaint = complaint or ended.errors
        if complaint:
            return Failure(call, complaint)
    seed = json.loads((cwd / "run" / "config.json").read_text())["settings"]["seed"]
    return (
        None
        if [seed] == won
        else Failure(call, f"process {won} won, but the config is that of {seed}")
    )


def for_a_run(context: Context) -> Failure | None:
    """Resume one run twice at once: one process works, and the other must refuse."""
    cwd = scratch(context)
    shutil.copytree(context.unfinished.path, cwd / "run")
    # Long enough that the second process arrives while the first one works.
    command = ["resume", "run", "--updates", "1500000"]
    processes = [context.start(command, cwd) for _ in range(2)]
    call = f"twice at once: nres {' '.join(command)}"
    deadline = time.monotonic() + SECONDS
    while all(process.is_alive() for process in processes) and time.monotonic() < deadline:
        time.sleep(0.01)
    loser, winner = sorted(processes, key=lambda process: process.is_alive())
    alive = winner.is_alive()
    winner.signal(signal.SIGTERM)
    lost, won = loser.wait(1), winner.wait()
    if complaint := lost.complaint(codes=(1,)) or (None if BUSY in lost.errors else lost.errors):
        return Failure(call, f"the second: {complaint}")
    if not alive or won.code not in (0, 128 + signal.SIGTERM):
        return Failure(call, f"the first ended with {won.code}: {won.errors}")
    return None
