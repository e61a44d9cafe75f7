"""Trust in the code that the config of a run names.

A run folder is data, and may come from anybody. Its config names the system by a file or a module,
whose code would run with your permissions. nres runs that code only if you have named it yourself,
on a command line or in Python, or if you say that you trust it. nres remembers what you named, per
user and machine, so that your own runs resume without a question. The same holds for the address of
a Ray cluster, because Ray unpickles what a cluster sends.
"""

import contextlib
import importlib.machinery
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from nres.runs.names import library_of
from nres.runs.registry import SYSTEMS


def foreign_code(system: str, options: dict[str, Any]) -> list[str]:
    """List the files and modules outside of nres whose code constructing a system would run."""
    where, _, _ = system.rpartition(":")
    if system in SYSTEMS or not where:  # an unknown name is refused elsewhere
        return []
    if system.startswith("gym:"):
        # gymnasium imports the module before a colon in the name of an environment.
        given = {name: value for name, value in options.items() if name != "policy"}
        texts = [system.removeprefix("gym:"), *_texts(given)]
        return [text for text in texts if ":" in text]
    if library_of(system) is not None:
        return []
    if where.endswith(".py"):
        return [str(Path(where).resolve())]
    if re.fullmatch(r"nres\.systems(\.\w+)*", where):
        return []
    return [f"{where} ({_origin(where.partition('.')[0])})"]


def _texts(value: Any) -> Iterator[str]:
    """Yield all strings in a JSON value, at any depth."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for pair in value.items():
            yield from _texts(list(pair))
    elif isinstance(value, list):
        for part in value:
            yield from _texts(part)


def _origin(module: str) -> str:
    """Find the file of a top-level module without importing it: its name alone proves nothing."""
    found = importlib.machinery.PathFinder.find_spec(module, [str(Path.cwd()), *sys.path])
    return "not found" if found is None else str(found.origin)


def foreign_cluster(ray: str | None) -> list[str]:
    """List the Ray cluster at an address, unless it belongs to this machine."""
    return [] if ray in (None, "local", "auto") else [f"the Ray cluster {ray}"]


def remember(names: Iterable[str]) -> None:
    """Remember code and clusters that the user has named."""
    fresh = [name for name in names if not is_remembered(name)]
    if not fresh:
        return
    with contextlib.suppress(OSError):  # without a writable home, the user needs --trust-code
        file = _file()
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a", encoding="utf-8") as lines:
            lines.writelines(name.replace("\n", " ") + "\n" for name in fresh)


def refusal(
    subject: str | Path,
    system: str,
    options: dict[str, Any],
    ray: str | None,
    named: Iterable[str] = (),
) -> str | None:
    """Return the message that refuses to build a run, or `None` if all that it names is trusted.

    Args:
        subject: The folder or file that names the system and the cluster.
        system: The name of the system.
        options: The arguments of its constructor.
        ray: The address of the Ray cluster, if there is one.
        named: Code and clusters that the user names now.
    """
    for code in foreign_code(system, options):
        if code not in named and not is_remembered(code):
            return (
                f"{subject} names the system {system}, which would run the code in {code}. You "
                "have not named that code on this machine yet. If you trust it, add --trust-code, "
                "or trust_code=True in Python."
            )
    for cluster in foreign_cluster(ray):
        if cluster not in named and not is_remembered(cluster):
            return (
                f"{subject} names {cluster}, which could run code on this machine. You have not "
                "named that cluster on this machine yet. If you trust it, add --trust-code, or "
                "trust_code=True in Python; with --ray you choose another place."
            )
    return None


def is_remembered(name: str) -> bool:
    """Return whether the user has named this file, module or cluster before."""
    try:
        return name in _file().read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return False


def _file() -> Path:
    import platformdirs

    return platformdirs.user_state_path("nres", appauthor=False) / "named-code.txt"
