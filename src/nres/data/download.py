"""Downloads: checked, shown, and put in place whole or not at all."""

import hashlib
import io
import tarfile
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from nres.data.datasets import DataError, Dataset, cache_folder
from nres.data.read import checked
from nres.files import replacing

Report = Callable[[str, int, int | None], None]
"""Called with the name of a file, the bytes got so far, and how many there are if that is known."""


def download(
    dataset: Dataset,
    data_dir: Path | None = None,
    *,
    url: str | None = None,
    report: Report | None = None,
) -> Path:
    """Fetch a data set; files that are there already are left alone.

    ```python
    nres.data.download(nres.data.CIFAR10)
    ```

    **Arguments:**

    - `dataset`: one of `nres.data.DATASETS`.
    - `data_dir`: the folder to put its folder into; the user's cache by default.
    - `url`: a mirror, laid out as the original.
    - `report`: called as bytes arrive.

    **Returns:** the folder of its files.
    """
    place = cache_folder() if data_dir is None else data_dir
    url = (url or dataset.url).rstrip("/")
    missing = [file for file in dataset.files if dataset.find(file, place) is None]
    if not missing:
        return place / dataset.folder
    if dataset.archive_sha256:
        contents = _from_archive(dataset, url, report)
    else:
        contents = {file.name: _fetch(f"{url}/{file.name}", file.name, report) for file in missing}
    for file in missing:
        target = place / dataset.folder / file.name
        # Before anything is written: what is wrong does not get a place on the disk.
        checked(contents[file.name], file, f"{url}/{file.name}")
        with replacing(target) as partial:
            partial.write_bytes(contents[file.name])
    return place / dataset.folder


def _from_archive(dataset: Dataset, url: str, report: Report | None) -> dict[str, bytes]:
    archive = _fetch(url, url.rsplit("/", 1)[-1], report)
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
            if member is None:
                raise DataError(f"{url} has no file {dataset.folder}/{file.name}.")
            contents[file.name] = member.read()
    return contents


def _fetch(url: str, name: str, report: Report | None) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            length = answer.headers.get("Content-Length")
            total = None if length is None else int(length)
            parts, got = [], 0
            while part := answer.read(1 << 18):
                parts.append(part)
                got += len(part)
                if report is not None:
                    report(name, got, total)
    except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
        raise DataError(f"{url} cannot be downloaded: {error}.") from error
    if total is not None and got < total:
        raise DataError(f"{url} ended after {got:,} of {total:,} bytes: try again.")
    return b"".join(parts)
