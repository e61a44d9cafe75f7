"""A run folder may come from anywhere: looking at it runs, follows and obeys nothing in it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from helpers import as_users_run, invoke, raises_naming, slow
from nres import report, runs
from nres.cli.console import plain
from nres.files import save_figure
from nres.runs.trust import foreign_code

ROOT = Path(__file__).parent.parent
BOUNCER = ROOT / "examples" / "bouncer.py"
SETTINGS = {"sigma": 0.1, "lr": 0.03, "updates": 4, "eval_every": 2, "options": {"horizon": 30}}

pytestmark = pytest.mark.usefixtures("undrawn")


def said(result):
    """Return the one sentence on standard error of a command that failed."""
    assert result.exit_code in (1, 2), result.output
    (line,) = result.stderr.strip().splitlines()
    return line


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A complete run of a system in a file of the user's."""
    folder = tmp_path_factory.mktemp("trust")
    file = shutil.copy(BOUNCER, folder / "mine.py")
    settings = runs.resolve(f"{file}:Bouncer", "nres", **SETTINGS)
    with as_users_run():
        made = runs.Run.create(folder / "run", settings, runs.build(settings))
        runs.execute(made)
    return made


@pytest.fixture
def foreign(run, tmp_path):
    """A copy of the run from somebody else; its code would create a file if it ran."""
    path = shutil.copytree(run.path, tmp_path / "foreign")
    code = tmp_path / "theirs.py"
    mark = f"import pathlib\npathlib.Path({str(tmp_path / 'mark')!r}).touch()\n"
    code.write_text(mark + BOUNCER.read_text())
    change(path, system=f"{code}:Bouncer")
    return path


def change(path, **settings):
    config = json.loads((path / "config.json").read_text())
    config["settings"] |= settings
    (path / "config.json").write_text(json.dumps(config))


USING = [
    ["evaluate"],
    ["evaluate", "--best"],
    ["resume", "--updates", "6"],
    ["resume", "--devices", "1", "--updates", "6"],
    ["export"],
    ["render"],
]


@pytest.mark.parametrize("command", USING, ids=" ".join)
def test_code_that_a_folder_names_is_not_run(command, foreign, tmp_path):
    name, *options = command
    line = said(invoke(name, foreign, *options))
    assert str(tmp_path / "theirs.py") in line
    assert "--trust-code" in line
    assert not (tmp_path / "mark").exists()


def test_a_cluster_that_only_a_folder_or_file_names_is_not_contacted(run, tmp_path, monkeypatch):
    """Ray unpickles what a cluster sends, so the cluster could run code here."""
    asked = []

    def connect(address, cpus):
        asked.append(address)
        raise ValueError("nobody answers")

    monkeypatch.setattr("nres.runs.placement.connect", connect)
    path = shutil.copytree(run.path, tmp_path / "copy")
    change(path, ray="evil:1")
    repeat = ["train", "--config", path, "--out", tmp_path / "out"]
    resume = ["resume", path, "--updates", 6]
    for command in (repeat, resume):
        line = said(invoke(*command))
        assert "evil:1" in line
        assert "--trust-code" in line
        assert asked == []
    assert invoke("evaluate", path, "--episodes", 2).exit_code == 0  # which needs no cluster
    assert asked == []
    for command in (repeat, resume):
        said(invoke(*command, "--trust-code"))
        said(invoke(*command, "--ray", "mine:2"))
    said(invoke(*repeat, "--ray", "evil:1"))
    assert asked == ["evil:1", "mine:2", "evil:1", "mine:2", "evil:1"]
    change(path, ray="mine:2")  # as if that had succeeded: the user named this cluster
    said(invoke(*resume))
    assert asked.pop() == "mine:2"


def test_code_that_is_trusted_is_run(foreign, tmp_path):
    result = invoke("evaluate", foreign, "--trust-code", "--episodes", 2)
    assert result.exit_code == 0, result.output
    assert (tmp_path / "mark").exists()
    with as_users_run():
        assert runs.Run.open(foreign, trust_code=True).theta()


def test_code_that_the_user_named_is_run(run):
    assert invoke("evaluate", run.path, "--episodes", 2).exit_code == 0


def test_code_named_on_the_command_line_is_run(foreign, tmp_path):
    common = ["--samples", 64, "--quiet", "--out", tmp_path / "found"]
    name = f"{tmp_path / 'theirs.py'}:Bouncer"
    result = invoke("variance", name, "--checkpoints", foreign, "--periods", "3,30", *common)
    assert result.exit_code == 0, result.output
    line = said(invoke("variance", "lorenz", "--checkpoints", foreign, *common))
    assert str(foreign) in line


@pytest.mark.parametrize("command", ["show", "plot", "report"])
def test_looking_at_a_run_imports_nothing(command, foreign, tmp_path):
    out = ["--out", tmp_path / "page.html"] if command == "report" else []
    assert invoke(command, foreign, *out).exit_code == 0
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize(
    ("system", "options"),
    [
        ("subprocess:Popen", {"args": ["touch", "MARK"]}),
        ("os:system", {"command": "touch MARK"}),
        ("gym:CartPole-v1", {"entry": "evil_module:Env"}),
        ("gym:evil_module:Env-v0", {}),
        ("nres.pools.gym:GymPool", {"env": "evil_module:Env-v0"}),
        ("gym:CartPole-v1", {"policy": "mlp:4,4", "deep": {"env_id": ["evil_module:Env"]}}),
    ],
)
@pytest.mark.parametrize("trust", [(), ("--trust-code",)])
def test_objects_that_are_not_systems_are_never_called(system, options, trust, run, tmp_path):
    path = shutil.copytree(run.path, tmp_path / "copy")
    mark = tmp_path / "mark"
    change(path, system=system, options=json.loads(json.dumps(options).replace("MARK", str(mark))))
    if trust and "evil_module" not in str((system, options)):
        assert system in said(invoke("evaluate", path, *trust))
    elif trust:
        assert "evil_module" in said(invoke("evaluate", path, *trust))
    else:
        assert "--trust-code" in said(invoke("evaluate", path))
    assert not mark.exists()


@pytest.mark.parametrize("name", ["nres.systems./../evil.py", "nres.systems.evil.py"])
def test_a_path_that_looks_like_a_module_of_nres(name, run, tmp_path, monkeypatch):
    path = shutil.copytree(run.path, tmp_path / "copy")
    mark = f"import pathlib\npathlib.Path({str(tmp_path / 'mark')!r}).touch()\n"
    (tmp_path / "nres.systems.").mkdir()
    for file in ("evil.py", "nres.systems.evil.py"):
        (tmp_path / file).write_text(mark + BOUNCER.read_text())
    change(path, system=f"{name}:Bouncer")
    monkeypatch.chdir(tmp_path)
    assert "--trust-code" in said(invoke("evaluate", path))
    assert not (tmp_path / "mark").exists()


def test_a_module_is_remembered_with_its_file(tmp_path, monkeypatch):
    """Another module of the same name is another one."""
    for folder in ("mine", "theirs"):
        (tmp_path / folder).mkdir()
        shutil.copy(BOUNCER, tmp_path / folder / "bouncing_module.py")
    monkeypatch.chdir(tmp_path / "mine")
    given = {name: SETTINGS[name] for name in ("sigma", "lr", "updates", "eval_every", "options")}
    settings = runs.resolve("bouncing_module:Bouncer", "nres", **given)
    runs.Run.create(tmp_path / "run", settings, runs.build(settings))
    assert runs.Run.open(tmp_path / "run").components
    monkeypatch.chdir(tmp_path / "theirs")
    with raises_naming(runs.RunError, "theirs"):
        _ = runs.Run.open(tmp_path / "run").components


@pytest.mark.slow
def test_a_policy_is_no_code(tmp_path):
    options = ["--sigma", 0.1, "--lr", 0.1, "--workers", 2, "--window", 5, "--updates", 2]
    options += ["--policy", "mlp:4", "--set", "horizon=10", "--quiet"]
    assert invoke("train", "gym:CartPole-v1", *options, "--out", tmp_path / "run").exit_code == 0
    assert foreign_code("gym:CartPole-v1", runs.Run.open(tmp_path / "run").settings.options) == []


def test_checkpoints_that_are_a_link_are_left_alone(run, tmp_path):
    path = shutil.copytree(run.path, tmp_path / "copy")
    shutil.rmtree(path / "checkpoints")
    victim = shutil.copytree(run.path / "checkpoints", tmp_path / "victim")
    before = sorted(victim.rglob("*"))
    (path / "checkpoints").symlink_to(victim)
    for command in (["resume", "--updates", 9], ["evaluate"]):
        assert "checkpoints" in said(invoke(command[0], path, *command[1:]))
    assert sorted(victim.rglob("*")) == before
    (path / "checkpoints").unlink()
    shutil.copytree(run.path / "checkpoints", path / "checkpoints")
    best = path / "checkpoints" / "best.npz"
    best.unlink()
    best.symlink_to(victim / "best.npz")
    assert invoke("evaluate", path, "--best").exit_code == 1


def test_an_object_may_be_named_instead_of_a_class(tmp_path):
    file = tmp_path / "objects.py"
    file.write_text(BOUNCER.read_text() + "\n\nsmall = Bouncer(30)\n\n\ndef make():\n    pass\n")
    given = {name: SETTINGS[name] for name in ("sigma", "lr", "updates", "eval_every")}
    assert runs.build(runs.resolve(f"{file}:small", "nres", **given)).estimator.horizon == 30
    for name, options in (("small", {"horizon": 3}), ("make", {})):
        with raises_naming(runs.SettingsError, name):
            runs.resolve(f"{file}:{name}", "nres", options=options, **given)


def test_links_are_not_taken_into_a_report(run, tmp_path):
    path = shutil.copytree(run.path, tmp_path / "copy")
    secret = tmp_path / "secret.txt"
    secret.write_text("do not share")
    (path / "notes.txt").symlink_to(secret)
    (path / "policy.gif").symlink_to("/dev/zero")
    os.mkfifo(path / "variance.png")
    result = invoke("report", path, "--out", tmp_path / "page.html")
    assert result.exit_code == 0, result.output
    for name in ("notes.txt", "policy.gif", "variance.png"):
        assert name in result.stderr
    page = (tmp_path / "page.html").read_text()
    assert "do not share" not in page
    (path / "notes.txt").unlink()
    (path / "notes.txt").write_text("x" * 2_000_000)
    assert "notes.txt" in invoke("report", path, "--out", tmp_path / "page.html").stderr
    # A folder that links to another one is not looked into, either.
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    (shelf / "elsewhere").symlink_to(run.path)
    shutil.copytree(run.path, shelf / "here")
    assert [found.path.name for found in report.find_runs([shelf])] == ["here"]


@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl"])
@pytest.mark.parametrize("command", ["show", "plot", "evaluate", "resume"])
def test_a_link_or_pipe_neither_hangs_nor_is_followed(name, command, run, tmp_path):
    path = shutil.copytree(run.path, tmp_path / "copy")
    for make in (lambda f: f.symlink_to("/dev/zero"), os.mkfifo):
        (path / name).unlink()
        make(path / name)
        if (name, command) == ("metrics.jsonl", "evaluate"):  # which does not read it
            assert invoke(command, path, "--episodes", 2).exit_code == 0
        else:
            assert name in said(invoke(command, path))


HOSTILE = "\x1b[2J\x1b]0;owned\x07[/x][red]\u202e"


def test_escapes_and_markup_stay_text(run, tmp_path):
    path = shutil.copytree(run.path, tmp_path / "copy")
    config = json.loads((path / "config.json").read_text())
    config["settings"]["system"] = f"{HOSTILE}:X"
    config["created"] = HOSTILE
    config["versions"] = {HOSTILE: HOSTILE}
    (path / "config.json").write_text(json.dumps(config))
    metrics = (path / "metrics.jsonl").read_text().replace("eval/loss", json.dumps(HOSTILE)[1:-1])
    (path / "metrics.jsonl").write_text(metrics.replace('"\\u001b', '"eval/\\u001b'))
    shown = invoke("show", path)
    assert shown.exit_code == 0, shown.output
    refused = invoke("evaluate", path)
    assert refused.exit_code == 1
    for text in (shown.output, refused.stderr):
        assert "\\x1b[2J" in text
        assert not any(c in text for c in "\x1b\x07\u202e")
    assert str(plain("a\nb\tc\x9b")) == "a\nb\\tc\\x9b"


def test_names_with_dollar_signs_and_settings_that_are_nan(run, tmp_path, monkeypatch):
    monkeypatch.setattr("nres.figures.save_figure", save_figure)  # for drawing reads the names
    path = shutil.copytree(run.path, tmp_path / "r$\\bad$")
    metrics = (path / "metrics.jsonl").read_text().replace("eval/loss", "eval/$\\\\bad$")
    (path / "metrics.jsonl").write_text(metrics)
    config = json.loads((path / "config.json").read_text())
    config["settings"]["options"]["x"] = float("nan")
    (path / "config.json").write_text(json.dumps(config))
    for command in (["plot", path, "--out", tmp_path / "x.png"], ["show", path]):
        assert invoke(*command).exit_code == 0
    assert invoke("report", path, "--out", tmp_path / "page.html").exit_code == 0


def test_names_with_markup(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    short = ["--sigma", 0.1, "--lr", 0.01, "--updates", 2, "--set", "horizon=30"]
    result = invoke("show", "x[/x]")
    assert "x[/x]" in said(result)
    line = said(invoke("train", f"{BOUNCER}:Bouncer", *short, "--out", "x[/x]"))
    assert "x[/x]" in line
    result = invoke("train", f"{BOUNCER}:Bouncer", *short, "--out", "(bold) 100%")
    assert result.exit_code == 0, result.output
    assert "Run: (bold) 100%" in result.output


@pytest.mark.parametrize("name", ["x[1]", "a\\b", "parent]/run"])
def test_folders_from_which_checkpoints_cannot_be_read_are_refused(name, tmp_path):
    short = ["--sigma", 0.1, "--lr", 0.01, "--updates", 2, "--set", "horizon=30"]
    line = said(invoke("train", f"{BOUNCER}:Bouncer", *short, "--out", tmp_path / name))
    assert name in line
    assert not (tmp_path / name).exists()


PORTS = """
import sys
from nres.placement.ray import connect
connect("local", cpus=1)
own = {line.split()[1] for name in ("tcp", "tcp6") for line in open(f"/proc/net/{name}")
       if line.split()[3] == "0A"}
print("\\n".join(own))
"""


@pytest.mark.slow
def test_a_local_ray_cluster_is_closed_to_other_machines():
    def listening():
        files = [Path(f"/proc/net/{name}").read_text().splitlines() for name in ("tcp", "tcp6")]
        return {line.split()[1] for lines in files for line in lines if line.split()[3] == "0A"}

    before = listening()
    done = subprocess.run(
        [sys.executable, "-c", PORTS], capture_output=True, text=True, check=True, timeout=120
    )
    opened = set(done.stdout.split()) - before
    assert opened
    assert all(address.partition(":")[0].endswith("0100007F") for address in opened), opened


@pytest.mark.parametrize("target", ["theirs.npz", slow("run")])
def test_a_start_that_is_a_link_is_not_followed(target, run, tmp_path):
    """A run that is repeated takes its initial parameters from its own folder only."""
    short = ["--sigma", 0.1, "--lr", 0.01, "--updates", 2, "--set", "horizon=30", "--quiet"]
    begun = ["train", f"{BOUNCER}:Bouncer", *short]
    first, again = tmp_path / "first", tmp_path / "again"
    assert invoke(*begun, "--from", run.path, "--out", first).exit_code == 0
    (start,) = first.glob("start-*.npz")
    start.rename(tmp_path / "theirs.npz")
    start.symlink_to(run.path if target == "run" else tmp_path / target)
    assert start.name in said(invoke("train", "--config", first, "--out", again))
    assert not again.exists()
    # A link that the user names is followed.
    link = tmp_path / "link"
    link.symlink_to(start.readlink())
    assert invoke(*begun, "--from", link, "--out", again).exit_code == 0


def test_a_start_of_another_run_needs_none_of_its_code(foreign, tmp_path):
    """Parameters are arrays: taking them over runs nothing."""
    short = ["--sigma", 0.1, "--lr", 0.01, "--updates", 2, "--set", "horizon=30"]
    name = f"{BOUNCER}:Bouncer"
    out = tmp_path / "next"
    result = invoke("train", name, *short, "--from", foreign, "--out", out, "--quiet")
    assert result.exit_code == 0, result.output
    assert not (tmp_path / "mark").exists()
    with as_users_run():
        first = runs.Run.open(out).trajectory()[0]
        last = runs.Run.open(foreign, trust_code=True).theta()
    np.testing.assert_array_equal(first["velocity"], last["velocity"])
