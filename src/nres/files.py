"""Files that are replaced atomically: a reader sees the old content or all of the new one."""

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
    """Yield a temporary name to write to; on success, that file replaces `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = _partial(path)
    try:
        yield partial
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def _partial(path: Path) -> Path:
    """Return a temporary name with the process id, since other processes may write, too."""
    return path.with_name(f".{path.stem}.{os.getpid()}.partial{path.suffix}")


def write_text(path: Path, text: str) -> None:
    """Write text in UTF-8, with the same ends of lines on all systems."""
    with replacing(path) as partial:
        partial.write_bytes(text.encode())


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON, with null for infinities and NaN."""
    write_text(path, _as_json(value))


def _as_json(value: Any) -> str:
    return json.dumps(finite(value), indent=2) + "\n"


def create_json(path: Path, value: Any) -> None:
    """Write JSON to a new file; if several processes try, exactly one succeeds.

    Raises:
        FileExistsError: The file exists already.
    """
    partial = _partial(path)
    try:
        partial.write_bytes(_as_json(value).encode())
        try:
            os.link(partial, path)
        except FileExistsError:
            raise
        except OSError:  # the file system has no hard links
            with path.open("xb") as file:
                file.write(partial.read_bytes())
    finally:
        partial.unlink(missing_ok=True)


def open_plain(path: Path, *, follow: bool = True) -> BinaryIO:
    """Open a regular file for reading; a device or a pipe could block or never end.

    Args:
        path: The file.
        follow: Follow a symbolic link. In a folder from somebody else, it could point anywhere.
    """
    if not follow and path.is_symlink():
        raise OSError(errno.ELOOP, "it is a symbolic link, which nres does not follow", str(path))
    flags = os.O_RDONLY
    for flag in ("O_NONBLOCK", "O_BINARY"):
        flags |= getattr(os, flag, 0)
    descriptor = os.open(path, flags)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


def read_plain(path: Path, largest: int | None = None) -> bytes:
    """Read a regular file in a folder that somebody else may have made; do not follow links.

    Args:
        path: The file.
        largest: The largest size in bytes; a larger file is refused.
    """
    with open_plain(path, follow=False) as file:
        if largest is not None and os.fstat(file.fileno()).st_size > largest:
            raise OSError(errno.EFBIG, f"it has more than {largest:,} bytes", str(path))
        return file.read()


def write_lines(path: Path, rows: Iterable[Any]) -> None:
    """Write values as JSON, one per line."""
    write_text(path, "".join(json.dumps(finite(row)) + "\n" for row in rows))


def finite(value: Any) -> Any:
    """Replace infinities and NaN, which JSON lacks, by `None`."""
    if isinstance(value, dict):
        return {name: finite(v) for name, v in value.items()}
    if isinstance(value, list | tuple):
        return [finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def save_figure(figure: Any, path: Path) -> None:
    """Write a matplotlib figure, in the format of the file's ending."""
    from matplotlib import rc_context  # imported here, since it is slow

    # The same figure gives the same bytes: by default an SVG has random names and a date.
    metadata = {"Date": None} if path.suffix == ".svg" else None
    with replacing(path) as partial, rc_context({"svg.hashsalt": "nres"}):
        figure.savefig(partial, dpi=150, metadata=metadata)


def save_drawing(figure: Any, path: Path) -> None:
    """Write a figure as PNG and as SVG: to `path` with each ending."""
    for suffix in (".png", ".svg"):
        save_figure(figure, path.with_name(path.name + suffix))
