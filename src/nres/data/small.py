"""Small grey versions of image data sets, which have one shape for all of them."""

import functools
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from jaxtyping import Float, UInt8

from nres.data.datasets import DATASETS, DataError, File
from nres.data.read import Images, checked, cifar10, fashion_mnist, mnist

# The weights of red, green and blue in the brightness of a pixel.
BRIGHTNESS = (0.2989, 0.587, 0.114)
# 8 x 8 versions that `tools/small_images.py` makes: all pixels, then all labels.
SMALL = {
    "mnist": File(
        "mnist-8x8.bin",
        60_000 * 65,
        "9434b3f7fac44d68e1a8ea91d3a3cd8db2d49435d85ef30a2203bf3b50377179",
    ),
    "cifar10": File(
        "cifar10-8x8.bin",
        50_000 * 65,
        "1bde1b96a490d7e7c67c39a8049125628acf5e60bfbff0c5fc78b4371659bc46",
    ),
}
READERS: Mapping[str, Callable[..., Images]] = {
    "fashion-mnist": functools.partial(fashion_mnist, 28),
    "mnist": mnist,
    "cifar10": cifar10,
}


def grey(name: str, size: int = 8, *, data_dir: str | Path | None = None) -> Images:
    """Read the training images of a data set in grey, scaled to `size` x `size`.

    Args:
        name: `"fashion-mnist"`, `"mnist"` or `"cifar10"`. The first is part of nres at size 8.
        size: The width of the images.
        data_dir: The folder of the files; by default, the usual folders are searched.

    Returns:
        The images and their labels.

    Raises:
        DataError: If the files are missing or corrupt, or there is no such data set.

    Example:
        ```python
        images, labels = nres.data.grey("cifar10")
        ```
    """
    if name not in READERS:
        raise DataError(f"no data set is called {name!r}: choose one of {', '.join(READERS)}.")
    if size == 8 and name == "fashion-mnist":
        return fashion_mnist(8)
    if size == 8 and (path := DATASETS[name].find(SMALL[name], data_dir)):
        content = np.frombuffer(checked(path.read_bytes(), SMALL[name], str(path)), np.uint8)
        pixels, labels = np.split(content, [len(content) // 65 * 64])
        return Images(pixels.reshape(-1, 8, 8, 1), labels)
    images, labels = READERS[name](data_dir=data_dir)
    weights = BRIGHTNESS if images.shape[-1] == 3 else (1.0,)
    return Images(scaled(images @ np.asarray(weights), size)[..., None], labels)


def scaled(
    images: Float[np.ndarray, "count height width"] | UInt8[np.ndarray, "count height width"],
    size: int,
) -> UInt8[np.ndarray, "count size size"]:
    """Scale square images, linearly between the centres of pixels and without smoothing.

    Args:
        images: The images.
        size: The new width, not larger than the old one.

    Returns:
        The scaled images, rounded to bytes.

    Raises:
        ValueError: If the images are not square, or smaller than `size`.
    """
    old = images.shape[1]
    if images.shape[2] != old or not 1 <= size <= old:
        raise ValueError(
            f"images of {old} x {images.shape[2]} cannot be scaled to {size} x {size}."
        )
    centres = (np.arange(size) + 0.5) * (old / size) - 0.5
    left = centres.astype(int)
    weights = np.zeros((size, old))
    weights[np.arange(size), left] += 1 - (centres - left)
    weights[np.arange(size), np.minimum(left + 1, old - 1)] += centres - left
    # Two matrix products: a contraction of three factors would go element by element.
    return np.rint(weights @ images.astype(np.float64) @ weights.T).astype(np.uint8)
