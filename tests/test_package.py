"""The package's metadata: the oldest versions that it allows are those that it is tested with."""

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

import nres

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def pins(file):
    lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


def test_oldest_versions_are_those_that_are_required():
    extras = PROJECT["optional-dependencies"]
    [own] = [r for r in map(Requirement, extras["test"]) if r.name == "nres"]
    listed = [*PROJECT["dependencies"], *extras["test"]]
    listed += [requirement for name in own.extras for requirement in extras[name]]
    allowed = {r.name: r.specifier for r in map(Requirement, listed) if r.name != "nres"}
    oldest = {pin.name: pin for pin in pins("constraints-oldest.txt")}
    for name, bounds in allowed.items():
        [least] = [bound for bound in bounds if bound.operator == ">="]
        [pinned] = oldest[name].specifier
        assert Version(pinned.version) == Version(least.version), name


def test_tested_versions_are_allowed():
    bounds = {r.name: r.specifier for r in map(Requirement, PROJECT["dependencies"])}
    tested = [pin for pin in pins("constraints.txt") if pin.name in bounds]
    assert {pin.name for pin in tested} == set(bounds)
    for pin in tested:
        [pinned] = pin.specifier
        assert bounds[pin.name].contains(pinned.version), pin


def test_the_version_is_written_once_and_has_an_entry_in_the_changelog():
    assert "version" in PROJECT["dynamic"]
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.search(r"^## (\S+) \((\d{4}-\d\d-\d\d|unreleased)\)$", changes, re.MULTILINE)
    assert newest is not None
    assert newest[1] == nres.__version__
