"""Make the 8 x 8 images of Fashion-MNIST that nres ships from the original files.

python tools/fashion_mnist.py [--check] [--data-dir FOLDER]

On Debian, the package dataset-fashion-mnist contains the original files, whose SHA-256 is checked.
Pixels are interpolated linearly between half-pixel centres, without smoothing, and rounded to
bytes.
"""

import argparse
import sys
from pathlib import Path

import numpy as np

from nres.data import fashion_mnist, scaled
from nres.data.read import SHIPPED
from nres.files import replacing

TARGET = Path(__file__).parents[1] / "src/nres/data" / SHIPPED


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="Only compare with the shipped file.")
    parser.add_argument("--data-dir", help="The folder of the original files.")
    arguments = parser.parse_args()
    images, labels = fashion_mnist(28, data_dir=arguments.data_dir)
    small = scaled(images[..., 0], 8)
    if arguments.check:
        shipped = fashion_mnist(8)
        if not np.array_equal(shipped.images[..., 0], small) or not np.array_equal(
            shipped.labels, labels
        ):
            sys.exit(f"{TARGET} differs from the original files: run this script without --check.")
        return
    with replacing(TARGET) as partial:
        np.savez_compressed(partial, images=small, labels=labels)


if __name__ == "__main__":
    main()
