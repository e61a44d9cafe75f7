"""The commands: their help pages, their output at 80 columns, and the demonstration."""

import dataclasses
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

import nres
from helpers import as_users_run
from nres import display
from nres.cli import app, compare, demo, variance
from nres.diagnostics import columns
from nres.runs.registry import SYSTEMS

ROOT = Path(__file__).parent.parent
BOUNCER = f"{ROOT}/examples/bouncer.py:Bouncer"
GROUP = typer.main.get_command(app)
CONTEXT = typer.Context(GROUP, info_name="nres", **GROUP.context_settings)
NAMES = GROUP.list_commands(CONTEXT)


def at_80_columns(*arguments):
    with as_users_run():
        return CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "80"})


def rendered(*tables):
    """Return the lines of tables in a terminal of 80 columns."""
    console = Console(width=80, file=io.StringIO())
    console.print(*tables)
    return console.file.getvalue().splitlines()


def assert_fits(lines):
    """Assert that no line is too long, and that nothing was cut off."""
    for line in lines:
        assert len(line) <= 80, line
        assert "…" not in line, line


def options(name):
    """Return the options of a command, or of `nres` itself."""
    if name is None:
        found = GROUP.get_params(CONTEXT)
    else:
        command = GROUP.get_command(CONTEXT, name)
        found = command.get_params(typer.Context(command, parent=CONTEXT, info_name=name))
    return [one for one in found if one.param_type_name == "option"]


@pytest.mark.parametrize("name", [None, *NAMES])
def test_every_option_has_a_help_text_and_a_panel(name):
    for option in options(name):
        assert option.help[0].isupper(), option.opts
        assert option.help.endswith("."), option.opts
        assert name is None or option.rich_help_panel, option.opts
        if option.is_flag:
            assert not option.secondary_opts, option.opts
            assert not option.metavar, option.opts
    if name is not None:
        command = GROUP.get_command(CONTEXT, name)
        first = command.help.partition("\n")[0]
        assert first[0].isupper()
        assert first.endswith(".")


@pytest.mark.parametrize("name", NAMES)
def test_every_option_shows_its_default(name):
    for option in options(name):
        if not option.is_flag:
            shown = option.default if option.show_default is True else option.show_default
            assert shown is not None, option.opts


@pytest.mark.parametrize("name", [None, *NAMES])
def test_help_has_a_short_option_and_fits(name):
    arguments = [] if name is None else [name]
    short, long = (at_80_columns(*arguments, option) for option in ("-h", "--help"))
    assert short.exit_code == long.exit_code == 0
    assert short.output == long.output
    assert "<bool>" not in short.output
    assert_fits(short.output.splitlines())


def test_help_joins_the_lines_of_a_paragraph():
    lines = [line.strip() for line in at_80_columns("report", "-h").output.splitlines()]
    assert all(len(line) > 60 for line in lines if line.startswith("The page is one file"))


def test_version():
    result = at_80_columns("--version")
    assert (result.exit_code, result.output) == (0, f"nres {nres.__version__}\n")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("nres tr", "train"),
        ("nres train lor", "lorenz"),
        ("nres train lorenz --meth", "--method"),
        ("nres train lorenz --method np", ""),
        ("nres train lorenz --method nr", "nres"),
        ("nres train lorenz --optimizer ada", "adam\nadamw\nadagrad\nadam_root"),
    ],
)
def test_shell_completion(words, expected):
    asked = {"_NRES_COMPLETE": "complete_bash", "COMP_WORDS": words}
    asked["COMP_CWORD"] = str(len(words.split()) - 1)
    result = CliRunner().invoke(app, [], prog_name="nres", env=asked)
    assert result.output.strip() == expected


def test_tables_of_lists_fit():
    for command in ("list", "data"):
        result = at_80_columns(command)
        assert result.exit_code == 0
        assert_fits(result.output.splitlines())
    # Every system and every method has one line.
    listed = at_80_columns("list").output
    for name, known in SYSTEMS.items():
        assert re.search(rf"^{name} +{re.escape(known.summary)} *$", listed, re.M)


def test_tables_of_comparisons_fit():
    row = {
        "method": "fulles",
        "seeds": 10,
        "final": -123.456e-7,
        "best": None,
        "reached": dict.fromkeys(nres.runs.AXES, 1.2345e8),
        "times_longer": dict.fromkeys(nres.runs.AXES, 1234.5),
    }
    summary = {
        "system": "learned-optimizer-cifar10",
        "measured": "test_loss",
        "reference": "nres",
        "level": -123.456e-7,
        "methods": [row] * 3,
    }
    for table in (compare._losses(summary), compare.times_table(summary)):
        lines = rendered(table)
        assert_fits(lines)
        assert sum("FullES" in line for line in lines) == 3


def test_the_table_of_variances_fits():
    row = SimpleNamespace(
        period=2_000_000, method="FullES", variance=1.234e-10, low=1.234e-10, high=1.234e-10
    )
    row.snr, row.signal, row.signal_stderr = 1.234e-10, 1.0, 0.0
    lines = rendered(variance._table("lorenz: W = 100, sigma = 0.04", (row,) * 2))
    assert_fits(lines)
    assert len(lines) == 4


def test_the_table_of_the_demo_fits():
    row = dict.fromkeys(("unroll_steps", "sequential_steps", "test_loss"), 123456789.0)
    row |= {"method": "FullES", "updates_per_second": 1e6, "seconds": 1e3, "distance": 1e3}
    lines = rendered(demo._table([row] * 9))
    assert_fits(lines)
    assert len(lines) == 11


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_the_output_of_commands_fits(tmp_path):
    settings = ["--sigma", 0.1, "--lr", 0.01, "--updates", 4, "--workers", 4]
    short = ["--set", "horizon=30"]
    command = ["compare", BOUNCER, "--methods", "nres,bptt", "--seeds", 1, *settings, *short]
    compared = at_80_columns(*command, "--out", tmp_path / "both")
    assert compared.exit_code == 0, compared.output
    shown = at_80_columns("show", tmp_path / "both" / "nres-0")
    measured = at_80_columns(
        "variance", BOUNCER, "--sigma", 0.1, *short, "--samples", 16, "--out", tmp_path
    )
    for result in (compared, shown, measured):
        assert result.exit_code == 0, result.output
        # Paths are never broken, so that they can be copied.
        assert_fits([line for line in result.output.splitlines() if str(tmp_path) not in line])


@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_the_display_fits(width, monkeypatch):
    """The bar, the number of updates and the remaining time are visible at any width."""
    monkeypatch.setattr(display, "REFRESH_SECONDS", 0.0)
    console = Console(width=width, file=io.StringIO(), force_terminal=True, color_system=None)
    with display.Display("nres on learned-optimizer-cifar10", console) as shown:
        shown.phase("unlocking")
        for update in (10_000, 10_100):
            steps = SimpleNamespace(total=update * 10_000)
            state = SimpleNamespace(update=update, steps=steps)
            loss = np.array([12.345])
            rows = dict.fromkeys(("grad_norm", *columns(8)), np.array([np.nan]))
            shown(SimpleNamespace(state=state, updates=24_000, rows=rows | {"loss": loss}))
    lines = [re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", line) for line in
             re.split(r"[\r\n]+", console.file.getvalue())]  # fmt: skip
    assert all(len(line) <= width for line in lines)
    last = [line for line in lines if line.strip()][-1]
    for words in ("nres on learned", "━━━", "10,100/24,000", r"\d:\d\d left"):
        assert re.search(words, last), last
    assert ("best" in last) == (width >= 80)
    assert ("steps/s" in last) == (width >= 140)


@pytest.mark.slow
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
    assert "--out" in result.output


def test_help_and_module():
    command = [sys.executable, "-m", "nres", "demo", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "nres demo --out results/demo" in done.stdout
