"""The code that a run's config may name, and whether to run it.

A run folder is data: it may come from anybody. Its config names the system by a file or a module,
whose code would run with your rights, so it runs only if you named it yourself, on a command line
or in Python, or say that you trust it. What you named is remembered, by user and machine, so that
your own runs resume without a question.
"""

import contextlib
from pathlib import Path
from typing import Any

from nres.experiments.presets import SYSTEMS


def foreign_code(system: str, options: dict[str, Any]) -> str | None:
    """The file or module outside of nres that a system's name would run, or `None`."""
    if system in SYSTEMS:
        return None
    where, _, _ = system.rpartition(":")
    if where == "gym":
        # gymnasium imports what stands before a colon in the name of an environment.
        imports = (v for v in options.values() if isinstance(v, str) and ":" in v)
        return next(imports, None)
    return None if where.split(".")[:2] == ["nres", "systems"] else where


def remember(system: str, options: dict[str, Any]) -> None:
    """Note that the user has named a system, and with it the code to run."""
    code = foreign_code(system, options)
    if code is None or is_remembered(code):
        return
    with contextlib.suppress(OSError):  # a home that cannot be written to: --trust-code is left
        file = _file()
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a", encoding="utf-8") as lines:
            lines.write(code.replace("\n", " ") + "\n")


def is_remembered(code: str) -> bool:
    """Whether the user has named this file or module before."""
    try:
        return code in _file().read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return False


def _file() -> Path:
    import platformdirs

    return platformdirs.user_state_path("nres", appauthor=False) / "named-code.txt"
