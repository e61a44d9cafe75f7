"""Runs: folders, metrics and checkpoints are written, read back, and refused if damaged."""

import dataclasses
import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import nres
from helpers import BOUNCER, ROOT, SETTINGS, as_users_run, create_run, raises_naming
from nres import runs
from nres.checkpoint import CheckpointError, Checkpoints
from nres.progress import Progress
from nres.runs.metrics import (
    DamagedMetricsWarning,
    MetricsError,
    MetricsWriter,
    parse_entries,
    read_lines,
    rewind_metrics,
)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A complete run."""
    with as_users_run():
        run = create_run(tmp_path_factory.mktemp("runs") / "done")
        outcome = runs.execute(run)
    assert outcome.signal is None
    return run, outcome.result


def test_a_run_reads_back_as_it_was(done):
    run, result = done
    again = runs.Run.open(run.path)
    assert again.settings == run.settings
    metrics = again.metrics
    assert list(metrics["update"]) == list(range(21))
    np.testing.assert_allclose(metrics["loss"][1:], result.history.loss)
    np.testing.assert_array_equal(metrics["total_steps"][1:], result.history.total_steps)
    np.testing.assert_array_equal(metrics["sequential_steps"][1:], result.history.sequential_steps)
    evaluated = np.isfinite(metrics["eval/loss"])
    assert list(metrics["update"][evaluated]) == [0, 5, 10, 15, 20]
    np.testing.assert_array_equal(again.theta()["velocity"], result.theta["velocity"])
    config = again.config
    assert config["versions"]["jax"] == jax.__version__
    assert config["device"]["backend"] == "cpu"
    assert set(config["git"]) == {"commit", "changed"}


def test_a_run_is_what_train_does(done):
    run, result = done
    with as_users_run():
        components = runs.build(run.settings)
        plain = nres.train(
            components.estimator,
            components.optimizer,
            components.theta,
            updates=20,
            key=components.key,
        )
    np.testing.assert_array_equal(plain.theta["velocity"], result.theta["velocity"])


def test_a_complete_run_can_be_extended(done, tmp_path):
    path = shutil.copytree(done[0].path, tmp_path / "copy")
    with as_users_run():
        for updates in (None, 20):
            outcome = runs.execute(runs.Run.open(path), updates=updates)
            assert (outcome.result.state.update, len(outcome.result.history.update)) == (20, 0)
        with raises_naming(runs.RunError, 20, 3):
            runs.execute(runs.Run.open(path), updates=3)
        assert runs.Run.open(path).settings.updates == 20
        runs.execute(runs.Run.open(path), updates=30)
        whole = runs.execute(create_run(tmp_path / "whole", updates=30))
    extended = runs.Run.open(path)
    assert extended.settings.updates == 30
    np.testing.assert_array_equal(extended.theta()["velocity"], whole.result.theta["velocity"])
    np.testing.assert_array_equal(extended.metrics["loss"], whole.run.metrics["loss"])


def test_checkpoints_every_so_many_updates(tmp_path):
    with as_users_run():
        run = create_run(tmp_path / "run", checkpoint_every=5)
        runs.execute(run)
    with Checkpoints(run.path / "checkpoints", write=False) as checkpoints:
        assert checkpoints.updates() == [10, 15, 20]  # the last three


def test_folders_that_are_taken_are_left_alone(done, tmp_path):
    before = sorted(path.name for path in done[0].path.iterdir())
    with raises_naming(runs.RunError, f"nres resume {done[0].path}"):
        create_run(done[0].path)
    assert sorted(path.name for path in done[0].path.iterdir()) == before
    (tmp_path / "notes.txt").write_text("mine")
    with raises_naming(runs.RunError, tmp_path):
        create_run(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    with raises_naming(runs.RunError, tmp_path):
        runs.Run.open(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with raises_naming(runs.RunError, "config.json"):
        runs.Run.open(tmp_path)
    (tmp_path / "config.json").write_text('{"settings": {"system": "lorenz", "colour": 1}}')
    with raises_naming(runs.RunError, "colour"):
        runs.Run.open(tmp_path)


def test_one_process_at_a_time(done):
    with done[0].locked(), raises_naming(runs.RunError, done[0].path):
        runs.execute(done[0])


def damage(path, name):
    for file in (path / "checkpoints" / "20" / name).rglob("*"):
        if file.is_file() and file.parent.name == "d":
            data = bytearray(file.read_bytes())
            for i in range(0, len(data), 7):
                data[i] ^= 0x55
            file.write_bytes(data)


# Readers that orbax gives up on complain once more when they are collected.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_damaged_checkpoint_is_told_from_a_good_one(done, tmp_path):
    path = shutil.copytree(done[0].path, tmp_path / "copy")
    damage(path, "arrays")
    with as_users_run(), raises_naming(CheckpointError, path / "checkpoints" / "20", " 0"):
        runs.execute(runs.Run.open(path), updates=30)
    assert runs.Run.open(path).settings.updates == 20
    shutil.rmtree(path / "checkpoints" / "20")
    with as_users_run():
        outcome = runs.execute(runs.Run.open(path))
    np.testing.assert_array_equal(outcome.result.theta["velocity"], done[1].theta["velocity"])
    np.testing.assert_array_equal(outcome.run.metrics["loss"], done[0].metrics["loss"])


@pytest.mark.slow
def test_a_pool_of_the_users_own(tmp_path):
    """A run of a pool in a file is resumed unless the file has changed."""
    file = tmp_path / "mine.py"
    tests = Path(__file__).parent
    source = f"""
import sys
sys.path.insert(0, {str(tests)!r})
import jax.numpy as jnp
from helpers import Wave
from numpy_pool import NumpyPool

class Mine(NumpyPool):
    def __init__(self):
        super().__init__(Wave())

    def initial_theta(self, key):
        return jnp.array([0.5, -0.2])
"""
    file.write_text(source)
    settings = runs.resolve(f"{file}:Mine", "nres", sigma=0.1, lr=0.01, updates=2, workers=2)
    with as_users_run():
        run = runs.Run.create(tmp_path / "run", settings, runs.build(settings))
        runs.execute(run)
        assert runs.Run.open(run.path).components
        file.write_text(source + "# changed")
        with raises_naming(runs.RunError, "mine.py:Mine"):
            _ = runs.Run.open(run.path).components


def test_a_changed_system_is_not_continued(tmp_path):
    source = (ROOT / "examples/bouncer.py").read_text()
    file = tmp_path / "mine.py"
    file.write_text(source)
    with as_users_run():
        settings = runs.resolve(f"{file}:Bouncer", "nres", **SETTINGS)
        run = runs.Run.create(tmp_path / "run", settings, runs.build(settings))
        file.write_text(source.replace("9.8", "1.6"))
        with raises_naming(runs.RunError, "mine.py:Bouncer"):
            runs.execute(runs.Run.open(run.path))
        file.write_text("# only a remark\n" + source)
        assert runs.Run.open(run.path).components
        bigger = source.replace(
            "jnp.array([1.0, 4.0])}", "jnp.array([1.0, 4.0]), 'b': jnp.ones(1)}"
        )
        file.write_text(bigger)
        with raises_naming(runs.RunError, "mine.py:Bouncer"):
            runs.execute(runs.Run.open(run.path))


@pytest.mark.slow
def test_a_full_disk(tmp_path):
    """Files cannot grow beyond a limit: as on a full disk, writing fails in the midst of a run."""
    out = tmp_path / "run"
    command = f"""ulimit -f 300; exec {sys.executable} -m nres train {BOUNCER} --set horizon=30 \
        --sigma 0.1 --lr 0.03 --updates 400000 --log-every 1 --checkpoint-seconds 0.2 --out {out}"""
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.returncode == 1
    assert "File too large" in done.stderr
    assert "Traceback" not in done.stderr
    assert f"nres resume {out}" in done.stderr
    # What was complete before is still good.
    assert np.isfinite(runs.Run.open(out).theta()["velocity"]).all()


def entry(result, update, updates, losses, evals=None):
    steps = nres.Steps(10 * update, update)
    state = dataclasses.replace(result.state, update=update, steps=steps)
    number = np.arange(update - len(losses) + 1, update + 1)
    rows = {"update": number, "total_steps": 10 * number, "sequential_steps": number}
    rows |= {"seconds": 0.5 * number, "loss": np.array(losses, float), "grad_norm": 2.0 * number}
    rows |= dict.fromkeys(("nonfinite", "restarted", "late"), 0 * number)
    return Progress(result.theta, state, updates, rows, evals)


def test_entries_do_not_depend_on_how_updates_come(done, tmp_path):
    losses = [0.1, 0.2, math.nan, 0.4, 0.5, 0.6, 0.7]
    files = []
    for split in ([7], [1, 1, 1, 1, 1, 1, 1], [2, 5], [4, 3]):
        path = tmp_path / f"{len(files)}.jsonl"
        writer, update = MetricsWriter(path, log_every=3), 0
        for count in split:
            if len(split) == 2 and update:  # continued, with what was pending
                pending = json.loads(json.dumps(writer.pending))
                writer.close()
                writer = MetricsWriter(path, log_every=3, pending=pending)
            update += count
            writer.add(entry(done[1], update, 7, losses[update - count : update]))
        writer.close()
        files.append(path.read_text())
    assert len(set(files)) == 1
    rows = [json.loads(line) for line in files[0].splitlines()]
    assert [row["update"] for row in rows] == [3, 6, 7]
    assert rows[0]["loss"] == pytest.approx(0.15)
    assert rows[2]["loss"] == 0.7


def test_a_line_that_was_cut_off_is_tolerated(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert read_lines(path) == []
    steps = {"total_steps": 1, "sequential_steps": 1, "seconds": 0.5}
    good = [{"update": i, "loss": None} | steps for i in range(3)]
    text = "".join(json.dumps(row) + "\n" for row in good)
    path.write_text(text + '{"update": 3, "lo')
    assert read_lines(path) == good
    assert np.isnan(runs.read_metrics(path)["loss"]).all()
    rewind_metrics(path, 1, None)
    assert read_lines(path) == good[:2]
    path.write_text('{"update"\n' + text)
    with raises_naming(MetricsError, "metrics.jsonl", "line 1"):
        read_lines(path)


def test_tensorboard_files(done, tmp_path):
    writer = MetricsWriter(tmp_path / "m.jsonl", 1, tensorboard=tmp_path / "board")
    writer.add(entry(done[1], 2, 2, [0.1, 0.2], {"return": 5.0}))
    writer.close()
    (file,) = (tmp_path / "board").iterdir()
    data = file.read_bytes()
    for tag in (b"loss", b"eval/return", b"total_steps"):
        assert tag in data


def test_times_to_reach_a_level(tmp_path):
    def falling(name, stretch):
        """A run that falls from 10, by one every `stretch` updates, to 1."""
        path = tmp_path / name
        path.mkdir()
        rows = [
            {"update": u, "total_steps": 100 + 2 * u, "sequential_steps": u, "seconds": u / 4}
            | {"eval/loss": max(10 - u / stretch, 1)}
            for u in range(91)
        ]
        (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return runs.Evaluations.of(runs.Run(path, {}))

    group = {
        "nres": [falling("a", 5), falling("b", 4), falling("c", 6)],
        "pes": [falling("d", 10), falling("e", 12), falling("f", 1e9)],
        "tes": [falling("g", 1e9)],
    }
    level = runs.early_level(group["nres"])
    assert level == 2.5  # of the slowest, at update 45
    times = runs.times_to_level(group, level)
    assert times["nres"] == {
        "update": 38,
        "sequential_steps": 38,
        "total_steps": 176,
        "seconds": 9.5,
    }
    assert times["pes"]["update"] == 90
    assert times["tes"]["seconds"] == math.inf
    falling("h", 5)
    with (tmp_path / "h/metrics.jsonl").open("a") as file:
        steps = {"update": 91, "total_steps": 300, "sequential_steps": 91, "seconds": 30.0}
        file.write(json.dumps(steps | {"eval/loss": None}) + "\n")
    diverged = runs.Evaluations.of(runs.Run(tmp_path / "h", {}))
    assert runs.curves({"nres": [diverged]})["nres"]["update"].mean[-1] == math.inf
    # A lucky evaluation is not an arrival; a tenth of the updates are early, too.
    lucky = runs.Evaluations(group["tes"][0].at, np.where(np.arange(91) == 30, 0.0, 10.0))
    assert lucky.first(1.0, "update") == 30
    assert lucky.smoothed(3).first(1.0, "update") == math.inf
    assert runs.early_level(group["nres"], 0.1) == 10 - 9 / 6
    drawn = runs.curves(group)["nres"]["update"]
    np.testing.assert_allclose(drawn.mean[12], np.mean([10 - 12 / 5, 10 - 12 / 4, 8]))
    np.testing.assert_allclose([drawn.low[12], drawn.high[12]], [7, 8])


def test_a_checkpoint_vouches_for_the_metrics(tmp_path):
    path = tmp_path / "metrics.jsonl"
    writer = MetricsWriter(path, 1)
    entry = {"total_steps": 1, "sequential_steps": 1, "seconds": 0.0, "loss": 1.0}
    for update in range(4):
        writer._write({"update": update} | entry)
    writer.sync()
    written, before = writer.written(), path.read_bytes()
    writer._write({"update": 4} | entry)
    writer.close()
    rewind_metrics(path, 3, written)
    assert path.read_bytes() == before
    path.write_bytes(before.replace(b"1.0", b"2.0", 1))
    with pytest.warns(DamagedMetricsWarning, match="update 3"):
        rewind_metrics(path, 3, written)
    path.write_bytes(before + b'{"update": 4, "tot')
    entries, damage = parse_entries(path.read_bytes())
    assert (len(entries), damage) == (4, [])
