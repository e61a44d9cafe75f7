"""Readers of images, which verify every file before they use it."""

import gzip
import hashlib
import importlib.resources
import io
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import UInt8

from nres.data.datasets import CIFAR10, FASHION_MNIST, DataError, Dataset, File

SHIPPED = "fashion_mnist_8x8.npz"


class Images(NamedTuple):
    """Images and their labels."""

    images: UInt8[np.ndarray, "count height width channels"]
    labels: UInt8[np.ndarray, " count"]


def fashion_mnist(
    size: int = 8, *, split: str = "train", data_dir: str | Path | None = None
) -> Images:
    """Read Fashion-MNIST: 60,000 grey images of ten kinds of clothing, and 10,000 to test on.

    ```python
    images, labels = nres.data.fashion_mnist()
    ```

    **Arguments:**

    - `size`: 8 gives the training images scaled to 8 x 8, which come with nres; 28 reads the
        original files.
    - `split`: `"train"` or `"test"` (of the original files).
    - `data_dir`: the folder of the original files; by default the usual folders are searched.

    **Reference:** Xiao, Rasul, Vollgraf, *Fashion-MNIST*, 2017 (MIT licence).
    """
    if size not in (8, 28) or split not in ("train", "test") or (size, split) == (8, "test"):
        raise DataError(
            f"fashion-mnist comes in size 8 (train) and 28 (train, test); got {size} ({split})."
        )
    if size == 8:
        source = importlib.resources.files("nres.data").joinpath(SHIPPED)
        with source.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return Images(arrays["images"][..., None], arrays["labels"])
    images_file, labels_file = (
        FASHION_MNIST.files[:2] if split == "train" else FASHION_MNIST.files[2:]
    )
    images = _read(FASHION_MNIST, images_file, data_dir)[16:].reshape(-1, 28, 28, 1)
    return Images(images, _read(FASHION_MNIST, labels_file, data_dir)[8:])


def cifar10(*, split: str = "train", data_dir: str | Path | None = None) -> Images:
    """Read CIFAR-10: 50,000 colour images of ten classes, 32 x 32, and 10,000 to test on.

    It reads the binary version of its authors.

    **Arguments:**

    - `split`: `"train"` or `"test"`.
    - `data_dir`: the folder of the files; by default the usual folders are searched.

    **Reference:** Krizhevsky, *Learning multiple layers of features from tiny images*, 2009.
    """
    if split not in ("train", "test"):
        raise DataError(f"cifar10 has the splits train and test, got {split!r}.")
    files = CIFAR10.files[:5] if split == "train" else CIFAR10.files[5:]
    # Each record is a label and a picture, red before green before blue.
    records = np.concatenate([_read(CIFAR10, file, data_dir).reshape(-1, 3073) for file in files])
    images = records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return Images(np.ascontiguousarray(images), records[:, 0].copy())


def _read(dataset: Dataset, file: File, data_dir: str | Path | None) -> UInt8[np.ndarray, " bytes"]:
    path = dataset.require(file, data_dir)
    return np.frombuffer(checked(path.read_bytes(), file, str(path)), np.uint8)


def checked(packed: bytes, file: File, where: str) -> bytes:
    """Unpack the contents of a file; raise a `DataError` if they are not as they should be."""
    content = packed
    if where.endswith(".gz"):
        try:
            # No more than expected, lest a forged file fill the memory.
            content = gzip.GzipFile(fileobj=io.BytesIO(packed)).read(file.size + 1)
        except (EOFError, OSError, zlib.error) as error:
            raise DataError(f"{where} cannot be unpacked, it is cut off or corrupt.") from error
    if len(content) != file.size:
        raise DataError(
            f"{where} has {len(content):,} bytes{' or more' if len(content) > file.size else ''}, "
            f"expected {file.size:,}: it is cut off or something else."
        )
    if (found := hashlib.sha256(content).hexdigest()) != file.sha256:
        raise DataError(f"{where} is corrupt: its SHA-256 is {found}, expected {file.sha256}.")
    return content
