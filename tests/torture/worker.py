"""Process that makes the calls of an attack: one JSON line in, one JSON line out."""

import json
import os
import re
import sys
import tempfile
import traceback
import warnings
from pathlib import Path
from typing import Any

import cases
import faulty_pool
import jax
import numpy as np
from typer.testing import CliRunner

import nres
from nres.cli import app
from nres.estimators import NonFiniteError
from nres.pools import PoolError
from nres.runs import RunError

LONGEST = 1000
ALLOWED = (ValueError, TypeError, MemoryError, OSError, RunError, PoolError, NonFiniteError)
OURS = str(Path(nres.__file__).parent)


def command(arguments: list[str], environment: dict[str, str]) -> dict[str, Any]:
    """Call `nres` with these arguments, and return its exit status and its output."""
    runner = CliRunner()
    result = runner.invoke(app, arguments, env={"COLUMNS": "200"} | environment)
    answer = {"code": result.exit_code, "output": result.stdout, "errors": result.stderr}
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        answer["code"] = 70
        answer["errors"] += "".join(traceback.format_exception(result.exception))
    return answer


def call(source: str) -> dict[str, Any]:
    """Evaluate an expression of the API, and return a complaint about the outcome, if any."""
    names = vars(cases) | {"nres": nres, "np": np, "jax": jax, "jnp": jax.numpy}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            jax.block_until_ready(eval(compile(source, "<call>", "eval"), names))
        except Exception as error:
            return {"code": 0, "complaint": complaint(error)}
    return {"code": 0, "complaint": None}


def complaint(error: Exception) -> str | None:
    """Return the reason why a user could not act on an error, or `None`."""
    frames = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    ours = [file.startswith(OURS) for file in frames]
    users = [file in (cases.__file__, faulty_pool.__file__, "<call>") for file in frames]
    last = max(i for i, _ in enumerate(frames) if ours[i] or users[i])
    if users[last] and (last == len(frames) - 1 or frames[last] != "<call>"):
        return None  # raised by the user's own code
    if isinstance(error, TypeError) and re.search(
        r"__init__\(\) (missing|got an unexp)", str(error)
    ):
        return None  # raised by Python itself, which names the argument
    text = f"{type(error).__name__}: {error}"
    where = next(f for f in reversed(traceback.extract_tb(error.__traceback__)[: last + 1]))
    place = f"{where.filename.removeprefix(OURS)}:{where.lineno} {text[:600]}"
    if not isinstance(error, ALLOWED):
        return place
    if last < len(frames) - 1:
        return f"raised by {frames[-1].rpartition('site-packages/')[2]}, below {place}"
    if len(str(error)) > LONGEST:
        return f"a message of {len(str(error))} characters: {place}"
    return None


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    # Libraries may print through the file descriptors: that is output, and not an answer.
    log = tempfile.TemporaryFile()  # noqa: SIM115
    for descriptor in (1, 2):
        os.dup2(log.fileno(), descriptor)
    answers.write("ready\n")
    answers.flush()
    for line in sys.stdin:
        request = json.loads(line)
        log.seek(0)
        log.truncate()
        try:
            answer = command(**request) if "arguments" in request else call(request["source"])
        except BaseException:  # an error of the worker itself, such as one that cannot be printed
            answer = {"code": 71, "complaint": traceback.format_exc()}
        sys.stdout.flush()
        sys.stderr.flush()
        answer["errors"] = answer.get("errors", "") + os.pread(log.fileno(), 2**20, 0).decode(
            errors="replace"
        )
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
