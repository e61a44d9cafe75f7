"""Learned optimizers for other libraries: names, layouts and damaged files; no torch needed."""

import ast
import itertools
import json

import jax
import msgpack
import numpy as np
import pytest
from typer.testing import CliRunner

from helpers import raises_naming
from nres.cli import app
from nres.systems import learned_optimizer as lo
from nres.systems.learned_optimizer.export import OptimizerFileError

KEY = jax.random.key(8)
CELO2 = lo.Celo2(lr=0.002)
THETA = CELO2.initial_theta(KEY)


def safetensors(path):
    """Read a file as the format's description says: a length, a header, and all numbers."""
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header, data = json.loads(content[8 : 8 + size]), content[8 + size :]
    assert size % 8 == 0
    about = header.pop("__metadata__")
    ends = sorted(tuple(entry["data_offsets"]) for entry in header.values())
    assert ends[0][0] == 0
    assert ends[-1][1] == len(data)
    assert all(a[1] == b[0] for a, b in itertools.pairwise(ends))
    arrays = {
        name: np.frombuffer(data[slice(*entry["data_offsets"])], "<f4").reshape(entry["shape"])
        for name, entry in header.items()
    }
    return arrays, about


def test_weights_for_pylo_have_its_names(tmp_path):
    (path,) = lo.write_for("pylo", tmp_path / "x.safetensors", CELO2, THETA)
    arrays, _ = safetensors(path)
    groups = [arrays[f"w0.{i}"] for i in range(14)]
    assert [len(group) for group in groups] == [1, 1, 1, 3, 1, 3, 1, 3, 1, 3, 3, 3, 3, 3]
    np.testing.assert_array_equal(np.concatenate(groups), THETA[0]["weight"])
    np.testing.assert_array_equal(arrays["dense_w.1"], THETA[2]["weight"])
    np.testing.assert_array_equal(arrays["dense_b.0"], THETA[1]["bias"])
    assert len(arrays) == 14 + 5


def test_weights_of_celo2s_authors_are_read_and_written(tmp_path):
    (path,) = lo.write_for("celo2", tmp_path / "x.msgpack", CELO2, THETA)
    jax.tree.map(np.testing.assert_array_equal, lo.read_celo2(path), THETA)
    flat = msgpack.unpackb(path.read_bytes())  # arrays stay packed
    nested = {"params": {f"net/~/{name}": array for name, array in flat.items()}, "step": 7}
    path.write_bytes(msgpack.packb(nested))
    jax.tree.map(np.testing.assert_array_equal, lo.read_celo2(path), THETA)


def test_files_that_hold_no_celo2_are_refused(tmp_path):
    (path,) = lo.write_celo2(tmp_path / "x.msgpack", CELO2, THETA)
    good = path.read_bytes()
    nan = [{**layer, "bias": layer["bias"] * np.nan} for layer in THETA]
    lo.write_celo2(path, CELO2, nan)
    infinite = path.read_bytes()
    for bad in (
        *(b"", b"\x80", b"\x07", b"\xc0", b"nonsense", good[:100], infinite),
        good.replace(b"w0__3", b"w0_13"),
    ):
        path.write_bytes(bad)
        with raises_naming(OptimizerFileError, "x.msgpack"):
            lo.read_celo2(path)


@pytest.mark.parametrize(
    "optimizer",
    [CELO2, lo.AdafactorMLP(width=3), lo.PerParameterMLP(4, 1)],
    ids=lambda o: type(o).__name__,
)
def test_a_module_for_torch_needs_torch_alone(optimizer, tmp_path):
    theta = optimizer.initial_theta(KEY)
    code, weights = lo.write_for("torch", tmp_path / "mine.py", optimizer, theta)
    tree = ast.parse(code.read_text())
    imported = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    assert imported == {"json", "math", "pathlib", "torch"}
    assert "from mine import LearnedOptimizer" in ast.get_docstring(tree)
    arrays, about = safetensors(weights)
    assert about["optimizer"] == type(optimizer).__name__
    assert sum(x.size for x in arrays.values()) == sum(x.size for x in jax.tree.leaves(theta))


def test_what_cannot_be_written_is_refused(tmp_path):
    names = {"torch": "my-optimizer.py", "pylo": "x.npz", "celo2": "x.npz", "keras": "x.h5"}
    for name in ("json.py", "class.py"):
        with raises_naming(OptimizerFileError, name):
            lo.write_for("torch", tmp_path / name, CELO2, THETA)
    with raises_naming(OptimizerFileError, "keras"):
        lo.write_for("keras", tmp_path / names.pop("keras"), CELO2, THETA)
    for library, name in names.items():
        with raises_naming(OptimizerFileError, name):
            lo.write_for(library, tmp_path / name, CELO2, THETA)
    momentum = lo.Momentum()
    for library, name in {"torch": "x.py", "pylo": "x.safetensors", "celo2": "x.msgpack"}.items():
        with raises_naming(OptimizerFileError, "Momentum"):
            lo.write_for(library, tmp_path / name, momentum, momentum.initial_theta(KEY))

    class Changed(lo.PerParameterMLP):
        """Its steps are others, which torch would not make."""

    with raises_naming(OptimizerFileError, "Changed"):
        lo.write_for("torch", tmp_path / "x.py", Changed(), Changed().initial_theta(KEY))
    assert list(tmp_path.iterdir()) == []


def test_the_command_converts_a_file(tmp_path):
    source = tmp_path / "mine.npz"
    lo.save_optimizer(source, CELO2, THETA, {"learned": "somewhere"})
    for library, ending in lo.FORMATS.items():
        out = tmp_path / f"{library}_weights{ending}"
        given = ["export", str(source), "--to", library, "--out", str(out)]
        done = CliRunner().invoke(app, given)
        assert done.exit_code == 0, done.output
        assert out.exists()
    assert lo.read_optimizer(tmp_path / "optax_weights.npz")[2] == {"learned": "somewhere"}
    assert safetensors(tmp_path / "torch_weights.safetensors")[1]["optimizer"] == "Celo2"
    assert "w0.13" in safetensors(tmp_path / "pylo_weights.safetensors")[0]
    lo.read_celo2(tmp_path / "celo2_weights.msgpack")
    for bad, culprit in (
        (["--to", "keras"], "keras"),
        (["--to", "torch", "--out", "x.npz"], ".py"),
        (["--out", str(source)], "mine.npz"),
        (["--best", "--to", "celo2"], "--best"),
        (["--to", "pylo", "--out", str(tmp_path / "torch_weights.safetensors")], "module"),
    ):
        done = CliRunner().invoke(app, ["export", str(source), *bad])
        assert done.exit_code > 0
        assert culprit in done.output.replace("\n", "")
