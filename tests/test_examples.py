"""Examples run, are short, and the notebook says what its script says."""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from helpers import as_users_run

ROOT = Path(__file__).parent.parent
SCRIPTS = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.scripts
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_an_example(script, monkeypatch):
    assert len(script.read_text().splitlines()) < 60
    monkeypatch.setattr(sys, "argv", [str(script), "--quick"])
    with as_users_run():
        runpy.run_path(str(script), run_name="__main__")


def test_the_notebook_is_its_script():
    subprocess.run([sys.executable, "tools/notebook.py", "--check"], cwd=ROOT, check=True)
    page = json.loads((ROOT / "examples/lotka_volterra.ipynb").read_text())
    assert page["nbformat"] == 4
    code = "\n\n".join("".join(c["source"]) for c in page["cells"] if c["cell_type"] == "code")
    compile(code, "lotka_volterra.ipynb", "exec")
