"""The README and docs/: their code runs and prints what they show; their numbers are current."""

import contextlib
import io
import re
import subprocess
import sys
from pathlib import Path

import pytest

from helpers import as_users_run

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
CODE = re.compile(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", re.DOTALL)
NUMBER = re.compile(r"-?\d+\.?\d*(?:e[-+]\d+)?")


def name_of(page):
    return str(page.relative_to(ROOT))


@pytest.mark.scripts
@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_code_runs(page):
    """Code runs from top to bottom: a block may use names that an earlier one defines."""
    names: dict = {}
    for code, shown in CODE.findall(page.read_text()):
        if "placement.Ray(" in code:  # test_ray.py runs this, where there is a cluster
            continue
        with as_users_run(), contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(code, names)
        if shown:
            assert_alike(printed.getvalue(), shown)


def assert_alike(printed, shown):
    """The words are the same; the numbers may differ a little between machines."""
    assert NUMBER.sub("#", printed) == NUMBER.sub("#", shown)
    for ours, theirs in zip(NUMBER.findall(printed), NUMBER.findall(shown), strict=True):
        assert float(ours) == pytest.approx(float(theirs), rel=0.25, abs=1e-3)


def test_numbers_come_from_results():
    subprocess.run([sys.executable, "tools/readme.py", "--check"], cwd=ROOT, check=True)


def test_outputs_are_those_of_the_examples():
    subprocess.run([sys.executable, "tools/gallery.py", "--check"], cwd=ROOT, check=True)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        if link.startswith(("http:", "https:")):
            continue
        file, _, heading = link.partition("#")
        target = page.parent / file if file else page
        assert target.exists(), link
        if heading:
            headings = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
            assert heading in {slug(text) for text in headings}, link


def slug(heading):
    """Return the anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-")


def test_examples_are_in_the_gallery():
    gallery = (ROOT / "docs/gallery.md").read_text()
    for example in (ROOT / "examples").iterdir():
        if example.suffix == ".ipynb" or (
            example.suffix == ".py" and not example.with_suffix(".ipynb").exists()
        ):
            assert f"](../examples/{example.name})" in gallery, example.name


def test_long_description_has_absolute_links():
    """A package index shows the README without the files that its links lead to."""
    from hatchling.metadata.core import ProjectMetadata
    from hatchling.plugin.manager import PluginManager

    project = ProjectMetadata(str(ROOT), PluginManager()).core
    assert project.readme_content_type == "text/markdown"
    readme = (ROOT / "README.md").read_text()
    links = re.findall(r"\]\(([^)]+)\)", project.readme)
    assert len(links) == len(re.findall(r"\]\(([^)]+)\)", readme)) > 10
    repository = project.urls["Repository"]
    for link in links:
        assert link.startswith("https://"), link
        if link.startswith(repository):
            kind, branch, path = link.removeprefix(f"{repository}/").split("/", 2)
            assert (kind, branch) == ("raw" if path.endswith(".png") else "blob", "main")
            assert (ROOT / path.partition("#")[0]).exists(), link
    assert not re.search(r"""(src|href)=["'](?!https:)""", project.readme)


def test_addresses_are_those_of_the_project():
    """The repository's address is written in pyproject.toml only."""
    from hatchling.metadata.core import ProjectMetadata
    from hatchling.plugin.manager import PluginManager

    urls = ProjectMetadata(str(ROOT), PluginManager()).core.urls
    assert all(url.startswith(urls["Repository"]) for url in urls.values())
    for page in [*PAGES, ROOT / "mkdocs.yml", *(ROOT / "tools").rglob("*.py")]:
        assert urls["Repository"] not in page.read_text(), page
