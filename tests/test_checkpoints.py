"""Checkpoints: any tree of arrays is written, checked and read back."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import nres
from helpers import raises_naming
from nres.checkpoint import CheckpointError, Checkpoints


def test_a_flipped_number_is_noticed(tmp_path, monkeypatch):
    tree = {"x": np.arange(6.0), "n": np.int32(3)}
    with Checkpoints(tmp_path / "c") as checkpoints:
        checkpoints.save(1, tree, {"a": 1})
        checkpoints.wait()
        back, metadata = checkpoints.restore(1, tree)
        np.testing.assert_array_equal(back["x"], tree["x"])
        assert metadata == {"a": 1}
        monkeypatch.setattr(nres.checkpoint, "_checksum", lambda leaf: 0)
        with raises_naming(CheckpointError, "['n']"):
            checkpoints.restore(1, tree)


def test_later_changes_do_not_reach_a_checkpoint(tmp_path):
    """A checkpoint is written in the background while the caller changes the arrays."""
    pending, x = {"loss": [0.0]}, np.zeros(3)
    with Checkpoints(tmp_path / "c", keep=20) as checkpoints:
        for update in range(12):
            x[:], pending["loss"][0] = update, update
            checkpoints.save(update, {"x": x}, {"pending": pending})
            x[:], pending["loss"][0] = -1, -1
        checkpoints.wait()
        for update in checkpoints.updates():
            tree, metadata = checkpoints.restore(update, {"x": x})
            np.testing.assert_array_equal(tree["x"], update)
            assert metadata["pending"]["loss"] == [update]


def test_arrays_that_earlier_versions_saved_are_left_out(tmp_path):
    class Old(eqx.Module):
        x: np.ndarray
        unlocked_total: np.ndarray
        unlocked_sequential: np.ndarray

    class New(eqx.Module):
        x: np.ndarray

    old = Old(np.arange(3.0), np.zeros(4, np.int32), np.zeros((), np.int32))
    with Checkpoints(tmp_path / "c") as checkpoints:
        checkpoints.save(1, {"estimator": old}, {})
        checkpoints.wait()
        back, _ = checkpoints.restore(1, {"estimator": New(np.zeros(3))})
        np.testing.assert_array_equal(back["estimator"].x, old.x)


def test_a_reader_leaves_no_trace(tmp_path):
    with Checkpoints(tmp_path / "none", write=False) as checkpoints:
        assert checkpoints.updates() == []
    assert not (tmp_path / "none").exists()


def test_a_foreign_checkpoint_is_refused(tmp_path):
    import orbax.checkpoint as ocp

    with ocp.CheckpointManager(tmp_path / "c") as manager:
        arrays = ocp.args.StandardSave({"x": np.zeros(2)})
        manager.save(3, args=ocp.args.Composite(state=arrays))
        manager.save(4, args=ocp.args.Composite(facts=ocp.args.JsonSave({"mine": 1})))
    with Checkpoints(tmp_path / "c") as checkpoints:
        with raises_naming(CheckpointError, "c/3"):
            checkpoints.restore(3, {"x": np.zeros(2)})
        with raises_naming(CheckpointError, "c/4"):
            checkpoints.restore(4, {"x": np.zeros(2)})


def test_checkpoints_of_any_tree(tmp_path):
    tree = {
        "key": jax.random.split(jax.random.key(1), 3),
        "other": jax.random.key(2, impl="rbg"),
        "half": jnp.ones(2, jnp.bfloat16),
        "empty": jnp.zeros((0, 2)),
        "host": np.arange(3),
        "nothing": None,
    }
    with Checkpoints(tmp_path / "c", keep=2) as checkpoints:
        for update in (1, 2, 3):
            checkpoints.save(update, tree, {})
        checkpoints.wait()
        assert checkpoints.updates() == [2, 3]
        back, _ = checkpoints.restore(3, jax.eval_shape(lambda: tree) | {"host": tree["host"]})
        with raises_naming(CheckpointError, "['half']"):
            checkpoints.restore(3, tree | {"half": jnp.ones(2)})
        with raises_naming(CheckpointError, "5", "6"):
            checkpoints.restore(3, tree | {"zzz": jnp.ones(2)})
    assert isinstance(back["host"], np.ndarray)
    np.testing.assert_array_equal(jax.random.bits(back["other"]), jax.random.bits(tree["other"]))
    np.testing.assert_array_equal(
        jax.random.key_data(back["key"]), jax.random.key_data(tree["key"])
    )
    assert back["half"].dtype == jnp.bfloat16
    assert back["empty"].shape == (0, 2)
