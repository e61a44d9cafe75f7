"""Imports: `import nres` is light, layers import downwards, the paper uses public names."""

import ast
import graphlib
import subprocess
import sys
from pathlib import Path

import pytest

import nres
from helpers import raises_naming

SOURCE = Path(__file__).parents[1] / "src"
HEAVY = (
    "gymnasium",
    "jax.experimental.pallas",
    "matplotlib",
    "mujoco",
    "nres_paper",
    "orbax",
    "ray",
    "rich",
    "scipy",
    "typer",
)
PUBLIC = {
    "nres",
    "nres.cli",
    "nres.figures",
    "nres.runs",
    "nres.systems",
    "nres.systems.learned_optimizer",
    "nres.variance",
}


STEPS = (
    "import jax, optax, equinox",
    "import nres; nres.systems.Lorenz(); nres.NRES; nres.train",
    "import nres.systems.learned_optimizer as lo; lo.PerParameterMLP(); lo.cifar10_task",
)


def test_nothing_heavy_is_imported_before_it_is_used():
    """One new process takes the steps in turn and prints the heavy modules that it has loaded."""
    show = f"import sys; print([name for name in {HEAVY} if name in sys.modules])"
    script = "\n".join(line for step in STEPS for line in (step, show))
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    basis, library, learned = map(ast.literal_eval, done.stdout.splitlines())
    assert basis == []
    assert library == []
    assert "jax.experimental.pallas" not in learned


ELSEWHERE = """
import importlib, os, pathlib, pkgutil, sys
import nres, nres_paper

def import_all():
    for package in ("nres", "nres_paper"):
        path = importlib.import_module(package).__path__
        for module in pkgutil.walk_packages(path, f"{package}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)

import_all()  # so that other packages find what they expect on this system
for name in [name for name in sys.modules if name.partition(".")[0] in ("nres", "nres_paper")]:
    del sys.modules[name]
for name in ("fcntl", "grp", "posix", "pty", "pwd", "readline", "resource", "termios", "tty"):
    sys.modules[name] = None
for name in ("fork", "getuid", "killpg", "sched_getaffinity", "sysconf", "O_NONBLOCK"):
    delattr(os, name)
import_all()

from nres import checks, files
from nres.runs.machine import device
checks.memory(), device()
files.create_json(pathlib.Path("new.json"), {"written": True})
assert b"written" in files.read_plain(pathlib.Path("new.json"))
"""


@pytest.mark.slow
def test_nothing_is_needed_that_only_posix_has(tmp_path):
    """All modules can be imported, and files written, without what Windows lacks."""
    subprocess.run([sys.executable, "-c", ELSEWHERE], cwd=tmp_path, check=True)


def test_public_modules_are_imported_when_they_are_used():
    assert set(dir(nres)) >= {"checkpoint", "data", "runs", "systems", "variance", "NRES"}
    assert nres.load_optimizer is nres.systems.learned_optimizer.load_optimizer
    assert "learned_optimizer" in dir(nres.systems)
    for module in (nres, nres.systems):
        with raises_naming(AttributeError, "nonsense"):
            _ = module.nonsense


def imports(package, walk=ast.walk):
    """Yield all imports of a package as (file, module, imported name)."""
    for file in sorted((SOURCE / package).rglob("*.py")):
        for node in walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                yield from ((file, alias.name, None) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{file} has a relative import"
                yield from ((file, node.module, alias.name) for alias in node.names)


# As docs/built.md gives them; modules that are not named here are below all of these.
LAYERS = (
    *(
        "system",
        "weights",
        "policies",
        "acting",
        "noise",
        "workers",
        "pools",
        "execution",
        "placement",
    ),
    *("tracing", "estimators", "updates", "history", "log", "seeds", "progress", "display"),
    *(
        "results",
        "loop",
        "training",
        "evaluation",
        "diagnosis",
        "tuning",
        "variance",
        "callbacks",
        "systems",
        "runs",
        "figures",
    ),
    *("report", "cli"),
)


def layer(name):
    """Return the layer of a module of nres; modules without one are below all others."""
    part = name.split(".")[1] if "." in name else ""
    return LAYERS.index(part) + 1 if part in LAYERS else 0


def test_imports_run_one_way():
    for file, module, name in imports("nres"):
        assert module.partition(".")[0] != "nres_paper", file
        own = ".".join(file.relative_to(SOURCE).with_suffix("").parts)
        if module.partition(".")[0] == "nres" and own not in ("nres.__init__", "nres.__main__"):
            assert layer(f"{module}.{name}") <= layer(own), f"{file} imports {module}"


def test_the_paper_uses_public_names_only():
    for file, module, name in imports("nres_paper"):
        if module.partition(".")[0] == "nres":
            assert module in PUBLIC, f"{file} imports {module}"
            assert name is None or not name.startswith("_"), f"{file} imports {name}"


def walk_what_runs(node):
    """Yield every node of a syntax tree except imports for type checkers only."""
    yield node
    skipped = []
    if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
        skipped = node.body
    for child in ast.iter_child_nodes(node):
        if child not in skipped:
            yield from walk_what_runs(child)


def module_of(file):
    return ".".join(p for p in file.relative_to(SOURCE).with_suffix("").parts if p != "__init__")


def test_imports_run_in_no_circle():
    """Imports inside functions count, too: they would hide a circle, not remove it."""
    packages = ("nres", "nres_paper")
    graph = {module_of(file): set() for p in packages for file in (SOURCE / p).rglob("*.py")}
    for package in packages:
        for file, module, name in imports(package, walk_what_runs):
            taken = f"{module}.{name}" if f"{module}.{name}" in graph else module
            if taken in graph:
                graph[module_of(file)].add(taken)
    assert "nres.systems.learned_optimizer.kernels.dense" in set().union(*graph.values())
    graphlib.TopologicalSorter(graph).prepare()  # raises an error that names the circle
