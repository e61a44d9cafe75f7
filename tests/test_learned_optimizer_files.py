"""Learned optimizers as files: exported, read back, refused, and shipped with their images."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

import nres
from helpers import as_users_run, raises_naming
from nres.cli import app
from nres.systems import learned_optimizer as lo
from nres.systems.learned_optimizer.export import OptimizerFileError
from small_tasks import KEY, small_task


class Sign(lo.LearnableOptimizer):
    def initial_theta(self, key):
        return {"log_lr": jnp.asarray(-3.0)}

    def init(self, params):
        return ()

    def update(self, theta, grads, state, params, t):
        return jax.tree.map(lambda g: -jnp.exp(theta["log_lr"]) * jnp.sign(g), grads), state


def test_files_of_optimizers(tmp_path):
    path = tmp_path / "a.npz"
    theta = {"log_lr": jnp.asarray(-1.5)}
    lo.save_optimizer(path, Sign(), theta, {"note": "mine"})
    optimizer, again, about = lo.read_optimizer(path, Sign())
    assert isinstance(optimizer, Sign)
    assert again == theta
    assert about == {"note": "mine"}
    with raises_naming(OptimizerFileError, path, "optimizer="):
        nres.load_optimizer(path)
    with raises_naming(OptimizerFileError, path, "Sign", "SGD"):
        nres.load_optimizer(path, lo.SGD())
    lo.save_optimizer(path, lo.SGD(0.3), theta)
    with raises_naming(OptimizerFileError, path, "SGD", 0.3, 0.1):
        nres.load_optimizer(path, lo.SGD())
    lo.save_optimizer(path, lo.PerParameterMLP(4, 1), jnp.zeros(7))
    with raises_naming(OptimizerFileError, path, [90], [7]):
        nres.load_optimizer(path)
    with raises_naming(OptimizerFileError, "a.bin", ".npz"):
        lo.save_optimizer(tmp_path / "a.bin", Sign(), theta)
    for content in (b"", b"PK\x03\x04 no", b"\x80\x04K\x01."):
        path.write_bytes(content)
        with raises_naming(OptimizerFileError, path):
            nres.load_optimizer(path)
    np.savez(path, description=np.array([{"a": 1}], dtype=object))
    with raises_naming(OptimizerFileError, path):
        nres.load_optimizer(path)
    with pytest.raises(FileNotFoundError):
        nres.load_optimizer(tmp_path / "none.npz")


def test_the_published_optimizer_loads():
    """The optimizer of the README is in results/."""
    path = Path(__file__).parent.parent / "results/learned-optimizer/optimizer.npz"
    optimizer, theta, about = lo.read_optimizer(path)
    assert optimizer == lo.PerParameterMLP()
    assert theta.size == 1762
    assert about["settings"]["method"] == "nres"


@pytest.mark.slow
def test_an_optimizer_comes_with_nres(tmp_path, monkeypatch):
    """Its name is enough, in Python and on the command line; a file of that name goes first."""
    monkeypatch.chdir(tmp_path)
    optimizer, theta, about = lo.read_optimizer("celo2")
    assert optimizer == lo.Celo2()
    assert sum(leaf.size for leaf in jax.tree.leaves(theta)) == 347
    assert about["settings"]["method"] == "nres"
    with as_users_run():
        learned, params = nres.load_optimizer("celo2"), {"w": jnp.ones((3, 2)), "b": jnp.ones(2)}
        updates, _ = learned.update(params, learned.init(params), params)
    # A step against the gradient, of the size of the learning rate.
    assert float((updates["w"] * params["w"]).sum()) < 0
    assert float(jnp.sqrt((updates["w"] ** 2).mean())) == pytest.approx(lo.Celo2().lr, rel=0.01)
    done = CliRunner().invoke(app, ["export", "celo2", "--to", "torch", "--out", "mine.py"])
    assert done.exit_code == 0, done.output
    assert Path("mine.safetensors").exists()
    with raises_naming(FileNotFoundError, "celo3", "celo2"):
        nres.load_optimizer("celo3")
    Path("celo2").mkdir()  # for example of a run
    nres.load_optimizer("celo2")
    Path("celo2").rmdir()
    Path("celo2").write_text("mine")
    with raises_naming(OptimizerFileError, "celo2"):
        nres.load_optimizer("celo2")


def test_the_shipped_optimizer_is_that_of_the_results():
    published = Path(__file__).parent.parent / "results/celo2-trained/celo2"
    for ending in (".npz", ".md"):
        shipped = lo.SHIPPED["celo2"].with_suffix(ending)
        assert shipped.read_bytes() == published.with_suffix(ending).read_bytes()


@pytest.mark.slow
def test_a_loaded_optimizer_takes_a_rate_or_a_schedule():
    params = {"w": jnp.ones((3, 2)), "b": jnp.ones(2)}

    def steps(lr, count=2):
        learned = nres.load_optimizer("celo2", lr=lr)
        state, found = learned.init(params), []
        for _ in range(count):
            updates, state = learned.update(params, state, params)
            found.append(np.asarray(updates["w"]))
        return found

    with as_users_run():
        plain, double = steps(None), steps(0.002)
        falling = steps(lambda step: 0.001 * (1 - step / 2))
    np.testing.assert_allclose(double, 2 * np.asarray(plain), rtol=1e-5)
    np.testing.assert_allclose(falling[0], plain[0], rtol=1e-5)
    np.testing.assert_allclose(falling[1], 0.5 * plain[1], rtol=1e-5)
    for bad in (-1.0, float("nan"), "fast"):
        with raises_naming((TypeError, ValueError), "lr"):
            nres.load_optimizer("celo2", lr=bad)


def test_files_of_deep_networks(tmp_path):
    for kind in (lo.PerParameterMLP, lo.LayeredMLP):
        optimizer = kind(width=3, depth=4)
        lo.save_optimizer(tmp_path / "deep.npz", optimizer, optimizer.initial_theta(KEY))
        assert lo.read_optimizer(tmp_path / "deep.npz")[0] == optimizer


def test_names_of_earlier_versions_are_accepted():
    """Run folders hold the old options, and checkpoints of models in several arrays old names."""
    task = lo.fashion_mnist_task(judge="capped", judged_on="train")
    assert task.outer_loss.function.args == ("capped",)
    assert task.evaluated_on is task.train
    system = lo.LearnedOptimizerSystem(small_task(), lo.Momentum(), horizon=6)
    state = system.init(system.initial_theta(KEY), KEY)
    names = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(state)]
    assert names[0] == ".params[0]['bias']"
    assert names[-1] == ".memory[1]['weight']"


def test_the_shipped_images():
    images, labels = nres.data.fashion_mnist()
    assert images.shape == (60_000, 8, 8, 1)
    assert np.bincount(labels).tolist() == [6000] * 10
    large = np.random.default_rng(0).integers(0, 256, (3, 28, 28)).astype(np.uint8)
    want = jax.image.resize(jnp.asarray(large, jnp.float32), (3, 8, 8), "bilinear", antialias=False)
    np.testing.assert_allclose(nres.data.scaled(large, 8), want, atol=0.501)


@pytest.mark.slow
def test_a_run_learns_is_exported_and_described(tmp_path):
    run = tmp_path / "run"
    command = ["train", "learned-optimizer", "--updates", "2", "--workers", "2", "--quiet"]
    options = ("horizon=4", "width=4", "depth=1", "hidden=[4]", "batch=8")
    command += [part for option in options for part in ("--set", option)] + ["--out", str(run)]
    with as_users_run():
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0, done.output
        done = CliRunner().invoke(app, ["export", str(run)])
        assert done.exit_code == 0, done.output
        card = (run / "optimizer.md").read_text()
        assert "PerParameterMLP, 90 parameters" in card
        assert "310 parameters" in card
        _, theta, about = lo.read_optimizer(run / "optimizer.npz")
        np.testing.assert_array_equal(theta, nres.runs.Run.open(run).theta())
        assert about["settings"]["workers"] == 2
        assert json.loads((run / "config.json").read_text())["settings"]["lr"] == "0.0003"
        done = CliRunner().invoke(
            app, ["train", "learned-optimizer-cifar10", "--data-dir", str(run)]
        )
        assert done.exit_code == 2
        assert "data_batch_1.bin" in " ".join(done.output.split())
