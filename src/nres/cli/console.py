"""Text for a terminal, with nothing in it that the terminal or rich would take for a command."""

import sys
from typing import Any

from rich.console import Console
from rich.text import Text


def plain(value: Any) -> Text:
    """Return a text as it is: without markup, and with control characters written out.

    Names and paths may come from a file that somebody else wrote, and would otherwise colour,
    clear or rewrite the screen.
    """
    return Text("".join(c if c.isprintable() or c == "\n" else _escaped(c) for c in str(value)))


def say(text: Any, console: Console | None = None) -> None:
    """Print a line to standard output, unbroken: paths are there to be copied."""
    (console or Console()).print(plain(text), soft_wrap=True, highlight=False)


def tolerate_encoding() -> None:
    """Write a question mark for what the encoding of the terminal does not have."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()
