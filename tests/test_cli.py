"""The command line as users run it: in processes that are interrupted, killed and resumed."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from PIL import Image

from helpers import in_a_terminal, invoke, updates_in
from nres import runs

# These tests start, signal and kill processes.
pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
BOUNCER = f"{ROOT}/examples/bouncer.py:Bouncer"
# Long enough to be killed several times, and with so many checkpoints that some are cut off.
LONG = ["--sigma", "0.1", "--lr", "0.01", "--window", "50", "--workers", "64"]
LONG += ["--updates", "3000", "--eval-every", "500", "--log-every", "7"]
LONG += ["--checkpoint-seconds", "0.01"]


@pytest.fixture(scope="module")
def environment():
    """Processes share a compilation cache: each would spend most of its time compiling."""
    shared = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    return os.environ | shared | {"COLUMNS": "200"}


def start(arguments, environment, **options):
    command = [sys.executable, "-m", "nres", *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | options
    return subprocess.Popen(command, env=environment, **pipes)


def finish(process, timeout=120):
    output, errors = process.communicate(timeout=timeout)
    return process.returncode, output, errors


def until_training(process, path, made=0):
    """Wait until the run has made its first updates, or more than it had made."""
    deadline = time.monotonic() + 120
    metrics = path / "metrics.jsonl"
    while not metrics.exists() or max(updates_in(metrics), default=0) <= made:
        if process.poll() is not None or time.monotonic() > deadline:
            pytest.fail(f"did not begin: {finish(process)}")
        time.sleep(0.005)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, environment):
    out = tmp_path_factory.mktemp("runs") / "whole"
    code, output, errors = finish(start(["train", BOUNCER, *LONG, "--out", str(out)], environment))
    assert code == 0, errors
    assert "3,000 of 3,000 updates" in output
    assert (out / "figure.png").read_bytes().startswith(b"\x89PNG")
    return runs.Run.open(out)


def assert_same(run, other):
    """Assert that two runs are equal bit for bit."""
    for one, two in zip(*(jax.tree.leaves(r.theta()) for r in (run, other)), strict=True):
        assert np.asarray(one).tobytes() == np.asarray(two).tobytes()
    mine, theirs = run.metrics, other.metrics
    assert mine.keys() == theirs.keys()
    for name in mine.keys() - {"seconds"}:
        assert mine[name].tobytes() == theirs[name].tobytes(), name


def kill_again_and_again(arguments, out, environment, times=3):
    """Send SIGKILL at random moments, also during checkpoints, until the run is complete."""
    chance = random.Random(1)
    process = start(["train", *arguments, "--out", str(out)], environment)
    kills = 0
    while kills < times:
        until_training(process, out)
        time.sleep(chance.uniform(0, 0.25))
        process.kill()
        finish(process)
        kills += process.returncode == -signal.SIGKILL
        if process.returncode == 0:
            break
        process = start(["resume", str(out)], environment)
    code, _, errors = finish(process)
    assert code == 0, errors
    assert kills >= max(1, times // 2)
    return runs.Run.open(out)


def test_a_run_that_is_killed_again_and_again(tmp_path, environment, uninterrupted):
    assert_same(
        kill_again_and_again([BOUNCER, *LONG], tmp_path / "run", environment), uninterrupted
    )


def test_a_simulator_that_is_killed_again_and_again(tmp_path, environment):
    arguments = ["hopper", "--sigma", "0.1", "--lr", "0.01", "--set", "horizon=60"]
    arguments += ["--workers", "4", "--window", "25", "--updates", "40", "--eval-every", "20"]
    arguments += ["--checkpoint-seconds", "0.01"]
    code, _, errors = finish(
        start(["train", *arguments, "--out", str(tmp_path / "a")], environment)
    )
    assert code == 0, errors
    killed = kill_again_and_again(arguments, tmp_path / "b", environment, times=1)
    assert_same(killed, runs.Run.open(tmp_path / "a"))


def test_a_run_that_is_asked_to_end(tmp_path, environment, uninterrupted):
    out, made = tmp_path / "run", 0
    command = ["train", BOUNCER, *LONG, "--out", str(out)]
    for which in (signal.SIGINT, signal.SIGTERM):
        process = start(command, environment)
        until_training(process, out, made)
        process.send_signal(which)
        code, output, errors = finish(process)
        assert code == 128 + which, errors
        assert f"nres resume {out}" in output
        assert "Traceback" not in errors
        before, made = made, int(runs.Run.open(out).metrics["update"][-1])
        assert before < made < 3000
        command = ["resume", str(out)]
    code, output, errors = finish(start(["resume", str(out), "--quiet"], environment))
    assert (code, output) == (0, ""), errors
    assert_same(runs.Run.open(out), uninterrupted)


def test_the_display_of_a_terminal(tmp_path, environment):
    arguments = ["train", BOUNCER, *LONG, "--updates", "6000", "--out", str(tmp_path / "run")]
    command = [sys.executable, "-m", "nres", *arguments]
    screen = in_a_terminal(command, environment | {"TERM": "xterm"})
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen)
    assert "nres on bouncer.py:Bouncer" in text
    for phase in ("compiling", "moving workers to their starting points", "evaluating"):
        assert phase in text
    assert "6,000/6,000" in text
    assert re.search(r"[\d,]+ updates/s, \d\.\de\+\d+ steps/s", text)
    assert re.search(r"training loss [\d.]+, best [\d.]+", text)
    assert re.search(r"\d:\d\d left", text)


@pytest.mark.usefixtures("undrawn")
def test_without_a_terminal_there_is_no_display(uninterrupted, tmp_path):
    short = ["--sigma", 0.1, "--lr", 0.01, "--updates", 4, "--set", "horizon=30"]
    result = invoke("train", BOUNCER, *short, "--out", tmp_path / "run", "--tensorboard")
    assert result.exit_code == 0, result.output
    assert " left" not in result.output
    assert f"Run: {tmp_path / 'run'}" in result.output
    assert list((tmp_path / "run" / "tensorboard").iterdir())


def test_looking_at_a_run(uninterrupted, tmp_path):
    path = uninterrupted.path
    shown = invoke("show", path)
    assert shown.exit_code == 0
    for words in ("Bouncer", "3,000 of 3,000", "best", "jax"):
        assert words in shown.output
    evaluated = invoke("evaluate", path, "--episodes", 10)
    assert evaluated.exit_code == 0
    final = uninterrupted.metrics["eval/loss"][-1]
    assert f"loss: {final:.5g}" in evaluated.output
    assert invoke("plot", path, path, "--out", tmp_path / "two.png").exit_code == 0
    assert (tmp_path / "two.png").exists()
    refused = invoke("plot", path, "--out", tmp_path / "two.txt")
    assert refused.exit_code == 1
    assert "two.txt" in refused.stderr


@pytest.mark.usefixtures("undrawn")
def test_simulators_from_the_command_line(tmp_path, environment):
    common = ["--sigma", 0.1, "--lr", 0.1, "--updates", 3, "--workers", 3, "--window", 5]
    out = tmp_path / "swimmer"
    options = ["--policy", "mlp:4", "--set", "horizon=20", "--out", out]
    result = invoke("train", "swimmer", *common, *options)
    assert result.exit_code == 0, result.output
    assert "return:" in result.output
    # In a process of its own, since the backend is chosen before MuJoCo is imported.
    strip = tmp_path / "strip.png"
    drawn = ["render", str(out), "--steps", "8", "--size", "700x500", "--out", str(strip)]
    code, _, errors = finish(start(drawn, environment))
    if code:  # without OpenGL, the message names the package to install
        assert "apt install libosmesa6" in errors
    else:
        with Image.open(strip) as picture:
            assert picture.size == (2 * 700, 500)
    assert "x.avi" in invoke("render", out, "--out", "x.avi").stderr

    out = tmp_path / "cartpole"
    options = ["--policy", "mlp:8:relu", "--set", "horizon=20", "--out", out]
    result = invoke("train", "gym:CartPole-v1", *common, *options)
    assert result.exit_code == 0, result.output
    resumed = invoke("resume", out, "--updates", 5)
    assert resumed.exit_code == 0, resumed.output
    assert "pygame" in invoke("render", out).stderr
    assert "Nope-v0" in invoke("train", "gym:Nope-v0", *common).stderr


def test_plotting_a_run_that_has_hardly_begun(tmp_path):
    short = ["--sigma", 0.1, "--lr", 0.01, "--updates", 4, "--set", "horizon=30"]
    assert invoke("train", BOUNCER, *short, "--out", tmp_path / "run").exit_code == 0
    metrics = tmp_path / "run" / "metrics.jsonl"
    metrics.write_text(metrics.read_text().splitlines()[0] + "\n")
    assert invoke("plot", tmp_path / "run").exit_code == 0
    metrics.write_text("{\n{}\n")
    assert str(metrics) in invoke("show", tmp_path / "run").stderr


def test_list():
    result = invoke("list")
    assert result.exit_code == 0
    for words in ("lorenz", "nres", "uoro", "1e-5,1000:1e-6", "adam"):
        assert words in result.output


SMALL = ["--seeds", 2, "--set", "horizon=30", "--sigma", 0.1, "--lr", 0.01, "--workers", 4]


def test_compare(tmp_path):
    command = ["compare", BOUNCER, "--methods", "nres,bptt", *SMALL, "--out", tmp_path / "both"]
    result = invoke(*command, "--updates", 40)
    assert result.exit_code == 0, result.output
    assert (tmp_path / "both" / "figure.png").exists()
    summary = json.loads((tmp_path / "both" / "comparison.json").read_text())
    assert [row["method"] for row in summary["methods"]] == ["nres", "bptt"]
    assert summary["methods"][0]["times_longer"]["update"] == 1
    assert summary["methods"][0]["updates"] == [40, 40]
    assert "NRES" in result.output
    # Complete runs are not repeated, and runs with other settings are refused.
    before = (tmp_path / "both" / "nres-1" / "metrics.jsonl").stat().st_mtime_ns
    assert invoke(*command, "--updates", 40).exit_code == 0
    assert (tmp_path / "both" / "nres-1" / "metrics.jsonl").stat().st_mtime_ns == before
    level = invoke(*command, "--updates", 40, "--level", -1)
    assert "never" in level.output
    refused = invoke(*command, "--updates", 41)
    assert refused.exit_code == 1
    assert str(tmp_path / "both" / "nres-0") in refused.stderr


@pytest.mark.usefixtures("undrawn")
def test_several_seeds_of_one_method(tmp_path):
    out, short = tmp_path / "both", ["--updates", 20, "--out"]
    command = ["train", BOUNCER, "--seed", 3, *SMALL, *short, out]
    result = invoke(*command)
    assert result.exit_code == 0, result.output
    last = [runs.Run.open(out / f"nres-{seed}").metrics["eval/loss"][-1] for seed in (3, 4)]
    assert f"{np.mean(last):.5g} ± {np.std(last, ddof=1):.2g}" in result.output
    assert f"nres report {out}" in result.output
    # Each is the run of one seed, and is not repeated if it is complete.
    alone = ["train", BOUNCER, "--seed", 4, *SMALL[2:], *short, tmp_path / "alone"]
    assert invoke(*alone).exit_code == 0
    thetas = [runs.Run.open(path).theta() for path in (tmp_path / "alone", out / "nres-4")]
    jax.tree.map(np.testing.assert_array_equal, *thetas)
    before = (out / "nres-3" / "metrics.jsonl").stat().st_mtime_ns
    assert invoke(*command, "--quiet").output == ""
    assert (out / "nres-3" / "metrics.jsonl").stat().st_mtime_ns == before
    inside = invoke(*command, "--out", out / "nres-3")
    assert inside.exit_code == 1
    assert str(out / "nres-3") in inside.stderr


@pytest.mark.usefixtures("undrawn")
def test_budgets(tmp_path):
    steps = invoke(
        "compare", BOUNCER, "--methods", "nres,fulles", *SMALL, "--seeds", 1,
        "--budget-steps", 2400, "--out", tmp_path / "steps",
    )  # fmt: skip
    assert steps.exit_code == 0, steps.output
    summary = json.loads((tmp_path / "steps" / "comparison.json").read_text())
    assert summary["methods"][0]["updates"] == [100]
    assert summary["methods"][1]["updates"] == [10]
    seconds = invoke(
        "compare", BOUNCER, "--methods", "nres", *SMALL, "--budget-seconds", 0.3,
        "--out", tmp_path / "seconds",
    )  # fmt: skip
    assert seconds.exit_code == 0, seconds.output
    for run in (tmp_path / "seconds" / "nres-0", tmp_path / "seconds" / "nres-1"):
        metrics = runs.Run.open(run).metrics
        assert 0.3 <= metrics["seconds"][-1] < 5
        assert np.isfinite(metrics["eval/loss"][-1])


@pytest.mark.usefixtures("undrawn")
def test_devices(tmp_path):
    """A run started on eight devices and resumed on two gives the same result as on one."""
    short = ["--sigma", 0.1, "--lr", 0.01, "--updates", 20, "--workers", 16, "--set", "horizon=30"]
    found = []
    for out, devices, then in (("one", 1, None), ("many", "all", 2)):
        path, begun = tmp_path / out, 20 if then is None else 10
        command = ["train", BOUNCER, *short, "--devices", devices, "--out", path, "--quiet"]
        command[command.index("--updates") + 1] = begun
        result = invoke(*command)
        assert result.exit_code == 0, result.stderr
        if then is not None:
            assert runs.Run.open(path).settings.devices == 8
            result = invoke("resume", path, "--updates", 20, "--devices", then, "--quiet")
            assert result.exit_code == 0, result.stderr
        found.append(runs.Run.open(path).theta()["velocity"])
    np.testing.assert_allclose(*found, rtol=1e-5)


@pytest.mark.usefixtures("undrawn")
def test_variance_along_a_run(tmp_path):
    out, short = tmp_path / "run", ["--set", "horizon=400"]
    settings = ["--method", "pes", "--updates", 12, "--keep-every", 4, "--workers", 10]
    result = invoke("train", "lorenz", *settings, *short, "--out", out, "--quiet")
    assert result.exit_code == 0, result.output
    assert list(runs.Run.open(out).trajectory()) == [0, 4, 8, 12]
    result = invoke("variance", "lorenz", "--checkpoints", out, "--samples", 64)
    assert result.exit_code == 0, result.output
    assert "after 12 updates" in result.output
    assert "NRES" in result.output
    assert (out / "variance.png").read_bytes().startswith(b"\x89PNG")
    rows = json.loads((out / "variance.json").read_text())["rows"]
    assert [(row["update"], row["period"]) for row in rows] == [
        (update, period) for update in (0, 4, 8, 12) for period in (100, 400)
    ]
    assert all(row["low"] < row["variance"] < row["high"] for row in rows)
    # Seeds differ; this window fits a horizon that is too short for the preset's window.
    own = ["--set", "horizon=40", "--window", 10, "--samples", 64, "--periods", "10,40"]
    values = []
    for seed in (0, 1):
        place = tmp_path / str(seed)
        assert invoke("variance", "lorenz", *own, "--seed", seed, "--out", place).exit_code == 0
        values.append(json.loads((place / "variance.json").read_text())["rows"][0]["variance"])
    assert values[0] != values[1]
    for wrong, words in [
        (["swimmer", "--checkpoints", out], "swimmer"),
        (["lorenz", "--checkpoints", out, *short], "--set"),
    ]:
        assert words in invoke("variance", *wrong).stderr


def test_advice_at_the_parameters_of_a_run(tmp_path):
    """The system of the run is given by a relative path."""
    out, short = tmp_path / "run", ["--set", "horizon=30"]
    settings = ["--sigma", 0.1, "--lr", 0.01, "--updates", 2, "--workers", 4]
    assert invoke("train", BOUNCER, *settings, *short, "--out", out, "--quiet").exit_code == 0
    relative = os.path.relpath(BOUNCER.partition(":")[0]) + ":Bouncer"
    command = ["advise", relative, "--total-steps", 1e5, "--sequential-steps", 1e3, "--run", out]
    result = invoke(*command, "--out", tmp_path / "advice")
    assert result.exit_code == 0, result.output
    assert f"--from={out}" in result.output
    assert "--workers=50" in result.output
    assert len(json.loads((tmp_path / "advice" / "advice.json").read_text())["reasons"]) == 3
    again = invoke(*command, "--out", tmp_path / "again", "--quiet")
    assert (again.exit_code, again.output) == (0, "")


@pytest.mark.parametrize("name", ["variance-lorenz-K", "variance-lorenz-fulles"])
def test_reproducing_variance(name, tmp_path):
    command = ["reproduce", name, "--quick", "--out", tmp_path]
    result = invoke(*command)
    assert result.exit_code == 0, result.output
    assert (tmp_path / name / f"{name}.png").exists()
    file = tmp_path / name / "measured.json"
    found = json.loads(file.read_text())
    assert [entry["update"] for entry in found["checkpoints"]] == [2, 4]
    # Only the missing checkpoint is measured.
    found["checkpoints"].pop()
    del found["pes"]["devices"]  # earlier versions had no such setting
    file.write_text(json.dumps(found))
    assert invoke(*command).exit_code == 0
    again = json.loads(file.read_text())
    assert [entry["update"] for entry in again["checkpoints"]] == [2, 4]
    again["measured"]["samples"] += 1
    file.write_text(json.dumps(again))
    assert str(file) in invoke(*command).stderr
