"""Damaged folders: an attack damages one file of a run and then uses the run in a command."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from context import Context, Ended, Failure, Worker, content, difference, working

SECONDS = 60.0
# The share of tries in a separate process, which may print noise as it exits.
ALONE = 0.15
STRANGE = [None, True, -1, 0, 1e308, 10**400, "", "x", [], {}, [[]], {"x": None}, "\u0000", "[/x]"]


def attack(context: Context) -> Iterator[Failure | None]:
    """Damage a copy of a run and use it, again and again."""
    finished = context.folder / "finished"
    shutil.copytree(context.unfinished.path, finished)
    if complaint := context.run(["resume", str(finished)]).complaint(codes=(0,)):
        yield Failure("nres resume", complaint)
    expected = type(context.unfinished).open(finished, trust_code=True)
    with working(context, SECONDS) as worker:
        while True:
            yield one(context, worker, expected)


def one(context: Context, worker: Worker, expected: Any) -> Failure | None:
    """Damage one file of a copy, and run one command."""
    chance = context.random
    run = context.folder / "run"
    shutil.rmtree(run, ignore_errors=True)
    whole = chance.random() < 0.4
    shutil.copytree(expected.path if whole else context.unfinished.path, run)
    file, spoil = chance.choice(files(run, chance)), chance.choice(SPOILS)
    done = f"{spoil.__name__}({file.relative_to(run)})"
    try:
        spoil(file, chance)
    except (ValueError, LookupError, OSError):  # the damage does not apply to this kind of file
        deleted(file, chance)
        done = f"deleted({file.relative_to(run)})"
    arguments = [str(a).format(run=run, folder=context.folder) for a in chance.choice(COMMANDS)]
    call = f"{done} of a {'complete' if whole else 'half-finished'} run, {' '.join(arguments)}"
    if chance.random() < ALONE:
        ended = context.run(arguments, SECONDS)
    else:
        answer = worker(arguments=arguments, environment={})
        ended = Ended(answer["code"], answer.get("output", ""), answer.get("errors", ""))
    complaint = ended.complaint()
    if complaint is None and len(ended.errors.strip().splitlines()) > 6:
        complaint = f"{len(ended.errors.splitlines())} lines of errors: {ended.errors}"
    if complaint is None and ended.code == 0 and arguments == ["resume", str(run)]:
        if "20,000" not in ended.output and "complete" not in ended.output:
            complaint = f"it ended early without an error: {ended.output}"
        else:
            complaint = unlike(run, expected)
    kept = f" [config: {content(run / 'config.json')[:3000]!r}]" if "config" in done else ""
    return None if complaint is None else Failure(call, complaint + kept)


def unlike(run: Path, expected: Any) -> str | None:
    """Compare the parameters with those of the undamaged run."""
    try:
        return difference(run, expected, metrics=False)
    except Exception as error:  # although the command succeeded
        return f"it ended with 0, and cannot be opened: {error!r}"


COMMANDS = [
    ["show", "{run}"],
    ["plot", "{run}"],
    ["report", "{run}", "--out", "{folder}/report.html"],
    ["evaluate", "{run}", "--episodes", "5"],
    ["evaluate", "{run}", "--episodes", "5", "--best"],
    ["resume", "{run}"],
    ["resume", "{run}"],
    ["resume", "{run}", "--updates", "20100"],
    ["export", "{run}"],
    ["train", "lorenz", "--updates", "1", "--from", "{run}", "--out", "{run}/new"],
]


def files(run: Path, chance: Random) -> list[Path]:
    """List the files to choose from, with every kind equally likely."""
    checkpoints = [file for file in (run / "checkpoints").rglob("*") if file.is_file()]
    single = [run / "config.json", run / "metrics.jsonl", run / "checkpoints" / "best.npz"]
    return [*single, *chance.choices(checkpoints, k=4), chance.choice(checkpoints).parent]


def truncated(file: Path, chance: Random) -> None:
    data = file.read_bytes()
    file.write_bytes(data[: chance.randrange(len(data) + 1)])


def emptied(file: Path, chance: Random) -> None:
    file.write_bytes(b"")


def flipped(file: Path, chance: Random) -> None:
    data = bytearray(file.read_bytes())
    for _ in range(chance.choice([1, 1, 4, 64])):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    file.write_bytes(data)


def shuffled(file: Path, chance: Random) -> None:
    lines = file.read_bytes().splitlines(keepends=True)
    chance.shuffle(lines)
    file.write_bytes(b"".join(lines))


def thinned(file: Path, chance: Random) -> None:
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(line for line in lines if chance.random() < 0.7))


def doubled(file: Path, chance: Random) -> None:
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(line * chance.choice([1, 2]) for line in lines))


def mistyped(file: Path, chance: Random) -> None:
    """Replace one value in JSON by a value of another type."""
    lines = file.read_text().splitlines() if file.suffix == ".jsonl" else [file.read_text()]
    place = chance.randrange(len(lines))
    value = json.loads(lines[place])
    inner, name = value, None
    while True:
        keys = list(inner) if isinstance(inner, dict) else list(range(len(inner)))
        if not keys:
            raise ValueError("nothing in it to replace")
        name = chance.choice(keys)
        if isinstance(inner[name], dict | list) and inner[name] and chance.random() < 0.8:
            inner = inner[name]
            continue
        break
    inner[name] = chance.choice(STRANGE)
    lines[place] = json.dumps(value)
    file.write_text("\n".join(lines) + "\n")


def not_text(file: Path, chance: Random) -> None:
    data = file.read_bytes()
    place = chance.randrange(len(data) + 1)
    file.write_bytes(data[:place] + b"\xff\xfe\xc3" + data[place:])


def deleted(file: Path, chance: Random) -> None:
    shutil.rmtree(file) if file.is_dir() else file.unlink()


def a_folder(file: Path, chance: Random) -> None:
    deleted(file, chance)
    file.mkdir()


def a_file(file: Path, chance: Random) -> None:
    deleted(file, chance)
    file.write_bytes(b"{}")


def endless(file: Path, chance: Random) -> None:
    deleted(file, chance)
    file.symlink_to("/dev/zero")


def a_pipe(file: Path, chance: Random) -> None:
    deleted(file, chance)
    os.mkfifo(file)


def a_broken_link(file: Path, chance: Random) -> None:
    deleted(file, chance)
    file.symlink_to("nowhere")


def nested(file: Path, chance: Random) -> None:
    file.write_text("[" * 100_000 + "]" * 100_000)


def huge_numbers(file: Path, chance: Random) -> None:
    text = file.read_text()
    number = chance.choice(["1" + "0" * 5000, "1e999", "-1e999", "NaN", "9223372036854775808"])
    digits = [i for i, letter in enumerate(text) if letter.isdigit()]
    place = chance.choice(digits)
    file.write_text(text[:place] + number + text[place + 1 :])


def random_bytes(file: Path, chance: Random) -> None:
    file.write_bytes(chance.randbytes(chance.choice([1, 100, 10_000])))


SPOILS: list[Callable[[Path, Random], None]] = [
    truncated,
    emptied,
    flipped,
    shuffled,
    thinned,
    doubled,
    mistyped,
    mistyped,
    not_text,
    deleted,
    a_folder,
    a_file,
    endless,
    a_pipe,
    a_broken_link,
    nested,
    huge_numbers,
    random_bytes,
]
