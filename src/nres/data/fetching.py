"""Downloads of data sets, which are verified completely before any file is written.

This is written by hand instead of with pooch. Pooch verifies the packed file, whose bytes differ
between mirrors; it has no limit on the size of an answer; and it puts a file in place before its
contents could be verified.
"""

import hashlib
import http.client
import io
import tarfile
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from nres.data.datasets import DataError, Dataset, File, cache_folder
from nres.data.read import checked
from nres.files import replacing

Report = Callable[[str, int, int | None], None]
"""A function of a file's name, the number of bytes received so far, and their total if known."""


def download(
    dataset: Dataset,
    data_dir: Path | None = None,
    *,
    url: str | None = None,
    report: Report | None = None,
) -> Path:
    """Download a data set, except for files that exist and are intact.

    All files are verified before any is written, and each is written completely or not at all.

    Args:
        dataset: One of `nres.data.DATASETS`.
        data_dir: The parent of the data set's folder; by default, the user's cache.
        url: The address of a mirror with the layout of the original.
        report: A function that is called as bytes arrive, with the name of the file, the number of
            bytes received, and their total if known.

    Returns:
        The folder of the data set's files.

    Raises:
        DataError: If the download fails, or the files are not those expected.

    Example:
        ```python
        nres.data.download(nres.data.CIFAR10)
        ```
    """
    place = cache_folder() if data_dir is None else data_dir
    url = (url or dataset.url).rstrip("/")
    targets = {
        file: dataset.find(file, place) or place / dataset.folder / file.name
        for file in dataset.files
    }
    missing = [file for file, path in targets.items() if not _sound(file, path)]
    if missing and dataset.archive_sha256:
        contents = _from_archive(dataset, url, report)
    else:
        contents = {file.name: _fetch(f"{url}/{file.name}", file.size, report) for file in missing}
    # Verify all files before writing any.
    for file in missing:
        checked(contents[file.name], file, f"{url}/{file.name}")
    for file in missing:
        path = targets[file]
        if path.suffix != Path(file.name).suffix:  # the existing file is unpacked and damaged
            path = path.with_name(file.name)
        with replacing(path) as partial:
            partial.write_bytes(contents[file.name])
    return targets[dataset.files[0]].parent


def _sound(file: File, path: Path) -> bool:
    try:
        checked(path.read_bytes(), file, str(path))
    except (OSError, DataError):
        return False
    return True


def _from_archive(dataset: Dataset, url: str, report: Report | None) -> dict[str, bytes]:
    archive = _fetch(url, sum(file.size for file in dataset.files), report)
    found = hashlib.sha256(archive).hexdigest()
    if found != dataset.archive_sha256:
        raise DataError(
            f"{url} is not the expected archive: its SHA-256 is {found}, "
            f"expected {dataset.archive_sha256}."
        )
    contents = {}
    with tarfile.open(fileobj=io.BytesIO(archive)) as members:
        for file in dataset.files:
            member = members.extractfile(f"{dataset.folder}/{file.name}")
            assert member is not None
            contents[file.name] = member.read()
    return contents


def _fetch(url: str, size: int, report: Report | None) -> bytes:
    """Download a file that unpacks to `size` bytes; packed, it may be only slightly larger."""
    name = url.rsplit("/", 1)[-1]
    parts, got = [], 0
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            length = answer.headers.get("Content-Length")
            total = None if length is None else int(length)
            while part := answer.read(1 << 18):
                parts.append(part)
                got += len(part)
                if got > size + (1 << 20):
                    raise DataError(f"{url} is larger than the {size:,} bytes it should hold.")
                if report is not None:
                    report(name, got, total)
    except DataError:
        raise
    except (OSError, http.client.HTTPException, ValueError) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()  # it holds the connection
        raise DataError(f"{url} cannot be downloaded: {error}.") from error
    if total is not None and got < total:
        raise DataError(f"{url} ended after {got:,} of {total:,} bytes: try again.")
    return b"".join(parts)
