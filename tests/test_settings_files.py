"""Settings in YAML, TOML and JSON files, and in the folders of runs."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

import nres
from helpers import ROOT, invoke, raises_naming
from nres import runs
from nres.runs import trust
from nres.runs.files import read_settings

YAML = """
system: lorenz
method: pes
lr: 1e-5          # YAML 1.1 would read text
updates: 3
workers: 4
window: 10
eval_every: 3
clip: 1e+1
period:           # not given
options: {horizon: 40, test_episodes: 2}
"""
TOML = """
system = "lorenz"
method = "pes"
lr = 1e-5
updates = 3
workers = 4
window = 10
eval_every = 3
clip = 10
[options]
horizon = 40
test_episodes = 2
"""
GIVEN = {"system": "lorenz", "method": "pes", "lr": "1e-05", "updates": 3, "workers": 4}
GIVEN |= {"window": 10, "eval_every": 3, "clip": 10.0}
GIVEN |= {"options": {"horizon": 40, "test_episodes": 2}}


def written(path, text):
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("name", "text"),
    [("s.yaml", YAML), ("s.yml", YAML), ("s.toml", TOML), ("s.json", json.dumps(GIVEN))],
)
def test_settings_are_read(tmp_path, name, text):
    assert read_settings(written(tmp_path / name, text)) == GIVEN
    link = tmp_path / f"link{(tmp_path / name).suffix}"
    link.symlink_to(tmp_path / name)
    assert read_settings(link) == GIVEN


@pytest.mark.parametrize(
    ("name", "text", "culprits"),
    [
        ("a.yaml", "workrs: 3", ["'workrs'", "workers"]),
        ("a.yaml", "eval-every: 3", ["'eval-every'", "eval_every"]),
        ("a.yaml", "from: x", ["'from'", "start_from"]),
        ("a.yaml", "3: x", ["'3'"]),
        ("a.yaml", "workers: many", ["workers", "'many'"]),
        ("a.yaml", "workers: 2.5", ["workers", "2.5"]),
        ("a.yaml", "workers: yes", ["workers", "True"]),
        ("a.yaml", "devices: some", ["devices", "'some'"]),
        ("a.yaml", "optimizer: sdg", ["optimizer", "sgd"]),
        ("a.yaml", "lr: [1, 2]", ["lr", "[1, 2]"]),
        ("a.yaml", "options: 3", ["options", "3"]),
        ("a.yaml", "lr: [", ["YAML", "line 1"]),
        ("a.yaml", "lr: !!python/object/apply:os.getcwd []", ["python/object"]),
        ("a.yaml", "options: {a: &x [1], b: *x}", ["*x", "line 1"]),
        ("a.yaml", "seed: 1\nlr: 2\nseed: 3", ["'seed'"]),
        ("a.yaml", "options: {horizon: 1, horizon: 2}", ["'horizon'"]),
        ("a.json", '{"options": {"horizon": 1, "horizon": 2}}', ["'horizon'"]),
        ("a.yaml", "updates: 1:30", ["updates", "'1:30'"]),
        ("a.yaml", "updates: 0x10", ["updates", "'0x10'"]),
        ("a.yaml", 'seed: !!bool "x"', ["YAML", "'x'"]),
        ("a.yaml", 'seed: !!timestamp "x"', ["YAML"]),
        ("a.yaml", 'seed: !!int ""', ["YAML"]),
        ("a.yaml", "", ["None"]),
        ("a.yaml", "- lr", ["['lr']"]),
        ("a.toml", "lr = =\n", ["TOML", "line 1"]),
        ("a.toml", "[settings]\nlr = 1", ["'settings'"]),
        ("a.json", "{", ["JSON"]),
        ("a.json", '{"settings": 3}', ["settings", "3"]),
        ("a.txt", "lr: 1", [".yaml"]),
    ],
)
def test_a_wrong_file_is_refused(tmp_path, name, text, culprits):
    file = written(tmp_path / name, text)
    with raises_naming(runs.SettingsError, file, *culprits):
        read_settings(file)


def test_numbers_in_yaml_are_those_of_other_formats(tmp_path):
    values = "[010, -3, +4, 0.5, .5, 2., -1e3, 1E+2, -.inf, 1:30, 1_000]"
    found = read_settings(written(tmp_path / "s.yaml", f"options: {{x: {values}}}"))
    expected = [10, -3, 4, 0.5, 0.5, 2.0, -1000.0, 100.0, -np.inf, "1:30", "1_000"]
    assert found["options"]["x"] == expected
    assert list(map(type, found["options"]["x"])) == list(map(type, expected))


def test_a_file_that_cannot_be_read_is_refused(tmp_path):
    for path in (tmp_path / "none.yaml", tmp_path):
        with raises_naming(runs.SettingsError, path):
            read_settings(path)
    (tmp_path / "config.json").symlink_to("/etc/hostname")
    with raises_naming(runs.SettingsError, "config.json", "link"):
        read_settings(tmp_path)
    (tmp_path / "bytes.toml").write_bytes(b"lr = '\xff'")
    with raises_naming(runs.SettingsError, "bytes.toml"):
        read_settings(tmp_path / "bytes.toml")


def test_the_command_line_takes_precedence(tmp_path, monkeypatch):
    monkeypatch.setattr("nres.cli.train.carry_out", lambda run, **options: None)
    file = written(tmp_path / "s.yaml", YAML + "seed: 3\n")
    common = ["train", "--config", file, "--quiet", "--out"]
    result = invoke(*common, tmp_path / "a")
    assert result.exit_code == 0, result.output
    first = runs.Run.open(tmp_path / "a").settings
    assert first == runs.resolve(**GIVEN, seed=3)
    # Also if the option has the value of its default.
    more = ["--seed", 0, "--set", "horizon=50", "--method", "NRES"]
    assert invoke(*common, tmp_path / "b", *more).exit_code == 0
    changes = {"seed": 0, "method": "nres", "options": {"horizon": 50, "test_episodes": 2}}
    assert runs.Run.open(tmp_path / "b").settings == runs.resolve(**GIVEN | changes)


@pytest.mark.parametrize(
    ("typed", "placed"),
    [
        (["--ray", "none"], (None, None, None)),
        (["--devices", 1], (1, None, None)),
        (["--ray", "auto"], (None, "auto", None)),
        (["--actors", 3], (None, "local", 3)),
        ([], (None, "local", 2)),
    ],
)
def test_a_run_is_repeated_elsewhere(tmp_path, monkeypatch, typed, placed):
    found = []
    monkeypatch.setattr("nres.cli.train._built", found.append)
    monkeypatch.setattr(runs.Run, "create", lambda *arguments: None)
    monkeypatch.setattr("nres.cli.train.carry_out", lambda run, **options: None)
    file = written(tmp_path / "s.yaml", YAML + "ray: local\nactors: 2\n")
    result = invoke("train", "--config", file, "--out", tmp_path / "run", *typed)
    assert result.exit_code == 0, result.output
    (settings,) = found
    assert (settings.devices, settings.ray, settings.actors) == placed


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_a_run_is_repeated_from_its_config(tmp_path):
    start = tmp_path / "start.npz"
    nres.save(start, {"velocity": jnp.array([1.5, 3.0])})
    short = ["--sigma", 0.1, "--lr", "cosine:0.05:0", "--updates", 5, "--set", "horizon=30"]
    begun = ["train", f"{ROOT}/examples/bouncer.py:Bouncer", *short, "--from", start]
    assert invoke(*begun, "--out", tmp_path / "first").exit_code == 0
    start.unlink()  # the first run has a copy of the parameters that it started from
    result = invoke("train", "--config", tmp_path / "first", "--out", tmp_path / "again")
    assert result.exit_code == 0, result.output
    first, again = (runs.Run.open(tmp_path / name) for name in ("first", "again"))
    np.testing.assert_array_equal(first.theta()["velocity"], again.theta()["velocity"])
    assert read_settings(first.path / "config.json") == read_settings(first.path)


def test_code_that_only_a_file_names_needs_trust(tmp_path, monkeypatch):
    monkeypatch.setattr(trust, "is_remembered", lambda code: False)
    code = written(tmp_path / "mine.py", "raise SystemExit('the code ran')\n")
    file = written(tmp_path / "s.yaml", f"system: {code}:Mine\nlr: 1\nsigma: 1\n")
    refused = invoke("train", "--config", file)
    assert refused.exit_code == 2
    for words in (str(file), str(code), "--trust-code"):
        assert words in refused.stderr
    for allowed in (["--trust-code"], [f"{code}:Mine"]):
        assert "the code ran" in str(invoke("train", *allowed, "--config", file).exception)


def test_mistakes_in_files_are_told_in_a_sentence(tmp_path):
    file = written(tmp_path / "s.yaml", "updates: 0\n")
    for arguments, words in (
        (["lorenz", "--config", file], "updates"),
        (["lorenz", "--config", tmp_path / "none.toml"], "none.toml"),
        (["--config", written(tmp_path / "t.yaml", "updates: 1\n")], "system"),
        ([], "SYSTEM"),
    ):
        result = invoke("train", *arguments)
        assert result.exit_code == 2
        assert words in result.stderr
        assert len(result.stderr.strip().splitlines()) == 1
