"""Systems by their names on the command line."""

import contextlib
import difflib
import functools
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from nres.experiments.presets import SYSTEMS
from nres.pools.base import Pool
from nres.pools.gym import GymPool
from nres.system import System


class SettingsError(ValueError):
    """Settings that do not make a run."""


def load_system(name: str, options: dict[str, Any]) -> Any:
    """A system by its known name, `path/to/file.py:ClassName` or `module:ClassName`."""
    if name in SYSTEMS:
        make = SYSTEMS[name].make
    elif name.startswith("gym:"):
        make = functools.partial(GymPool, name.removeprefix("gym:"))
    else:
        make = user_class(name)[1]
    try:
        system = make(**options)
    except (TypeError, ValueError) as error:
        given = ", ".join(f"{k}={v!r}" for k, v in options.items()) or "nothing"
        raise SettingsError(f"{name} cannot be made from {given}: {error}") from error
    if not isinstance(system, System | Pool):
        raise SettingsError(
            f"{name} is a {type(system).__name__}, neither an nres.System nor an nres.Pool."
        )
    return system


def full_name(system: str) -> str:
    """The name of a system, wherever one may be."""
    return system if system in SYSTEMS or system.startswith("gym:") else user_class(system)[0]


def user_class(name: str) -> tuple[str, Any]:
    """The class that a name of the user's stands for, and the name wherever one may be."""
    where, colon, attribute = name.rpartition(":")
    if not colon or not attribute.isidentifier():
        raise SettingsError(
            unknown("system", name, SYSTEMS)
            + " Your own: path/to/file.py:ClassName or module:ClassName; gymnasium's: gym:ENV-ID."
        )
    try:
        if where.endswith(".py"):
            where = str(Path(where).resolve())
            module = _load_file(Path(where))
        else:
            with _importable(Path.cwd()):
                module = importlib.import_module(where)
    except SettingsError:
        raise
    except Exception as error:
        raise SettingsError(f"{where} cannot be imported: {error!r}.") from error
    if not hasattr(module, attribute):
        classes = [n for n, v in vars(module).items() if isinstance(v, type)]
        raise SettingsError(unknown(f"class in {where}", attribute, classes))
    return f"{where}:{attribute}", getattr(module, attribute)


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise SettingsError(f"there is no file {path}.")
    name = f"nres_user_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    with _importable(path.parent):  # it may import its neighbours
        spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def _importable(folder: Path) -> Iterator[None]:
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def unknown(kind: str, name: str, known: Any) -> str:
    """That there is no such name, and what may have been meant."""
    close = difflib.get_close_matches(name, list(known), 1)
    hint = f" Did you mean {close[0]}?" if close else f" There are {', '.join(known)}."
    return f"no {kind} is called {name!r}.{hint}"
