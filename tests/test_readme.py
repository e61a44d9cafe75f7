"""The README: its code runs, and its numbers are those of results/."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from helpers import as_users_run

ROOT = Path(__file__).parent.parent
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


@pytest.mark.parametrize("code", BLOCKS)
def test_code_runs(code):
    with as_users_run():
        exec(code, {})


def test_numbers_come_from_results():
    subprocess.run([sys.executable, "tools/readme.py", "--check"], cwd=ROOT, check=True)


def test_links_lead_somewhere():
    for link in re.findall(r"\]\(([^)h][^)]*)\)", (ROOT / "README.md").read_text()):
        assert (ROOT / link).exists(), link
