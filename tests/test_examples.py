"""Examples and notebooks run; a notebook says what its script says."""

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

from helpers import as_users_run

EXAMPLES = Path(__file__).parents[1] / "examples"
# The sizes that tests reduce, so that a notebook takes seconds.
NOTEBOOKS = {
    "first_steps": {"updates": 20},
    "own_simulator": {"updates": 3},
    "choose_settings": {
        "horizon, points, episodes": (200, 3, 10),
        "samples": 64,
        "budget": (10**6, 10**4),
        "updates, results": (20, {}),
    },
}
SCRIPTS = sorted(script for script in EXAMPLES.glob("*.py") if script.stem not in NOTEBOOKS)


@pytest.mark.scripts
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_an_example(script, monkeypatch):
    assert len(script.read_text(encoding="utf-8").splitlines()) < 60
    monkeypatch.setattr(sys, "argv", [str(script), "--quick"])
    with as_users_run():
        runpy.run_path(str(script), run_name="__main__")


@pytest.mark.scripts
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plt.switch_backend("agg")
    page = json.loads((EXAMPLES / f"{name}.ipynb").read_text(encoding="utf-8"))
    cells = ["".join(cell["source"]) for cell in page["cells"] if cell["cell_type"] == "code"]
    code = "\n\n".join(cells)
    for setting, value in NOTEBOOKS[name].items():
        code, found = re.subn(rf"^{setting} = .*$", f"{setting} = {value}", code, flags=re.M)
        assert found == 1, setting
    with as_users_run():
        exec(compile(code, f"{name}.ipynb", "exec"), {})
    plt.close("all")


@pytest.mark.slow
def test_notebooks_are_their_scripts():
    assert {file.stem for file in EXAMPLES.glob("*.ipynb")} == set(NOTEBOOKS)
    command = [sys.executable, "tools/notebook.py", "--check"]
    subprocess.run(command, cwd=EXAMPLES.parent, check=True)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_has_outputs(name):
    page = json.loads((EXAMPLES / f"{name}.ipynb").read_text(encoding="utf-8"))
    assert page["nbformat"] == 4
    kinds = {output["output_type"] for cell in page["cells"] for output in cell.get("outputs", [])}
    assert kinds == {"stream", "display_data"}
