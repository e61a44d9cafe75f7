"""`read_settings`: read settings from a YAML, TOML or JSON file, or from a run."""

import json
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from nres.files import read_plain
from nres.runs.folder import LARGEST_CONFIG
from nres.runs.names import SettingsError, unknown
from nres.runs.placement import device_count
from nres.runs.settings import DECLARATIONS, checked
from nres.runs.upgrading import upgraded


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
    except (ValueError, LookupError, AttributeError, RecursionError, yaml.YAMLError) as error:
        # PyYAML raises the second and the third for some tags, for example !!bool "x".
        words = " ".join(str(error).split())
        raise SettingsError(f"{file} is not valid {file.suffix[1:].upper()}: {words}.") from error
    if not isinstance(values, dict):
        raise SettingsError(
            f"{file} must hold settings by name, for example updates and lr; it holds "
            f"{values!r:.60}."
        )
    return values


def _parse_yaml(text: str) -> Any:
    """Read YAML with the numbers of YAML 1.2, without aliases and repeated keys."""
    import yaml

    integer, real = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"

    class Loader(yaml.SafeLoader):
        # YAML 1.1 would read 010 as 8, 1:30 as 90, and 1e-3 as text.
        yaml_implicit_resolvers = {
            first: [(tag, pattern) for tag, pattern in known if tag not in (integer, real)]
            for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
        }

        def compose_node(self, parent: Any, index: Any) -> Any:
            """Refuse aliases: a few lines of them could stand for any amount of data."""
            if self.check_event(yaml.AliasEvent):
                event = self.peek_event()
                words = f"the alias *{event.anchor} is not allowed: repeat the value"
                raise yaml.composer.ComposerError(None, None, words, event.start_mark)
            return super().compose_node(parent, index)

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            """Refuse repeated keys, of which PyYAML would use the last."""
            if isinstance(node, yaml.MappingNode):
                _check_unique(str(key.value) for key, _ in node.value)
            return super().construct_mapping(node, deep)

    digits = list("-+.0123456789")
    Loader.add_implicit_resolver(integer, re.compile(r"[-+]?\d+$"), digits)
    number = r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$|[-+]?\.(inf|Inf|INF)$|\.(nan|NaN|NAN)$"
    Loader.add_implicit_resolver(real, re.compile(number), digits)
    Loader.add_constructor(integer, lambda loader, node: int(loader.construct_scalar(node)))
    return yaml.load(text, Loader)


def _parse_json(text: str) -> Any:
    """Read JSON without repeated keys."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        _check_unique(key for key, _ in pairs)
        return dict(pairs)

    return json.loads(text, object_pairs_hook=unique)


def _check_unique(keys: Iterable[str]) -> None:
    """Raise an error if a key occurs twice."""
    repeated = [key for key, times in Counter(keys).items() if times > 1]
    if repeated:
        raise ValueError(f"the key {repeated[0]!r:.60} occurs more than once")


PARSERS: Mapping[str, Callable[[str], Any]] = MappingProxyType(
    {".yaml": _parse_yaml, ".yml": _parse_yaml, ".toml": tomllib.loads, ".json": _parse_json}
)


def _of_run(file: Path, config: dict[Any, Any]) -> dict[Any, Any]:
    """Return the settings in the config of a run, with the initial parameters it really had."""
    settings, start = config["settings"], config.get("start")
    if not isinstance(settings, dict):
        raise SettingsError(f"{file}: settings must be a JSON object, got {settings!r:.60}.")
    settings = upgraded(settings)
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
