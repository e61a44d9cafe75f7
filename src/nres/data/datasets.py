"""Data sets, their files, and the folders to search for them."""

import dataclasses
import os
from pathlib import Path


class DataError(ValueError):
    """Error for data that is missing or corrupt."""


@dataclasses.dataclass(frozen=True)
class File:
    """One file of a data set, in its authors' layout."""

    name: str
    """The name of the file."""
    size: int
    """The number of bytes, unpacked."""
    sha256: str
    """The checksum of the unpacked bytes. Packed bytes may differ between copies."""


@dataclasses.dataclass(frozen=True)
class Dataset:
    """A data set that is read from disk or downloaded."""

    name: str
    """The name of the data set, as in `nres data --download`."""
    folder: str
    """The usual name of the folder of its files."""
    files: tuple[File, ...]
    """The files."""
    url: str
    """The address of its archive, or of the folder of its files."""
    archive_sha256: str | None = None
    """The checksum of the archive, if there is one."""

    def find(self, file: File, data_dir: str | Path | None = None) -> Path | None:
        """Find a file of the data set, packed or unpacked.

        Args:
            file: One of `files`.
            data_dir: The folder to search; by default, the usual folders.

        Returns:
            The path of the file, or `None` if it is not there.
        """
        names = (file.name, file.name.removesuffix(".gz"))
        for place in places(data_dir):
            for folder in (place / self.folder, place):
                for name in names:
                    if (folder / name).is_file():
                        return folder / name
        return None

    def require(self, file: File, data_dir: str | Path | None = None) -> Path:
        """Find a file, or raise a `DataError` that says how to get it. Arguments as for `find`."""
        if found := self.find(file, data_dir):
            return found
        looked = ", ".join(str(place) for place in places(data_dir))
        raise DataError(
            f"{self.name}: {file.name} is not in {looked} (nor in a folder {self.folder} there). "
            f"Download it with `nres data --download {self.name}`, or name another folder with "
            "--data-dir or NRES_DATA_DIR."
        )


def places(data_dir: str | Path | None = None) -> list[Path]:
    """List the folders to search, in order.

    Args:
        data_dir: If given, the only folder. Otherwise the folders are `NRES_DATA_DIR` if it is
            set, the user's cache, and `/usr/share/datasets`.

    Returns:
        The folders, which need not exist.
    """
    if data_dir is not None:
        return [Path(data_dir)]
    given = os.environ.get("NRES_DATA_DIR")
    # Debian's packages of data sets install to the last one.
    return [*([Path(given)] if given else []), cache_folder(), Path("/usr/share/datasets")]


def cache_folder() -> Path:
    """Return the default folder for downloads, which is in the user's cache."""
    import platformdirs

    return platformdirs.user_cache_path("nres", appauthor=False)


FASHION_MNIST = Dataset(
    "fashion-mnist",
    "fashion-mnist",
    (
        File(
            "train-images-idx3-ubyte.gz",
            47_040_016,
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        ),
        File(
            "train-labels-idx1-ubyte.gz",
            60_008,
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        ),
        File(
            "t10k-images-idx3-ubyte.gz",
            7_840_016,
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        ),
        File(
            "t10k-labels-idx1-ubyte.gz",
            10_008,
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        ),
    ),
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
)

MNIST = Dataset(
    "mnist",
    "mnist",
    (
        File(
            "train-images-idx3-ubyte.gz",
            47_040_016,
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        ),
        File(
            "train-labels-idx1-ubyte.gz",
            60_008,
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        ),
        File(
            "t10k-images-idx3-ubyte.gz",
            7_840_016,
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        ),
        File(
            "t10k-labels-idx1-ubyte.gz",
            10_008,
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        ),
    ),
    "https://ossci-datasets.s3.amazonaws.com/mnist",
)

CIFAR10 = Dataset(
    "cifar10",
    "cifar-10-batches-bin",
    tuple(
        File(name, 30_730_000, sha256)
        for name, sha256 in (
            (
                "data_batch_1.bin",
                "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
            ),
            (
                "data_batch_2.bin",
                "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
            ),
            (
                "data_batch_3.bin",
                "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
            ),
            (
                "data_batch_4.bin",
                "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
            ),
            (
                "data_batch_5.bin",
                "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
            ),
            ("test_batch.bin", "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"),
        )
    ),
    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
)

DATASETS = {dataset.name: dataset for dataset in (FASHION_MNIST, MNIST, CIFAR10)}
