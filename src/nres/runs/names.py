"""Systems, by their names on the command line."""

import contextlib
import difflib
import functools
import importlib
import importlib.util
import json
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from nres.errors import first_line
from nres.pools.base import Pool
from nres.pools.gym import GymPool
from nres.runs.registry import SYSTEMS
from nres.system import System
from nres.systems import BraxEnvironment, GymnaxEnvironment, PlaygroundEnvironment

# Libraries of environments, by the word before the colon.
LIBRARIES: dict[str, type] = {
    "gym": GymPool,
    "brax": BraxEnvironment,
    "playground": PlaygroundEnvironment,
    "gymnax": GymnaxEnvironment,
}


class SettingsError(ValueError):
    """Settings are wrong, missing or contradict each other."""


def load_system(name: str, options: dict[str, Any]) -> Any:
    """Construct a system from its name and options.

    Args:
        name: A known name, `path/to/file.py:ClassName`, `module:ClassName`, or the name of an
            environment after `gym:`, `brax:`, `playground:` or `gymnax:`.
        options: The arguments of its constructor.

    Returns:
        The system or pool.

    Raises:
        SettingsError: The name is unknown, or the options do not fit.
    """
    try:
        if name in SYSTEMS:
            known = SYSTEMS[name]
            return _constructed(known.make, known.kind, options)
        if (library := library_of(name)) is not None:
            env = name.partition(":")[2]
            if "env" in options:
                raise SettingsError(f"{name} already names the environment: leave out --set env.")
            return _constructed(library, library, {"env": env, **options})
        return _made(name, user_object(name)[1], options)
    except (SettingsError, ImportError, MemoryError):
        raise
    except Exception as error:  # the user's code may raise anything
        if name in SYSTEMS and not isinstance(error, TypeError | ValueError | ArithmeticError):
            raise
        given = ", ".join(f"{k}={v!r}" for k, v in options.items())[:100] or "no options"
        raise SettingsError(
            f"{name} cannot be constructed with {given}: {described(error, name)}"
        ) from error


def _constructed(make: Callable[..., Any], kind: type, options: dict[str, Any]) -> Any:
    """Construct a system, or return the last one with the same options if it has no state."""
    if not issubclass(kind, System):
        return make(**options)
    return _immutable(make, json.dumps(options, sort_keys=True))


@functools.lru_cache(maxsize=1)
def _immutable(make: Callable[..., System], options: str) -> System:
    return make(**json.loads(options))


def _made(name: str, found: Any, options: dict[str, Any]) -> Any:
    """Return the system or pool that a name stands for; only classes of those are called."""
    if isinstance(found, type) and issubclass(found, System | Pool):
        return _constructed(found, found, options)
    if isinstance(found, System | Pool):
        if options:
            raise SettingsError(f"{name} is an object, not a class: leave out --set.")
        return found
    raise SettingsError(
        f"{name} is neither an nres.System nor an nres.Pool: name a class that inherits from one "
        "of them."
    )


def described(error: BaseException, name: str) -> str:
    """Describe an error in a user's code in one line: line number, type and message."""
    file = name.rpartition(":")[0]
    place = ""
    if isinstance(error, SyntaxError) and error.filename == file:
        return f"line {error.lineno}: {type(error).__name__}: {error.msg}."
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == file]
    if frames:
        place = f"line {frames[-1].lineno}: "
    kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
    return f"{place}{kind}{first_line(error).rstrip('.')}."


def full_name(system: str) -> str:
    """Return the name of a system with an absolute path, which is valid in every folder."""
    known = system in SYSTEMS or library_of(system) is not None
    return system if known else user_object(system)[0]


def library_of(system: str) -> type | None:
    """Return the class for environments of the library that a name begins with, if it does."""
    library, colon, _ = system.partition(":")
    return LIBRARIES.get(library) if colon else None


def user_object(name: str) -> tuple[str, Any]:
    """Return the object that a user's name stands for, and its name with an absolute path."""
    where, colon, attribute = name.rpartition(":")
    if not colon or not attribute.isidentifier():
        raise SettingsError(
            unknown("system", name, SYSTEMS)
            + " For your own system give path/to/file.py:ClassName or module:ClassName, and for an "
            f"environment its library and its name, as in gym:CartPole-v1; there are "
            f"{', '.join(LIBRARIES)}."
        )
    try:
        if where.endswith(".py"):
            file = Path(where).resolve()
            if not file.is_file():
                raise SettingsError(f"there is no file {file}.")
            where, module = str(file), _load_file(file, file.read_bytes())
        else:
            with _importable(Path.cwd()):
                module = importlib.import_module(where)
    except SettingsError:
        raise
    except Exception as error:
        raise SettingsError(
            f"{where} cannot be imported: {described(error, f'{where}:')}"
        ) from error
    if not hasattr(module, attribute):
        classes = [n for n, v in vars(module).items() if isinstance(v, type)]
        raise SettingsError(unknown(f"class in {where}", attribute, classes))
    return f"{where}:{attribute}", getattr(module, attribute)


@functools.lru_cache(maxsize=1)
def _load_file(path: Path, content: bytes) -> ModuleType:
    """Execute a file as a module, and cache the last one."""
    name = f"nres_user_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    with _importable(path.parent):  # it may import files in its folder
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
    """Return a message about an unknown name, with the closest known name."""
    close = difflib.get_close_matches(name, list(known), 1)
    hint = f" Did you mean {close[0]}?" if close else f" There are {', '.join(known)}."
    return f"no {kind} is called {name!r}.{hint}"
