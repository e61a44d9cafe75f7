"""Short forms of error messages, and the place that a warning points to."""

import os
import sys
from pathlib import Path

_PACKAGE = str(Path(__file__).parent) + os.sep


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type if the message is empty."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def last_line(error: BaseException) -> str:
    """Return the last line of an error's message, where long reports state the cause."""
    return str(error).strip().rpartition("\n")[2].strip()


def users_level() -> int:
    """Return the `stacklevel` with which `warnings.warn` points to the code that called nres."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame, level = frame.f_back, level + 1
    return level
