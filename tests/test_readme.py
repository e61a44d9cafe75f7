"""The README and docs/: their code runs, and their numbers are those of results/."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from helpers import as_users_run

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.scripts
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_runs(page):
    """From top to bottom: a block may use what an earlier one has defined."""
    names: dict = {}
    for code in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
        if "placement.Ray(" not in code:  # that is run where there is a cluster, in test_ray.py
            with as_users_run():
                exec(code, names)


def test_numbers_come_from_results():
    subprocess.run([sys.executable, "tools/readme.py", "--check"], cwd=ROOT, check=True)


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)h][^)]*)\)", page.read_text()):
        file, _, heading = link.partition("#")
        target = page.parent / file
        assert target.exists(), link
        if heading:
            headings = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
            assert heading in {text.lower().replace(" ", "-") for text in headings}, link
