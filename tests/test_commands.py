"""The command line and the benchmarks, as they are run."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

from typer.testing import CliRunner

import nres
from helpers import as_users_run
from nres.cli import app
from nres.runs.registry import SYSTEMS

ROOT = Path(__file__).parent.parent


def test_demo_writes_a_table_a_figure_and_numbers(tmp_path, monkeypatch):
    lorenz = SYSTEMS["lorenz"]
    short = {name: dataclasses.replace(p, updates=1) for name, p in lorenz.presets.items()}
    small = dataclasses.replace(
        lorenz, make=lambda **given: nres.systems.Lorenz(200, **given), presets=short
    )
    monkeypatch.setitem(SYSTEMS, "lorenz", small)
    out = tmp_path / "new" / "folder"
    with as_users_run():
        result = CliRunner().invoke(app, ["demo", "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert (out / "demo.png").read_bytes().startswith(b"\x89PNG")
    methods = json.loads((out / "demo.json").read_text())["methods"]
    assert [row["method"].lower() for row in methods] == list(lorenz.presets)
    assert len(methods) == 9
    for row in methods:
        assert row["method"] in result.output
        assert row["updates"] == 1
    assert methods[0]["unroll_steps"] == 10 * 2 * 200
    assert sorted(path.name for path in out.iterdir()) == ["demo.json", "demo.png"]


def test_demo_refuses_a_folder_it_cannot_use(tmp_path):
    (tmp_path / "file").write_text("")
    result = CliRunner().invoke(app, ["demo", "--out", str(tmp_path / "file")])
    assert result.exit_code == 2
    assert "needs a folder" in result.output


def test_help_and_module():
    command = [sys.executable, "-m", "nres", "demo", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "nres demo --out results/demo" in done.stdout
