"""What is imported by whom: `import nres` is light, and the paper is a guest."""

import ast
import graphlib
import subprocess
import sys
from pathlib import Path

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


def loaded_by(code):
    """Those of the heavy modules that a new process has after running some code."""
    script = f"{code}\nimport sys\nprint(*(name for name in {HEAVY} if name in sys.modules))"
    command = [sys.executable, "-c", script]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def test_importing_nres_imports_nothing_heavy():
    assert loaded_by("import jax, optax, equinox") == []
    assert loaded_by("import nres; nres.systems.Lorenz(); nres.NRES; nres.train") == []


def test_learned_optimizers_are_imported_without_their_kernels():
    code = "import nres.systems.learned_optimizer as lo; lo.PerParameterMLP(); lo.cifar10_task"
    assert "jax.experimental.pallas" not in loaded_by(code)


def test_public_modules_are_imported_when_they_are_used():
    assert set(dir(nres)) >= {"checkpoint", "data", "runs", "systems", "variance", "NRES"}
    assert nres.load_optimizer is nres.systems.learned_optimizer.load_optimizer
    assert "learned_optimizer" in dir(nres.systems)
    for module in (nres, nres.systems):
        with raises_naming(AttributeError, "nonsense"):
            _ = module.nonsense


def imports(package, walk=ast.walk):
    """All imports in a package: the file, the module, and the name that is taken from it."""
    for file in sorted((SOURCE / package).rglob("*.py")):
        for node in walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                yield from ((file, alias.name, None) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{file} has a relative import"
                yield from ((file, node.module, alias.name) for alias in node.names)


LAYERS = ("runs", "figures", "report", "cli")


def layer(name):
    """The layer of a module of nres: those that are not named are below all others."""
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
    """Every node of a syntax tree, except for imports that only type checkers read."""
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
    """Those inside functions included: they would hide a circle, not remove it."""
    packages = ("nres", "nres_paper")
    graph = {module_of(file): set() for p in packages for file in (SOURCE / p).rglob("*.py")}
    for package in packages:
        for file, module, name in imports(package, walk_what_runs):
            taken = f"{module}.{name}" if f"{module}.{name}" in graph else module
            if taken in graph:
                graph[module_of(file)].add(taken)
    assert "nres.systems.learned_optimizer.kernels.dense" in set().union(*graph.values())
    graphlib.TopologicalSorter(graph).prepare()  # raises an error that names the circle
