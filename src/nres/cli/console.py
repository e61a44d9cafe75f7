"""Printing to a terminal, without anything that the terminal or rich would take for a command."""

import sys
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text


def plain(value: Any) -> Text:
    """Return a text without markup, and with control characters written out.

    Names and paths may come from a file that somebody else wrote. Without this, they could
    colour, clear or rewrite the screen.
    """
    return Text("".join(c if c.isprintable() or c == "\n" else _escaped(c) for c in str(value)))


def say(text: Any, console: Console | None = None) -> None:
    """Print a line to standard output without breaking it, so that paths can be copied."""
    (console or Console()).print(plain(text), soft_wrap=True, highlight=False)


def compact_table(title: str, *headings: str) -> Table:
    """Make a table that fits into 80 columns: numbers without lines around them.

    Args:
        title: The title, above the table.
        headings: The headings of the columns; all but the first are aligned to the right.

    Returns:
        The table, without rows.
    """
    widest = max(map(len, title.splitlines()))
    table = Table(
        title=plain(title),
        title_justify="left",
        box=None,
        pad_edge=False,
        min_width=min(widest, 80),  # a narrower table would wrap its title
    )
    for i, heading in enumerate(headings):
        table.add_column(heading, justify="right" if i else "left", no_wrap=True)
    return table


def tolerate_encoding() -> None:
    """Print a question mark for characters that the terminal's encoding lacks."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()
