"""Commands of other packages on the command line of nres."""

import runpy
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from helpers import invoke
from nres.cli import extensions

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"
FAR = """
import typer

def far(times: int = 1) -> None:
    \"\"\"Come from afar.\"\"\"
    typer.echo("from afar " * times)
"""


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Install commands, given by their names and entry points."""
    (tmp_path / "far_away.py").write_text(FAR)
    (tmp_path / "far_broken.py").write_text("raise RuntimeError('it is broken')")
    monkeypatch.syspath_prepend(str(tmp_path))
    points = []
    monkeypatch.setattr(extensions, "entry_points", lambda group: points)

    def install(**commands):
        points[:] = [EntryPoint(*one, extensions.GROUP) for one in commands.items()]

    yield install
    for name in ("far_away", "far_broken"):
        sys.modules.pop(name, None)


def test_a_command_of_another_package(installed):
    installed(far="far_away:far")
    assert invoke("list").exit_code == 0
    assert "far_away" not in sys.modules  # not before it is called
    assert "Did you mean 'far'" in invoke("farr").stderr
    assert "far_away" not in sys.modules
    called = invoke("far", "--times", 2)
    assert (called.exit_code, called.output) == (0, "from afar from afar \n")
    assert "--times" in invoke("far", "-h").output
    listed = invoke("--help")
    assert "Come from afar." in listed.output
    assert "train" in listed.output


def test_a_command_that_cannot_be_imported_leaves_the_others_alone(installed):
    installed(far="far_broken:far", train="far_away:far")
    listed = invoke("--help")
    assert listed.exit_code == 0
    assert "far_broken:far cannot be imported" in listed.output
    called = invoke("far", "--times", 2)
    assert called.exit_code == 1
    assert "RuntimeError: it is broken" in called.stderr
    # A command of nres is not replaced.
    assert "--times" not in invoke("train", "--help").output


def test_reproduce_is_such_a_command(installed):
    declared = tomllib.loads(PYPROJECT.read_text())["project"]["entry-points"]
    assert declared.keys() == {extensions.GROUP}
    installed(**declared[extensions.GROUP])
    assert "lorenz-es" in invoke("reproduce").output
    # An installation that is older than the source does not name it.
    installed()
    old = invoke("reproduce", "lorenz-es")
    assert old.exit_code == 2
    assert "reinstall nres" in old.stderr
    assert "python -m nres_paper" in old.stderr


def test_the_paper_needs_no_installation(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["nres_paper", "lorenz-ed"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("nres_paper", run_name="__main__")
    assert ended.value.code == 2
    assert "Did you mean lorenz-es?" in capsys.readouterr().err
