"""Make the 8 x 8 versions of MNIST and CIFAR-10 that `nres.data.grey` finds.

python tools/small_images.py FOLDER [--data-dir FOLDER]

They are small enough to be copied to a machine without the original files. `nres.data.grey` gives
the same images with or without them.
"""

import argparse
import hashlib
from pathlib import Path

from nres.data import grey
from nres.data.small import SMALL
from nres.files import replacing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="The folder for the files.")
    parser.add_argument("--data-dir", help="The folder of the original files.")
    arguments = parser.parse_args()
    for name, file in SMALL.items():
        images, labels = grey(name, data_dir=arguments.data_dir)
        content = images.tobytes() + labels.tobytes()
        print(name, hashlib.sha256(content).hexdigest())
        with replacing(arguments.folder / file.name) as partial:
            partial.write_bytes(content)


if __name__ == "__main__":
    main()
