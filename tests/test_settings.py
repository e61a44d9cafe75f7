"""Each setting is declared once; options, checks and documentation follow from that."""

import ast
import dataclasses
import graphlib
import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import typer

import nres
from helpers import as_users_run, invoke
from nres import runs
from nres.cli import app
from nres.runs.placement import relocated
from nres.runs.registry import SYSTEMS
from nres.runs.settings import DECLARATIONS, Settings, default_of

ROOT = Path(__file__).parent.parent
BOUNCER = ROOT / "examples" / "bouncer.py"
BOUNCER_NAME = f"{BOUNCER}:Bouncer"
SHORT = {"sigma": 0.1, "lr": 0.03, "updates": 4, "options": {"horizon": 30}}
# The options of the commands that are generated from settings, with their defaults.
PLACED = {"--devices": None, "--ray": None, "--actors": None, "--allow-stale": False}
PLACED |= {"--coordinator": None, "--num-processes": None, "--process-id": None}
PLACED |= {"--connect-timeout": 60}
PRINTED = {"--tensorboard": False, "--quiet": False}
SYSTEM = {"--set": None, "--policy": None, "--data-dir": None}
COMMON = {"--workers": None, "--sigma": None, "--optimizer": None, "--lr": None, "--updates": None}
COMMON |= {
    "--warmup": None,
    "--clip": None,
    "--noise": None,
    "--phases": None,
    "--adapt-sigma": False,
}
OPTIONS = {
    "train": COMMON | PLACED | PRINTED | SYSTEM
    | {"--method": "nres", "--window": None, "--period": None, "--seed": 0}
    | {"--regenerate-noise": False, "--shaping": None}
    | {"--start-seed": None, "--from": None, "--out": None, "--eval-every": None}
    | {"--log-every": None, "--checkpoint-every": None, "--checkpoint-seconds": 60.0}
    | {"--keep-every": None, "--config": None, "--trust-code": False}
    | {"--stop-after": None, "--auto-stop": None, "--seeds": None}
    | {"--auto": False, "--total-steps": None, "--sequential-steps": None, "--seconds": None},
    "compare": COMMON | SYSTEM
    | {"--methods": "nres,pes,tes,fulles", "--seeds": 3, "--budget-steps": None}
    | {"--budget-seconds": None, "--level": None, "--out": None, "--quiet": False},
    "resume": PLACED | PRINTED
    | {"--updates": None, "--fresh-episodes": False, "--trust-code": False}
    | {"--stop-after": None, "--auto-stop": None},
}  # fmt: skip


def command(name):
    return typer.main.get_command(app).commands[name]


@pytest.mark.parametrize("name", OPTIONS)
def test_the_options_of_a_command(name):
    found = {p.opts[0]: p for p in command(name).params if p.param_type_name == "option"}
    assert {flag: option.default for flag, option in found.items()} == OPTIONS[name]


def test_every_setting_has_a_panel_and_a_default_to_show():
    for name, declared in DECLARATIONS.items():
        assert declared.panel
        if declared.commands and default_of(name) is None:
            assert declared.default_text, name


def test_help_groups_the_options():
    shown = invoke("train", "--help").output
    headings = ["Everyday options", "System", "Estimator", "Optimization"]
    headings += ["Evaluation and metrics", "Checkpoints", "Devices and machines"]
    found = [shown.index(f"─ {heading} ─") for heading in headings]
    assert found == sorted(found)


def test_settings_are_kept_in_one_form():
    given = runs.resolve("lorenz", "nres", lr=1, sigma="0.10", checkpoint_seconds=5).to_json()
    assert (given["lr"], given["sigma"], given["checkpoint_seconds"]) == ("1.0", "0.1", 5.0)
    assert Settings.from_json(json.loads(json.dumps(given))).to_json() == given


def test_settings_of_earlier_versions_open():
    recorded = runs.resolve("lorenz", "nres").to_json()
    later = ("budget_seconds", "devices", "ray", "actors", "allow_stale", "keep_every")
    for name in (*later, "start_seed", "start_from", "warmup", "clip", "stop_after", "auto_stop"):
        del recorded[name]
        settings = Settings.from_json(recorded)
        assert getattr(settings, name) == default_of(name)


def test_earlier_versions_had_independent_noises_and_starting_points():
    for method, kept, noise, phases in [
        ("nres", "regenerate", "gaussian", "independent"),
        ("fulles", None, "gaussian", None),
        ("uoro", None, None, "independent"),
    ]:
        recorded = runs.resolve("lorenz", method).to_json() | {"noise": kept}
        del recorded["phases"], recorded["regenerate_noise"]
        settings = Settings.from_json(recorded)
        assert (settings.noise, settings.phases) == (noise, phases)
        assert settings.regenerate_noise == (kept == "regenerate")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("colour", 1),
        ("workers", 2.0),
        ("workers", True),
        ("updates", 2**31),
        ("seed", 2**63),
        ("optimizer", 3),
        ("checkpoint_seconds", "often"),
        ("options", [1]),
        ("options", {"key": object()}),
        ("allow_stale", 1),
        ("ray", 5),
        ("devices", "some"),
        ("actors", 0),
    ],
)
def test_a_wrong_value_is_refused_by_name(name, value):
    with pytest.raises(runs.SettingsError, match=name):
        runs.resolve("lorenz", "nres", **{name: value})


def test_a_run_is_relocated():
    settings = runs.resolve("lorenz", "nres")
    assert relocated(settings) == settings
    placed = relocated(settings, devices="2")
    assert placed == dataclasses.replace(settings, devices=2) == relocated(placed)
    away = relocated(placed, ray="local", actors=3)
    assert (away.devices, away.ray, away.actors) == (None, "local", 3)
    assert relocated(away, actors=4) == dataclasses.replace(away, actors=4)
    assert relocated(away, ray="none") == settings
    for given in ({"actors": 2}, {"allow_stale": True}, {"ray": "none", "actors": 2}):
        with pytest.raises(runs.SettingsError, match="--ray"):
            relocated(settings, **given)


COUNTED = """
import pathlib
with pathlib.Path(__file__).with_suffix(".log").open("a") as log:
    log.write("executed\\n")
"""


def test_the_file_of_a_system_is_executed_once(tmp_path):
    """`resolve`, `build`, `create` and `execute` share one execution, unless the file changes."""
    file, log = tmp_path / "mine.py", tmp_path / "mine.log"
    source = COUNTED + BOUNCER.read_text()
    file.write_text(source)
    arguments = ["--sigma", 0.1, "--lr", 0.03, "--updates", 2, "--set", "horizon=30", "--quiet"]
    result = invoke("train", f"{file}:Bouncer", *arguments, "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    assert log.read_text() == "executed\n"
    file.write_text(source + "# changed\n")
    with as_users_run():
        runs.build(runs.resolve(f"{file}:Bouncer", "nres", **SHORT))
    assert log.read_text() == "executed\n" * 2


def test_imports_of_runs_go_one_way():
    folder = Path(nres.__file__).parent / "runs"
    graph = {}
    for file in folder.glob("*.py"):
        tree = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        names = {node.module for node in tree if isinstance(node, ast.ImportFrom)}
        assert not any(name.startswith("nres.cli") for name in names)
        graph[f"nres.runs.{file.stem}"] = {n for n in names if n.startswith("nres.runs.")}
    assert list(graphlib.TopologicalSorter(graph).static_order())


def test_settings_are_filled_from_the_paper():
    settings = runs.resolve("lorenz", "pes", seed=3)
    assert (settings.workers, settings.window, settings.sigma) == (200, 100, "0.04")
    assert settings.lr == "1e-05,1000:1e-06"
    assert runs.resolve("lorenz", "pes", lr=0.5).lr == "0.5"
    assert runs.resolve("lorenz", "fulles").window is None
    for method in SYSTEMS["lorenz"].presets:
        with as_users_run():
            components = runs.build(runs.resolve("lorenz", method))
        assert type(components.estimator).__name__.lower() == method
    again = Settings.from_json(json.loads(json.dumps(settings.to_json())))
    assert again == settings


@pytest.mark.parametrize(
    ("system", "method", "given", "words"),
    [
        ("lorens", "nres", {}, "lorens.*lorenz"),
        ("lorenz", "nrs", {}, "nrs.*nres"),
        ("lorenz", "nres", {"optimizer": "sdg"}, "sdg.*sgd"),
        ("lorenz", "bptt", {"sigma": 0.1}, "bptt.*sigma.*workers"),
        ("lorenz", "nres", {"lr": "fast"}, "lr.*'fast'"),
        ("lorenz", "nres", {"lr": "1,5:2,5:3"}, "lr.*'1,5:2,5:3'"),
        ("lorenz", "nres", {"lr": "-1"}, "lr.*'-1'"),
        ("lorenz", "nres", {"updates": 0}, "updates.*1"),
        ("lorenz", "nres", {"checkpoint_seconds": 0.0}, "checkpoint_seconds"),
        ("lorenz", "nres", {"window": 3000}, "window.*horizon"),
        ("lorenz", "nres", {"options": {"size": 3}}, "lorenz.*size=3"),
        (BOUNCER_NAME, "nres", {}, "nres.*Bouncer.*--lr.*--sigma"),
        (BOUNCER_NAME + "x", "nres", {}, "Bouncerx.*Bouncer"),
        ("nowhere.py:X", "nres", {}, "nowhere.py"),
        ("json:JSONDecoder", "nres", {"lr": 1, "sigma": 1}, "json:JSONDecoder.*nres.System"),
        ("no_such_module:X", "nres", {}, "no_such_module"),
        ("helpers:Wave", "nres", {"lr": 1, "sigma": 1}, "helpers:Wave.*initial_theta"),
    ],
)
def test_what_does_not_make_a_run(system, method, given, words):
    with as_users_run(), pytest.raises(runs.SettingsError, match=words):
        runs.build(runs.resolve(system, method, **given))


def test_modules_of_the_current_folder(tmp_path, monkeypatch):
    shutil.copy(ROOT / "examples/bouncer.py", tmp_path / "local_bouncer.py")
    monkeypatch.chdir(tmp_path)
    settings = runs.resolve("local_bouncer:Bouncer", "nres", sigma=0.1, lr=0.1)
    assert settings.window == 30
    assert os.getcwd() not in sys.path


def test_piecewise():
    rate = nres.Piecewise.parse("1e-5,1000:1e-6,2000:0.25")
    np.testing.assert_allclose([rate(0), rate(999)], 1e-5)
    np.testing.assert_allclose([rate(1000), rate(1999), rate(2000)], [1e-6, 1e-6, 0.25])
    assert nres.Piecewise.parse(str(rate)) == rate
