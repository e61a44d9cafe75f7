"""Downloads: verified in full before any file is written, and written whole or not at all.

Written by hand rather than with pooch: pooch verifies the packed file, whose bytes differ between
mirrors, has no limit on the size of an answer, and puts a file in place before its contents could
be verified.
"""

import hashlib
import http.client
import io
import tarfile
import urllib.request
from collections.abc import Callable
from pathlib import Path

from nres.data.datasets import DataError, Dataset, File, cache_folder
from nres.data.read import checked
from nres.files import replacing

Report = Callable[[str, int, int | None], None]
"""Called with a file's name, the bytes received so far, and their total number if known."""


def download(
    dataset: Dataset,
    data_dir: Path | None = None,
    *,
    url: str | None = None,
    report: Report | None = None,
) -> Path:
    """Download a data set, except for files that exist and are intact.

    ```python
    nres.data.download(nres.data.CIFAR10)
    ```

    **Arguments:**

    - `dataset`: one of `nres.data.DATASETS`.
    - `data_dir`: the parent of the data set's folder; the user's cache by default.
    - `url`: a mirror with the layout of the original.
    - `report`: called as bytes arrive.

    **Returns:** the folder of its files.
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
    # Verify all of them before anything is written.
    for file in missing:
        checked(contents[file.name], file, f"{url}/{file.name}")
    for file in missing:
        path = targets[file]
        if path.suffix != Path(file.name).suffix:  # an unpacked file, and damaged
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
            f"{url} is not what it should be: its SHA-256 is {found}, "
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
    """Download a file that holds `size` bytes; packed, it is hardly larger than that."""
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
        raise DataError(f"{url} cannot be downloaded: {error}.") from error
    if total is not None and got < total:
        raise DataError(f"{url} ended after {got:,} of {total:,} bytes: try again.")
    return b"".join(parts)
