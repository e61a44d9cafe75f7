"""Runs that were damaged, deleted, begun twice or left half-finished."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from helpers import BOUNCER, SETTINGS, as_users_run, create_run, invoke, raises_naming
from nres import runs
from nres.checkpoint import CheckpointError, Checkpoints

# Processes that are started, signalled and killed.
pytestmark = [pytest.mark.usefixtures("undrawn"), pytest.mark.slow]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of 24 updates."""
    with as_users_run():
        run = create_run(tmp_path_factory.mktemp("runs") / "whole", updates=24, eval_every=3)
        return runs.execute(run).run


@pytest.fixture(scope="module")
def half(tmp_path_factory):
    """The same run, ended after 12 of its updates."""
    with as_users_run():
        run = create_run(tmp_path_factory.mktemp("runs") / "half", updates=24, eval_every=3)
        outcome = runs.execute(run, callback=lambda progress: progress.state.update >= 12)
    assert 12 <= outcome.result.state.update < 24
    return run


def lines_of(path):
    return (path / "metrics.jsonl").read_text().splitlines(keepends=True)


def shuffled(lines):
    random.Random(0).shuffle(lines)
    return lines


def changed(lines, number, **values):
    entry = json.loads(lines[number]) | values
    return [*lines[:number], json.dumps(entry) + "\n", *lines[number + 1 :]]


DAMAGE = {
    "emptied": lambda lines: [],
    "shuffled": shuffled,
    "lines lost": lambda lines: lines[:2] + lines[4:],
    "a line twice": lambda lines: [lines[0], *lines],
    "wrong type": lambda lines: changed(lines, 3, loss="low"),
    "wrong number": lambda lines: changed(lines, 3, loss=12345.0),
    "text for a count": lambda lines: changed(lines, 3, update="3"),
    "a count too large": lambda lines: changed(lines, 3, total_steps=10**30),
    "a boolean": lambda lines: changed(lines, 3, update=True),
    "no entry": lambda lines: ["[1, 2]\n", *lines],
    "not JSON": lambda lines: [*lines[:3], "{\n", *lines[3:]],
    "deep": lambda lines: ["[" * 100_000 + "\n", *lines],
    "not UTF-8": lambda lines: ["\udcff\udcfe\n", *lines],
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_metrics(kind, half, whole, tmp_path):
    """Reading skips what is damaged and says so; resuming goes on from the checkpoint."""
    path = shutil.copytree(half.path, tmp_path / "run")
    intact = lines_of(path)
    damaged = "".join(DAMAGE[kind](list(intact))).encode("utf-8", "surrogateescape")
    (path / "metrics.jsonl").write_bytes(damaged)
    told = kind not in ("emptied", "lines lost", "wrong number")  # which only a checkpoint knows
    for command in ("show", "plot"):
        looked = invoke(command, path)
        if kind == "emptied" and command == "plot":
            assert str(path) in looked.stderr
            continue
        assert looked.exit_code == 0, looked.output
        assert ("line " in looked.stderr) == told
    resumed = invoke("resume", path)
    assert resumed.exit_code == 0, resumed.output
    mended = kind in ("shuffled", "a line twice", "no entry", "not JSON", "deep", "not UTF-8")
    assert ("metrics.damaged.jsonl" in resumed.stderr) != mended
    if not mended:
        assert (path / "metrics.damaged.jsonl").read_bytes() == damaged
    with as_users_run():
        run = runs.Run.open(path)
        np.testing.assert_array_equal(run.theta()["velocity"], whole.theta()["velocity"])
    if mended:  # nothing was lost
        assert lines_of(path)[: len(intact)] == intact
        np.testing.assert_array_equal(run.metrics["loss"], whole.metrics["loss"])
    assert (np.diff(run.metrics["update"]) > 0).all()
    assert run.metrics["update"][-1] == 24


def test_a_checkpoint_that_claims_another_update_is_damaged(half, tmp_path):
    path = shutil.copytree(half.path, tmp_path / "run")
    newest = max((path / "checkpoints").glob("[0-9]*"), key=lambda folder: int(folder.name))
    file = newest / "facts" / "metadata"
    facts = json.loads(file.read_text())
    for damage in (
        lambda f: f["facts"].update(update=int(newest.name) + 1),
        lambda f: f["facts"].update(seconds=1e9),
        lambda f: f.update(facts=[]),
        lambda f: f["leaves"][0].update(stored_shape=[10**15]),
        lambda f: f["leaves"][0].update(stored="nothing"),
        lambda f: f["leaves"].pop(),
        lambda f: f.pop("leaves"),
    ):
        other = json.loads(json.dumps(facts))
        damage(other)
        file.write_text(json.dumps(other))
        refused = invoke("resume", path)
        assert refused.exit_code == 1
        assert len(refused.stderr.strip().splitlines()) == 1
        assert newest.name in refused.stderr
    # Checkpoints of earlier versions have no checksum of their facts, nor of the metrics.
    facts.pop("crc32")
    facts["facts"].pop("metrics")
    file.write_text(json.dumps(facts))
    assert invoke("resume", path).exit_code == 0


CONFIGS = {
    "not an object": lambda c: [c],
    "no settings": lambda c: {},
    "settings of text": lambda c: c | {"settings": "nres"},
    "workers of text": lambda c: c | {"settings": c["settings"] | {"workers": "many"}},
    "negative window": lambda c: c | {"settings": c["settings"] | {"window": -3}},
    "no such method": lambda c: c | {"settings": c["settings"] | {"method": "magic"}},
    "options of a list": lambda c: c | {"settings": c["settings"] | {"options": [1]}},
    "a boolean": lambda c: c | {"settings": c["settings"] | {"updates": True}},
    "sigma": lambda c: c | {"settings": c["settings"] | {"sigma": "-1"}},
    "a start elsewhere": lambda c: c | {"start": "../../etc/passwd"},
}


@pytest.mark.parametrize("kind", CONFIGS)
def test_damaged_configs(kind, half, tmp_path):
    path = shutil.copytree(half.path, tmp_path / "run")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(CONFIGS[kind](config)))
    refused = invoke("resume", path)
    assert refused.exit_code == 1
    assert "config.json" in refused.stderr
    assert len(refused.stderr.strip().splitlines()) == 1


def test_settings_that_were_edited_are_noticed(half, tmp_path):
    path = shutil.copytree(half.path, tmp_path / "run")
    config = json.loads((path / "config.json").read_text())
    for name, value in (("lr", "0.09"), ("seed", 7), ("optimizer", "adam")):
        settings = config["settings"] | {name: value}
        (path / "config.json").write_text(json.dumps(config | {"settings": settings}))
        refused = invoke("resume", path)
        if value == config["settings"][name]:
            assert refused.exit_code == 0
            continue
        assert refused.exit_code == 1
        assert name in refused.stderr or str(path) in refused.stderr


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("checkpoints/best.npz", ["evaluate", "--best"]),
        ("checkpoints/12/_CHECKPOINT_METADATA", ["evaluate"]),
        ("checkpoints/12/facts/metadata", ["resume"]),
        ("checkpoints/12/_CHECKPOINT_METADATA", ["train", BOUNCER, "--from"]),
    ],
)
def test_pipes_devices_and_nests_among_checkpoints(name, command, whole, tmp_path):
    with as_users_run():
        run = create_run(tmp_path / "run", updates=12, eval_every=12)
        runs.execute(run)
    file = run.path / name
    if command[0] == "train":
        command = [*command, run.path, "--sigma", 0.1, "--lr", 1, "--out", tmp_path / "next"]
    else:
        command = [command[0], run.path, *command[1:]]
    for damage in (
        os.mkfifo,
        lambda f: f.symlink_to("/dev/zero"),
        lambda f: f.write_text("[" * 100_000),
    ):
        file.unlink()
        damage(file)
        refused = invoke(*command)
        assert refused.exit_code in (1, 2), refused.output
        assert len(refused.stderr.strip().splitlines()) == 1
        assert len(refused.stderr) < 600


def test_a_number_of_updates_that_cannot_be_leaves_the_run_alone(half, tmp_path):
    path = shutil.copytree(half.path, tmp_path / "run")
    before = (path / "config.json").read_bytes()
    assert invoke("resume", path, "--updates", 10**10).exit_code == 2
    with as_users_run(), raises_naming(ValueError, "updates", 10**10):
        runs.execute(runs.Run.open(path), updates=10**10)
    assert (path / "config.json").read_bytes() == before


def test_metadata_that_is_only_shown_may_be_missing(half, tmp_path):
    path = shutil.copytree(half.path, tmp_path / "run")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({"settings": config["settings"], "device": 3}))
    for command in ("show", "plot", "evaluate", "resume"):
        assert invoke(command, path).exit_code == 0
    assert invoke("report", path, "--out", tmp_path / "page.html").exit_code == 0


def test_a_run_killed_after_its_last_checkpoint_is_finished(whole, tmp_path):
    path = shutil.copytree(whole.path, tmp_path / "run")
    (path / "figure.png").unlink(missing_ok=True)
    before = (path / "metrics.jsonl").read_bytes()
    with (path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"update": 25, "tot')
    result = invoke("resume", path)
    assert result.exit_code == 0, result.output
    assert "24 of 24 updates: the run was complete" in result.output
    assert (path / "figure.png").exists()
    assert (path / "metrics.jsonl").read_bytes() == before


def test_a_folder_deleted_under_a_run_is_noticed(tmp_path):
    with as_users_run():
        run = create_run(tmp_path / "run", updates=100_000)

        def delete(progress):
            if progress.state.update > 10:
                shutil.rmtree(run.path)

        with raises_naming(runs.RunError, "metrics.jsonl"):
            runs.execute(run, callback=delete)


def test_a_rotated_checkpoint_is_not_taken_for_a_damaged_one(whole, tmp_path, monkeypatch):
    """While a run goes on, the newest checkpoint of a moment ago may be gone."""
    path = shutil.copytree(whole.path, tmp_path / "run")
    run = runs.Run.open(path)
    found = Checkpoints.updates

    def outdated(self):
        """A checkpoint that is gone when it is read."""
        monkeypatch.setattr(Checkpoints, "updates", found)
        return [*found(self), 25]

    monkeypatch.setattr(Checkpoints, "updates", outdated)
    with as_users_run():
        assert run.newest()[0] == 24


def start_training(path, *options):
    """Start a run in a process of its own that saves checkpoints all the time."""
    arguments = ["train", BOUNCER, "--sigma", "0.1", "--lr", "0.01", "--set", "horizon=30"]
    arguments += ["--updates", "1000000", "--eval-every", "1000000", "--log-every", "1"]
    command = [sys.executable, "-m", "nres", *arguments, "--out", str(path), *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    metrics, deadline = path / "metrics.jsonl", time.monotonic() + 120
    while not (metrics.exists() and metrics.read_text().count("\n") > 5):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return process


def test_evaluating_beside_a_training_and_interrupting_it(tmp_path):
    """The command reports the last evaluation, although updates were made since."""
    process = start_training(tmp_path / "run", "--checkpoint-seconds", "0.001")
    try:
        with as_users_run():
            run = runs.Run.open(tmp_path / "run")
            for _ in range(20):
                assert np.isfinite(run.theta()["velocity"]).all()
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 130, errors
    assert "last evaluated after 0 updates" in output


def test_a_disk_that_keeps_nothing_is_noticed_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(Checkpoints, "_read", lambda self, update, empty: empty)
    with as_users_run(), raises_naming(runs.RunError, "checksum"):
        runs.execute(create_run(tmp_path / "run"))


BEGIN = """
import sys
from nres import runs
settings = runs.resolve({system!r}, "nres", seed=int(sys.argv[1]), **{settings!r})
components = runs.build(settings)
print("ready", flush=True)
for path in ("", "same"):
    sys.stdin.readline()
    try:
        path = path or runs.new_path("x:Bouncer", "nres")
        print(runs.Run.create(path, settings, components).path, flush=True)
    except runs.RunError as error:
        print("refused:", error, flush=True)
"""


def test_runs_begun_in_the_same_moment(tmp_path):
    """Each gets a folder of its own. If all ask for the same folder, one of them gets it."""
    count, script = 5, BEGIN.format(system=BOUNCER, settings=SETTINGS)
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(seed)],
            cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for seed in range(count)
    ]  # fmt: skip

    def said():
        return [process.stdout.readline().strip() for process in processes]

    def go():
        for process in processes:
            process.stdin.write("go\n")
            process.stdin.flush()

    assert said() == ["ready"] * count
    go()
    own = said()
    assert [runs.Run.open(tmp_path / line).settings.seed for line in own] == list(range(count))
    assert len(set(own)) == count
    go()
    same = said()
    assert same.count("same") == 1
    assert sum(line.startswith("refused: same ") for line in same) == count - 1
    for process in processes:
        process.communicate(timeout=60)


def test_settings_change_under_the_lock(half, tmp_path):
    path = shutil.copytree(half.path, tmp_path / "run")
    before = (path / "config.json").read_bytes()
    with runs.Run.open(path).locked():
        for options in (["--devices", 2], ["--updates", 99]):
            refused = invoke("resume", path, *options)
            assert refused.exit_code == 1
            assert str(path) in refused.stderr
    assert (path / "config.json").read_bytes() == before


def test_a_checkpoint_without_a_match_says_so(half, tmp_path):
    with Checkpoints(half.path / "checkpoints", write=False) as checkpoints:
        update = checkpoints.updates()[-1]
        with raises_naming(CheckpointError, "theta"):
            checkpoints.restore(update, {"theta": np.zeros(3)}, partial=True)


def test_nothing_but_the_sentence_is_said_of_a_damaged_checkpoint(whole, tmp_path):
    """Orbax would otherwise print warnings about event loops when the process ends."""
    path = shutil.copytree(whole.path, tmp_path / "run")
    for file in (path / "checkpoints" / "24").rglob("*"):
        if file.is_file() and file.parent.name == "d":
            file.write_bytes(os.urandom(file.stat().st_size))
    command = [sys.executable, "-m", "nres", "evaluate", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert str(path / "checkpoints" / "24") in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
