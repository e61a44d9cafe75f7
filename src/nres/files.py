"""Files are replaced in one step: whoever looks sees the old one or the whole new one."""

import contextlib
import errno
import json
import math
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A name to write to; what is there at the end takes the place of `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = _partial(path)
    try:
        yield partial
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def _partial(path: Path) -> Path:
    """A name to write to first; with the number of the process, as others may write, too."""
    return path.with_name(f".{path.stem}.{os.getpid()}.partial{path.suffix}")


def write_json(path: Path, value: Any) -> None:
    """Write plain values as JSON, with null for numbers that it does not know."""
    with replacing(path) as partial:
        partial.write_text(json.dumps(finite(value), indent=2) + "\n", encoding="utf-8")


def create_json(path: Path, value: Any) -> None:
    """Write JSON to a new file; of several processes that try, one succeeds.

    The others, and whoever comes later, get a `FileExistsError`.
    """
    partial = _partial(path)
    try:
        partial.write_text(json.dumps(finite(value), indent=2) + "\n", encoding="utf-8")
        try:
            os.link(partial, path)
        except FileExistsError:
            raise
        except OSError:  # a file system without links
            with path.open("x", encoding="utf-8") as file:
                file.write(partial.read_text(encoding="utf-8"))
    finally:
        partial.unlink(missing_ok=True)


def open_plain(path: Path, *, follow: bool = True) -> BinaryIO:
    """Open a file for reading, unless it is a device or a pipe: those could hang, or never end.

    **Arguments:**

    - `path`: the file.
    - `follow`: whether it may be a link. One in a folder from elsewhere could lead anywhere.
    """
    if not follow and path.is_symlink():
        raise OSError(errno.ELOOP, "it is a link, which is not followed", str(path))
    flags = os.O_RDONLY
    for flag in ("O_NONBLOCK", "O_BINARY"):
        flags |= getattr(os, flag, 0)
    descriptor = os.open(path, flags)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a plain file", str(path))
    return os.fdopen(descriptor, "rb")


def read_plain(path: Path, largest: int | None = None) -> bytes:
    """Read a plain file of a folder that somebody else may have made; links are not followed.

    **Arguments:**

    - `path`: the file.
    - `largest`: refuse one of more bytes.
    """
    with open_plain(path, follow=False) as file:
        if largest is not None and os.fstat(file.fileno()).st_size > largest:
            raise OSError(errno.EFBIG, f"it has more than {largest:,} bytes", str(path))
        return file.read()


def write_lines(path: Path, rows: Iterable[Any]) -> None:
    """Write values as JSON, one in each line."""
    with replacing(path) as partial:
        text = "".join(json.dumps(finite(row)) + "\n" for row in rows)
        partial.write_text(text, encoding="utf-8")


def finite(value: Any) -> Any:
    """A value for JSON, with `None` for the numbers that JSON does not know."""
    if isinstance(value, dict):
        return {name: finite(v) for name, v in value.items()}
    if isinstance(value, list | tuple):
        return [finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def save_figure(figure: Any, path: Path) -> None:
    """Write a matplotlib figure, in the format that the name asks for."""
    from matplotlib import rc_context  # slow to import: for those who draw

    # Of the same figure always the same bytes: an SVG would have names drawn at random, and a date.
    metadata = {"Date": None} if path.suffix == ".svg" else None
    with replacing(path) as partial, rc_context({"svg.hashsalt": "nres"}):
        figure.savefig(partial, dpi=150, metadata=metadata)


def save_drawing(figure: Any, path: Path) -> None:
    """Write a figure as PNG, to look at, and as SVG, to print: `path` with either ending."""
    for suffix in (".png", ".svg"):
        save_figure(figure, path.with_name(path.name + suffix))
