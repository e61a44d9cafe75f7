"""Data sets: found, refused where they are damaged, and downloaded from a local server."""

import contextlib
import dataclasses
import functools
import gzip
import hashlib
import http.server
import io
import tarfile
import threading

import numpy as np
import pytest
from typer.testing import CliRunner

import nres
from helpers import raises_naming
from nres.cli import app
from nres.data import DataError, datasets, read
from nres.data import small as small_module
from nres.data.datasets import File


def file_of(name, content):
    return File(name, len(content), hashlib.sha256(content).hexdigest())


@pytest.fixture
def contents(monkeypatch):
    """Data sets of the same form, with two images in a file."""
    generator = np.random.default_rng(0)
    contents = {}
    for name, header, size in (
        ("train-images-idx3-ubyte.gz", 16, 784),
        ("train-labels-idx1-ubyte.gz", 8, 1),
        ("t10k-images-idx3-ubyte.gz", 16, 784),
        ("t10k-labels-idx1-ubyte.gz", 8, 1),
    ):
        contents[name] = bytes(header) + generator.bytes(2 * size)
    for file in datasets.CIFAR10.files:
        records = generator.integers(0, 256, (2, 3073)).astype(np.uint8)
        records[:, 0] %= 10
        contents[file.name] = records.tobytes()
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        for file in datasets.CIFAR10.files:
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{file.name}")
            member.size = len(contents[file.name])
            tar.addfile(member, io.BytesIO(contents[file.name]))
    contents["cifar-10-binary.tar.gz"] = archive.getvalue()
    sha256 = hashlib.sha256(archive.getvalue()).hexdigest()
    for name in ("FASHION_MNIST", "MNIST", "CIFAR10"):
        old = getattr(datasets, name)
        files = tuple(file_of(file.name, contents[file.name]) for file in old.files)
        new = dataclasses.replace(old, files=files, archive_sha256=old.archive_sha256 and sha256)
        for module in (datasets, read, nres.data):
            monkeypatch.setattr(module, name, new)
        monkeypatch.setitem(datasets.DATASETS, old.name, new)
    return contents


def place(folder, contents, *, packed=True):
    for name, content in contents.items():
        if name.endswith(".bin"):
            targets = [folder / "cifar-10-batches-bin" / name]
        elif "ubyte" in name:
            file = name if packed else name.removesuffix(".gz")
            targets = [folder / dataset / file for dataset in ("fashion-mnist", "mnist")]
            content = gzip.compress(content) if packed else content
        else:
            continue
        for target in targets:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)


def test_files_are_read_as_they_are_laid_out(tmp_path, contents, monkeypatch):
    place(tmp_path, contents)
    images, labels = nres.data.fashion_mnist(28, data_dir=tmp_path)
    raw = contents["train-images-idx3-ubyte.gz"]
    assert images.shape == (2, 28, 28, 1)
    assert images[1, 2, 3, 0] == raw[16 + 784 + 2 * 28 + 3]
    assert labels.tolist() == list(contents["train-labels-idx1-ubyte.gz"][8:])
    place(tmp_path / "plain", contents, packed=False)
    monkeypatch.setenv("NRES_DATA_DIR", str(tmp_path / "plain"))
    other = nres.data.fashion_mnist(28, split="test")
    assert other.images[0, 0, 0, 0] == contents["t10k-images-idx3-ubyte.gz"][16]
    images, labels = nres.data.cifar10()
    assert images.shape == (10, 32, 32, 3)
    record = contents["data_batch_2.bin"][3073:]
    assert labels[3] == record[0]
    assert images[3, 4, 5].tolist() == [record[1 + c * 1024 + 4 * 32 + 5] for c in range(3)]
    assert nres.data.cifar10(split="test").images.shape == (2, 32, 32, 3)


def test_damaged_files_are_named(tmp_path, contents):
    with raises_naming(DataError, "train-images", tmp_path, "nres data --download fashion-mnist"):
        nres.data.fashion_mnist(28, data_dir=tmp_path)
    place(tmp_path, contents)
    path = tmp_path / "fashion-mnist" / "train-images-idx3-ubyte.gz"
    whole = path.read_bytes()
    path.write_bytes(whole[:-50])
    with raises_naming(DataError, path):
        nres.data.fashion_mnist(28, data_dir=tmp_path)
    path.write_bytes(gzip.compress(bytes(100)))
    with raises_naming(DataError, path, "100", "1,584"):
        nres.data.fashion_mnist(28, data_dir=tmp_path)
    path = tmp_path / "cifar-10-batches-bin" / "data_batch_3.bin"
    path.write_bytes(b"x" + path.read_bytes()[1:])
    with raises_naming(DataError, path):
        nres.data.cifar10(data_dir=tmp_path)
    for bad in ({"size": 9}, {"size": 8, "split": "test"}, {"split": "dev"}):
        with raises_naming(DataError, *bad.values()):
            nres.data.fashion_mnist(**bad)
    with raises_naming(DataError, "dev"):
        nres.data.cifar10(split="dev")


@contextlib.contextmanager
def served(folder):
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *arguments):
            pass

    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_downloads(tmp_path, contents):
    site, out = tmp_path / "site", tmp_path / "out"
    place(site, contents)
    (site / "cifar-10-binary.tar.gz").write_bytes(contents["cifar-10-binary.tar.gz"])
    runner = CliRunner()
    with served(site) as url:
        command = ["data", "--download", "fashion-mnist", "--data-dir", str(out)]
        done = runner.invoke(app, [*command, "--url", f"{url}/fashion-mnist"])
        assert done.exit_code == 0, done.output
        command = ["data", "--download", "cifar10", "--data-dir", str(out)]
        done = runner.invoke(app, [*command, "--url", f"{url}/cifar-10-binary.tar.gz"])
        assert done.exit_code == 0, done.output
        command = ["data", "--download", "mnist", "--data-dir", str(out), "--url", f"{url}/mnist"]
        assert runner.invoke(app, command).exit_code == 0
        assert nres.data.mnist(data_dir=out).images.shape == (2, 28, 28, 1)
        assert nres.data.cifar10(data_dir=out).labels.shape == (10,)
        assert nres.data.fashion_mnist(28, data_dir=out).labels.shape == (2,)
        done = runner.invoke(app, ["data", "--data-dir", str(out)])
        assert "not found" not in done.output
        # What is there is not fetched again, wherever the address leads; what is damaged is.
        nres.data.download(nres.data.CIFAR10, out, url="http://127.0.0.1:9/none")
        damaged = out / "cifar-10-batches-bin" / "data_batch_4.bin"
        damaged.write_bytes(b"x")
        nres.data.download(nres.data.CIFAR10, out, url=f"{url}/cifar-10-binary.tar.gz")
        assert damaged.read_bytes() == contents["data_batch_4.bin"]

        # Nothing that is wrong gets a place on the disk.
        (site / "fashion-mnist" / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(b"wrong"))
        (site / "cifar-10-binary.tar.gz").write_bytes(b"wrong")
        bad = tmp_path / "bad"
        with raises_naming(DataError, "t10k-labels", "5", "10"):
            nres.data.download(nres.data.FASHION_MNIST, bad, url=f"{url}/fashion-mnist")
        with raises_naming(DataError, "cifar-10-binary.tar.gz", "SHA-256"):
            nres.data.download(nres.data.CIFAR10, bad, url=f"{url}/cifar-10-binary.tar.gz")
        with raises_naming(DataError, f"{url}/other.tar.gz", "404"):
            nres.data.download(nres.data.CIFAR10, bad, url=f"{url}/other.tar.gz")
        with raises_naming(DataError, "nowhere/at/all"):
            nres.data.download(nres.data.CIFAR10, bad, url="nowhere/at/all")
        (site / "cifar-10-binary.tar.gz").write_bytes(bytes(2 << 20))
        with raises_naming(DataError, "cifar-10-binary.tar.gz"):
            nres.data.download(nres.data.CIFAR10, bad, url=f"{url}/cifar-10-binary.tar.gz")
        assert not bad.exists()
    done = runner.invoke(app, ["data", "--download", "svhn"])
    assert done.exit_code == 2
    assert "fashion-mnist, mnist, cifar10" in done.output


def test_small_grey_images(tmp_path, contents, monkeypatch):
    """Scaled between the centres of pixels, and the same from a file of small images."""
    place(tmp_path, contents)
    colours = nres.data.cifar10(data_dir=tmp_path)
    small = nres.data.grey("cifar10", data_dir=tmp_path)
    assert small.images.shape == (10, 8, 8, 1)
    brightness = colours.images @ np.array([0.2989, 0.587, 0.114])
    # The centre of pixel (i, j) lies between the old pixels 4i + 1 and 4i + 2.
    middle = [brightness[:, 1 + a :: 4, 1 + b :: 4] for a in (0, 1) for b in (0, 1)]
    np.testing.assert_allclose(small.images[..., 0], np.mean(middle, axis=0), atol=0.501)
    np.testing.assert_array_equal(small.labels, colours.labels)
    content = small.images.tobytes() + small.labels.tobytes()
    monkeypatch.setitem(small_module.SMALL, "cifar10", file_of("cifar10-8x8.bin", content))
    copied = tmp_path / "copied"
    copied.mkdir()
    (copied / "cifar10-8x8.bin").write_bytes(content)
    again = nres.data.grey("cifar10", data_dir=copied)
    np.testing.assert_array_equal(again.images, small.images)
    np.testing.assert_array_equal(again.labels, small.labels)
    (copied / "cifar10-8x8.bin").write_bytes(content[:-1])
    with raises_naming(DataError, "cifar10-8x8.bin"):
        nres.data.grey("cifar10", data_dir=copied)
    assert nres.data.grey("mnist", 14, data_dir=tmp_path).images.shape == (2, 14, 14, 1)
    with raises_naming(DataError, "svhn"):
        nres.data.grey("svhn")
    for width, size in ((4, 5), (4, 0), (3, 2)):
        with raises_naming(ValueError, "cannot be scaled"):
            nres.data.scaled(np.zeros((1, 4, width)), size)
