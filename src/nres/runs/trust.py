"""Trust in the code that the config of a run names.

A run folder is data: it may come from anybody. Its config names the system by a file or a module,
whose code would run with your rights, so it runs only if you named it yourself, on a command line
or in Python, or say that you trust it. What you named is remembered, by user and machine, so that
your own runs resume without a question.
"""

import contextlib
import importlib.machinery
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nres.runs.registry import SYSTEMS


def foreign_code(system: str, options: dict[str, Any]) -> list[str]:
    """List the files and modules outside of nres that making a system would run."""
    where, _, _ = system.rpartition(":")
    if system in SYSTEMS or not where:  # which is refused as unknown, if it is not known
        return []
    if system.startswith("gym:"):
        # gymnasium imports what stands before a colon in the name of an environment.
        given = {name: value for name, value in options.items() if name != "policy"}
        texts = [system.removeprefix("gym:"), *_texts(given)]
        return [text for text in texts if ":" in text]
    if where.endswith(".py"):
        return [str(Path(where).resolve())]
    if re.fullmatch(r"nres\.systems(\.\w+)*", where):
        return []
    return [f"{where} ({_origin(where.partition('.')[0])})"]


def _texts(value: Any) -> Iterator[str]:
    """Yield all texts in a JSON value, however deep."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for pair in value.items():
            yield from _texts(list(pair))
    elif isinstance(value, list):
        for part in value:
            yield from _texts(part)


def _origin(module: str) -> str:
    """Find the file of a top-level module without importing it: another may have its name."""
    found = importlib.machinery.PathFinder.find_spec(module, [str(Path.cwd()), *sys.path])
    return "not found" if found is None else str(found.origin)


def remember(system: str, options: dict[str, Any]) -> None:
    """Note that the user has named a system, and with it the code to run."""
    fresh = [code for code in foreign_code(system, options) if not is_remembered(code)]
    if not fresh:
        return
    with contextlib.suppress(OSError):  # a home that cannot be written to: --trust-code is left
        file = _file()
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a", encoding="utf-8") as lines:
            lines.writelines(code.replace("\n", " ") + "\n" for code in fresh)


def is_remembered(code: str) -> bool:
    """Tell if the user has named this file or module before."""
    try:
        return code in _file().read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return False


def _file() -> Path:
    import platformdirs

    return platformdirs.user_state_path("nres", appauthor=False) / "named-code.txt"
