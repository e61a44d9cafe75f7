"""The first hour of a new user: terminals, mistakes in files, evaluations, warm starts."""

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import nres
from helpers import as_users_run, in_a_terminal, invoke
from nres import runs
from nres.runs.components import evaluation_steps
from nres.runs.fingerprint import _described, fingerprint, is_same
from nres.runs.registry import SYSTEMS

ROOT = Path(__file__).parent.parent
BOUNCER = f"{ROOT}/examples/bouncer.py:Bouncer"
SHORT = ["--sigma", 0.1, "--lr", 0.01, "--set", "horizon=30", "--workers", 8]
pytestmark = pytest.mark.usefixtures("undrawn")


@pytest.mark.slow
def test_a_run_begun_in_a_terminal_resumes_without_one(tmp_path):
    """JAX writes programs in colour where it sees a terminal."""
    out = tmp_path / "run"
    begin = ["-m", "nres", "train", BOUNCER, *map(str, SHORT), "--updates", "2", "--out", str(out)]
    environment = os.environ | {"TERM": "xterm-256color"}
    in_a_terminal([sys.executable, *begin], environment)
    assert invoke("evaluate", out, "--episodes", 2).exit_code == 0
    result = invoke("resume", out, "--updates", 4, "--quiet")
    assert result.exit_code == 0, result.output
    again = ["-m", "nres", "resume", str(out), "--updates", "6"]
    in_a_terminal([sys.executable, *again], environment)
    assert runs.Run.open(out).updates_made() == 6


def test_fingerprints_of_earlier_versions_are_accepted():
    settings = runs.resolve(BOUNCER, "nres", sigma=0.1, lr=0.1, options={"horizon": 30})
    components = runs.build(settings)
    recorded = [
        fingerprint(settings, components),
        _described(settings, components, str),
        _described(settings, components, lambda jaxpr: jaxpr.pretty_print(use_color=True)),
    ]
    assert all(is_same(each, settings, components) for each in recorded)
    other = runs.build(dataclasses.replace(settings, options={"horizon": 31}))
    assert not any(is_same(each, settings, other) for each in recorded)


WITHOUT_UNIX = """
import sys
for name in ("fcntl", "resource", "termios", "pwd", "grp"):
    sys.modules[name] = None
import jax, optax, nres
system = nres.systems.Lorenz(horizon=20)
estimator = nres.NRES(system, workers=4, window=10, sigma=0.1)
theta = system.initial_theta()
result = nres.train(estimator, optax.sgd(1e-5), theta, updates=3, key=jax.random.key(0))
print(result, nres.evaluate(system, result.theta, jax.random.key(0)))
"""


@pytest.mark.slow
def test_nothing_of_unix_is_needed():
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_UNIX], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "3 updates" in done.stdout


SYNTAX = "import nres\n\nclass Mine(nres.System)\n    pass\n"
FAILS = "import nres\nx = 1\nraise RuntimeError('no data')\n"


BRANCHES = """
import jax.numpy as jnp
import nres


class Mine(nres.System):
    horizon: int = 10

    def initial_theta(self, key):
        return jnp.ones(2)

    def init(self, theta, key):
        return theta

    def step(self, state, theta, t, key):
        if state[0] > 0:
            state = -state
        return state, jnp.sum(state)
"""


INDEX = BRANCHES.replace("if state[0] > 0:", "if [][0]:")
UNDECLARED = BRANCHES.replace(
    "    def initial_theta",
    "    def __init__(self):\n        self.mass = 2.0\n\n    def initial_theta",
)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (SYNTAX, ["mine.py", "line 3", "SyntaxError"]),
        (FAILS, ["mine.py", "line 3", "RuntimeError", "no data"]),
        (BRANCHES, ["mine.py", "line 16", "Mine.step", "jnp.where"]),
        (INDEX, ["mine.py", "line 16", "IndexError"]),
        (UNDECLARED, ["mine.py", "mass", "mass: float"]),
    ],
)
def test_mistakes_in_a_file_are_reported_with_their_line(source, words, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(source)
    out = ["--sigma", 0.1, "--lr", 0.1, "--out", tmp_path / "run"]
    result = invoke("train", f"{file}:Mine", *out)
    assert result.exit_code == 2
    (line,) = result.stderr.strip().splitlines()
    for word in words:
        assert word in line
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lorenz", "learned-optimizer", "swimmer", "halfcheetah"])
def test_evaluations_cost_a_share_of_the_training(name):
    """By default evaluations take at most a fifth of the training steps."""
    for method in SYSTEMS[name].presets:
        with as_users_run():
            settings = runs.resolve(name, method)
            components = runs.build(settings)
        estimator = components.estimator
        training = settings.updates * estimator.members * estimator.workers * estimator.window
        count = -(-settings.updates // settings.eval_every) + 1
        share = count * evaluation_steps(components.system) / training
        assert share <= 0.2 or count == 2, (method, share)
        assert count <= 45


@pytest.mark.slow
def test_the_seconds_of_each_part_are_reported(tmp_path):
    result = invoke("train", BOUNCER, *SHORT, "--updates", 4, "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    pattern = r"4 of 4 updates in [\d.]+ s .*\s+evaluation [\d.]+ s, compilation .* [\d.]+ s"
    assert re.search(pattern, result.output)


@pytest.mark.slow
def test_the_best_parameters_are_kept(tmp_path):
    """With large steps the last evaluation is not the best one."""
    out = tmp_path / "run"
    options = ["--updates", 60, "--eval-every", 2, "--lr", 0.5]
    command = ["train", BOUNCER, *SHORT, *options, "--out", out, "--quiet"]
    assert invoke(*command).exit_code == 0
    run = runs.Run.open(out)
    losses = run.metrics["eval/loss"]
    known = np.isfinite(losses)
    best = int(run.metrics["update"][known][np.argmin(losses[known])])
    assert best < 60
    with as_users_run():
        assert run.newest(best=True)[0] == best
    shown = invoke("evaluate", out, "--best", "--episodes", 2)
    assert f"after {best} updates" in shown.output
    assert f"{losses[known].min():.5g}" in shown.output
    # The file is a plain one, and a start for another run.
    more = ["--updates", 2, "--from", out / "checkpoints" / "best.npz", "--out", tmp_path / "next"]
    assert invoke("train", BOUNCER, *SHORT, *more, "--quiet").exit_code == 0
    first = runs.Run.open(tmp_path / "next")
    np.testing.assert_allclose(first.metrics["eval/loss"][0], losses[known].min(), rtol=1e-6)
    # Continued, the best so far is known.
    assert invoke("resume", out, "--updates", 62, "--quiet").exit_code == 0
    with as_users_run():
        again, _ = runs.Run.open(out).newest(best=True)
    assert again == best or runs.Run.open(out).metrics["eval/loss"][-1] < losses[known].min()


@pytest.mark.slow
def test_a_warm_start_is_kept_in_the_folder(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    for path, more in ((first, []), (second, ["--from", first])):
        command = ["train", BOUNCER, *SHORT, "--updates", 2, *more, "--out", path, "--quiet"]
        assert invoke(*command).exit_code == 0
    expected = runs.Run.open(first).theta()["velocity"]
    shutil.rmtree(first)
    shutil.rmtree(second / "checkpoints")  # as if it was killed before its first checkpoint
    run = runs.Run.open(second)
    with as_users_run():
        np.testing.assert_array_equal(run.components.theta["velocity"], expected)
    assert invoke("resume", second, "--quiet").exit_code == 0
    for wrong, words in (
        (tmp_path / "nowhere", "nowhere"),
        (tmp_path, str(tmp_path)),
        (Path(__file__), str(Path(__file__))),
    ):
        result = invoke("train", BOUNCER, *SHORT, "--updates", 2, "--from", wrong)
        assert words in result.stderr
        assert len(result.stderr.strip().splitlines()) == 1


@pytest.mark.slow
def test_fresh_episodes(tmp_path):
    out = tmp_path / "ant"
    common = ["--sigma", 0.1, "--lr", 0.1, "--workers", 3, "--window", 5, "--set", "horizon=20"]
    options = [*common, "--updates", 3, "--optimizer", "adam", "--out", out]
    assert invoke("train", "gym:Ant-v5", *options).exit_code == 0
    refused = invoke("resume", out, "--updates", 5)
    assert refused.exit_code == 1
    assert "--fresh-episodes" in refused.stderr
    before = runs.Run.open(out)
    theta, steps = before.theta(), before.metrics["total_steps"][-1]
    result = invoke("resume", out, "--updates", 5, "--fresh-episodes")
    assert result.exit_code == 0, result.output
    run = runs.Run.open(out)
    marked = run.metrics["fresh_episodes"]
    assert list(run.metrics["update"][marked == 1]) == [4]
    assert run.metrics["total_steps"][-1] > steps + 4 * 5  # unlocking counts again
    assert not np.array_equal(run.theta(), theta)
    # Nothing is lost to a run that is complete already.
    assert invoke("resume", out).exit_code == 0


@pytest.mark.slow
def test_a_complete_run_with_a_budget_was_not_interrupted(tmp_path):
    compared = ["compare", BOUNCER, "--methods", "nres", "--seeds", 1, "--budget-seconds", 0.2]
    short = ["--sigma", 0.1, "--lr", 0.01, "--set", "horizon=30", "--workers", 8]
    assert invoke(*compared, *short, "--out", tmp_path, "--quiet").exit_code == 0
    result = invoke("resume", tmp_path / "nres-0")
    assert result.exit_code == 0
    assert "Interrupted" not in result.output


@pytest.mark.slow
def test_the_compilation_cache(tmp_path):
    command = [sys.executable, "-m", "nres", "--compile-cache", str(tmp_path / "cache"), "list"]
    assert subprocess.run(command, capture_output=True, timeout=60).returncode == 0
    before = jax.config.jax_compilation_cache_dir
    seconds = jax.config.jax_persistent_cache_min_compile_time_secs
    try:
        assert nres.cache_compilations(tmp_path / "mine") == tmp_path / "mine"
        assert jax.config.jax_compilation_cache_dir == str(tmp_path / "mine")
    finally:
        jax.config.update("jax_compilation_cache_dir", before)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", seconds)


@pytest.mark.slow
def test_a_quick_reproduction_has_no_verdict(tmp_path):
    result = invoke("reproduce", "lorenz-surface", "--quick", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    for verdict in ("holds", "fails", "differs", "Reproduced"):
        assert verdict not in result.output
    assert "too small for a verdict" in " ".join(result.output.split())
    summary = json.loads((tmp_path / "lorenz-surface" / "summary.json").read_text())
    assert {check["grade"] for check in summary["checks"]} == {None}
    listed = invoke("reproduce", "table", "--out", tmp_path)
    assert listed.exit_code == 0
    assert "holds" not in listed.output


COMMANDS = """
import sys
from nres.cli import app
for command in (["list"], ["show", sys.argv[1]], ["evaluate", sys.argv[1], "--episodes", "2"]):
    try:
        app(command)
    except SystemExit as end:
        assert end.code == 0, command
"""


@pytest.mark.slow
def test_a_terminal_without_unicode(tmp_path):
    out = tmp_path / "run"
    assert invoke("train", BOUNCER, *SHORT, "--updates", 2, "--out", out).exit_code == 0
    environment = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS, str(out)],
        env=environment, capture_output=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()
    for words in (b"Presets of lorenz", b"updates made", b"over 2 episodes"):  # of each command
        assert words in done.stdout


@pytest.mark.slow
def test_a_missing_device_is_reported():
    command = [sys.executable, "-m", "nres", "train", "lorenz", "--updates", "2"]
    environment = os.environ | {"JAX_PLATFORMS": "nonsense"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    (line,) = done.stderr.strip().splitlines()
    assert "JAX_PLATFORMS is 'nonsense'" in line
