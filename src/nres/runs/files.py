"""`read_settings`: read settings from a YAML, TOML or JSON file, or from a run."""

import json
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from nres.files import read_plain
from nres.runs.folder import LARGEST_CONFIG
from nres.runs.names import SettingsError, unknown
from nres.runs.placement import device_count
from nres.runs.settings import DECLARATIONS, checked


def read_settings(path: str | Path) -> dict[str, Any]:
    """Read settings from a file, or from the folder of a run.

    The keys are the names of the settings, as in `config.json`. Every key and value is checked.

    ```python
    given = nres.runs.read_settings("settings.toml")
    settings = nres.runs.resolve(**given)
    ```

    Args:
        path: A `.yaml`, `.yml`, `.toml` or `.json` file, or the folder of a run, whose
            `config.json` holds its settings.

    Returns:
        The settings that the file gives, by name. Those that are `null` are left out.

    Raises:
        SettingsError: The file cannot be read, or a key or a value is wrong. The message names
            the file and the key.
    """
    path = Path(path)
    # A run may come from somebody else, so its config may not be a link; the path itself may.
    file = path / "config.json" if path.is_dir() else path.resolve()
    values = _content(file)
    if file.suffix == ".json" and "settings" in values:
        values = _of_run(file, values)
    given = {}
    for name, value in values.items():
        if value is None and name in DECLARATIONS:
            continue
        try:
            given[name] = _checked(name, value)
        except SettingsError as error:
            raise SettingsError(f"{file}: {error}") from error
    return given


def _content(file: Path) -> dict[Any, Any]:
    """Read a file that holds names and values."""
    if file.suffix not in PARSERS:
        raise SettingsError(f"{file} must end in {', '.join(PARSERS)}, or be the folder of a run.")
    import yaml  # imported here, since only few commands need it

    try:
        values = PARSERS[file.suffix](read_plain(file, LARGEST_CONFIG).decode())
    except OSError as error:
        raise SettingsError(f"{file} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        words = " ".join(str(error).split())
        raise SettingsError(f"{file} is not valid {file.suffix[1:].upper()}: {words}.") from error
    if not isinstance(values, dict):
        raise SettingsError(
            f"{file} must hold settings by name, for example updates and lr; it holds "
            f"{values!r:.60}."
        )
    return values


def _parse_yaml(text: str) -> Any:
    import yaml

    class Loader(yaml.SafeLoader):
        """Loader that also reads 1e-3 as a number, as YAML 1.2 and TOML do."""

    number = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$")
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", number, list("-+.0123456789"))
    return yaml.load(text, Loader)


PARSERS: Mapping[str, Callable[[str], Any]] = MappingProxyType(
    {".yaml": _parse_yaml, ".yml": _parse_yaml, ".toml": tomllib.loads, ".json": json.loads}
)


def _of_run(file: Path, config: dict[Any, Any]) -> dict[Any, Any]:
    """Return the settings in the config of a run, with the initial parameters it really had."""
    settings, start = config["settings"], config.get("start")
    if not isinstance(settings, dict):
        raise SettingsError(f"{file}: settings must be a JSON object, got {settings!r:.60}.")
    if isinstance(start, str) and Path(start).name == start:
        # The run that `start_from` names may have gone on since.
        return settings | {"start_from": str(file.resolve().with_name(start))}
    return settings


def _checked(name: Any, value: Any) -> Any:
    """Return the value of a setting in its canonical form."""
    if name not in DECLARATIONS:
        flags = {declared.flag: known for known, declared in DECLARATIONS.items()}
        meant = flags.get(f"--{name}", str(name).replace("-", "_"))
        if meant in DECLARATIONS:
            raise SettingsError(f"no setting is called {name!r}. Did you mean {meant}?")
        raise SettingsError(unknown("setting", str(name), DECLARATIONS))
    return checked(name, device_count(value) if name == "devices" else value)
