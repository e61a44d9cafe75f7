"""Readers of image data sets, which verify every file before they use it."""

import gzip
import hashlib
import importlib.resources
import io
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import UInt8

from nres.data.datasets import CIFAR10, FASHION_MNIST, MNIST, DataError, Dataset, File

SHIPPED = "fashion_mnist_8x8.npz"


class Images(NamedTuple):
    """Images and their labels."""

    images: UInt8[np.ndarray, "count height width channels"]
    """The pixels, from 0 to 255."""
    labels: UInt8[np.ndarray, " count"]
    """The class of each image, from 0 to 9."""


def fashion_mnist(
    size: int = 8, *, split: str = "train", data_dir: str | Path | None = None
) -> Images:
    """Read Fashion-MNIST: 60,000 grey images of ten kinds of clothing, and 10,000 test images.

    Args:
        size: 8 for the training images scaled to 8 x 8, which are part of nres; 28 for the
            original files.
        split: `"train"` or `"test"`; only the original files have `"test"`.
        data_dir: The folder of the original files; by default, the usual folders are searched.

    Returns:
        The images and their labels.

    Raises:
        DataError: If the files are missing or corrupt, or there is no such size and split.

    Example:
        ```python
        images, labels = nres.data.fashion_mnist()
        ```

    Reference:
        Xiao, Rasul, Vollgraf, *Fashion-MNIST*, 2017 (MIT licence).
    """
    if size not in (8, 28) or split not in ("train", "test") or (size, split) == (8, "test"):
        raise DataError(
            f"fashion-mnist comes in size 8 (train) and 28 (train, test); got {size} ({split})."
        )
    if size == 8:
        source = importlib.resources.files("nres.data").joinpath(SHIPPED)
        with source.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return Images(arrays["images"][..., None], arrays["labels"])
    return _idx(FASHION_MNIST, split, data_dir)


def mnist(*, split: str = "train", data_dir: str | Path | None = None) -> Images:
    """Read MNIST: 60,000 grey images of handwritten digits, 28 x 28, and 10,000 test images.

    Args:
        split: `"train"` or `"test"`.
        data_dir: The folder of the files; by default, the usual folders are searched.

    Returns:
        The images and their labels.

    Raises:
        DataError: If the files are missing or corrupt, or there is no such split.

    Reference:
        LeCun, Bottou, Bengio, Haffner, *Gradient-based learning applied to document
        recognition*, 1998.
    """
    _check_split("mnist", split)
    return _idx(MNIST, split, data_dir)


def _check_split(name: str, split: str) -> None:
    if split not in ("train", "test"):
        raise DataError(f"{name} has the splits train and test, got {split!r}.")


def _idx(dataset: Dataset, split: str, data_dir: str | Path | None) -> Images:
    images_file, labels_file = dataset.files[:2] if split == "train" else dataset.files[2:]
    images = _read(dataset, images_file, data_dir)[16:].reshape(-1, 28, 28, 1)
    return Images(images, _read(dataset, labels_file, data_dir)[8:])


def cifar10(*, split: str = "train", data_dir: str | Path | None = None) -> Images:
    """Read CIFAR-10: 50,000 colour images of ten classes, 32 x 32, and 10,000 test images.

    The files must be those of the authors' binary version.

    Args:
        split: `"train"` or `"test"`.
        data_dir: The folder of the files; by default, the usual folders are searched.

    Returns:
        The images and their labels.

    Raises:
        DataError: If the files are missing or corrupt, or there is no such split.

    Reference:
        Krizhevsky, *Learning multiple layers of features from tiny images*, 2009.
    """
    _check_split("cifar10", split)
    files = CIFAR10.files[:5] if split == "train" else CIFAR10.files[5:]
    # Each record is a label and an image, first all red values, then green, then blue.
    records = np.concatenate([_read(CIFAR10, file, data_dir).reshape(-1, 3073) for file in files])
    images = records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return Images(np.ascontiguousarray(images), records[:, 0].copy())


def _read(dataset: Dataset, file: File, data_dir: str | Path | None) -> UInt8[np.ndarray, " bytes"]:
    path = dataset.require(file, data_dir)
    return np.frombuffer(checked(path.read_bytes(), file, str(path)), np.uint8)


def checked(packed: bytes, file: File, where: str) -> bytes:
    """Unpack and verify the contents of a file; raise a `DataError` if they are corrupt."""
    content = packed
    if where.endswith(".gz"):
        try:
            # Read no more than expected, so that a forged file cannot fill the memory.
            content = gzip.GzipFile(fileobj=io.BytesIO(packed)).read(file.size + 1)
        except (EOFError, OSError, zlib.error) as error:
            raise DataError(f"{where} cannot be unpacked: it is truncated or corrupt.") from error
    if len(content) != file.size:
        raise DataError(
            f"{where} has {len(content):,} bytes{' or more' if len(content) > file.size else ''}, "
            f"expected {file.size:,}: it is truncated, or another file."
        )
    if (found := hashlib.sha256(content).hexdigest()) != file.sha256:
        raise DataError(f"{where} is corrupt: its SHA-256 is {found}, expected {file.sha256}.")
    return content
