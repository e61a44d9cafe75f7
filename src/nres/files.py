"""Files are replaced in one step: whoever looks sees the old one or the whole new one."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A name to write to; what is there at the end takes the place of `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # With the number of the process: another may be writing the same file.
    partial = path.with_name(f".{path.stem}.{os.getpid()}.partial{path.suffix}")
    try:
        yield partial
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
