"""Declarations of settings: the description, the check and the option of each, in one place."""

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any

from nres.checks import whole_number
from nres.runs.names import unknown
from nres.runs.rates import parse_rate
from nres.schedule import Piecewise

# The smallest and the largest seed: JAX accepts 64 bits.
SEEDS = (-(2**63), 2**63 - 1)


def count(name: str, value: Any) -> int:
    """Check a count: a whole number of at least 1."""
    return whole_number(name, value)


def seed_number(name: str, value: Any) -> int:
    """Check a seed."""
    return whole_number(name, value, *SEEDS)


def parsed(parse: Callable[[str], Any]) -> Callable[[str, Any], str]:
    """Make a check that `parse` accepts a value as text, and that returns its canonical form."""

    def check(name: str, value: Any) -> str:
        try:
            return str(parse(str(value)))
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error

    return check


schedule = parsed(Piecewise.parse)
rate = parsed(parse_rate)


def json_object(name: str, value: Any) -> dict[str, Any]:
    """Check a JSON object, and return it as JSON would read it back."""
    if not isinstance(value, dict):
        raise TypeError(f"{name} must be a JSON object, got {value!r:.60}.")
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{name} cannot be written as JSON: {error}.") from error


def of_type(kind: type, words: str) -> Callable[[str, Any], Any]:
    """Make a check that a value has the type `kind`, which messages call `words`."""

    def check(name: str, value: Any) -> Any:
        if not isinstance(value, kind):
            raise TypeError(f"{name} must be {words}, got {value!r:.60}.")
        return value

    return check


def one_of(known: Mapping[str, Any]) -> Callable[[str, Any], str]:
    """Make a check that a value is one of the known names."""

    def check(name: str, value: Any) -> str:
        if not isinstance(value, str) or value not in known:
            raise ValueError(unknown(name, str(value), known))
        return value

    return check


text = of_type(str, "text")


@dataclasses.dataclass(frozen=True)
class Declaration:
    """Declaration of a setting, apart from its name, type and default."""

    help: str
    """The help text of its option: a command that ends with a full stop."""
    check: Callable[[str, Any], Any]
    """Returns the value for a name and a value, or raises `TypeError` or `ValueError`."""
    panel: str
    """The panel of its option in the help of a command."""
    commands: tuple[str, ...] = ("train",)
    """The commands that have it as an option."""
    flag: str | None = None
    """The name of the option, if it differs from the name of the setting."""
    metavar: str | None = None
    """The placeholder for the value in the help of a command."""
    default_text: str | None = None
    """The default in words, if it is `None` or depends on other settings."""
    choices: tuple[str, ...] = ()
    """Values that a shell completes."""
    typed: type | None = None
    """The type of the option's value, if it differs from the type of the setting."""
    determines: bool = False
    """True if the final parameters of a run depend on it."""


def setting(
    help: str,
    check: Callable[[str, Any], Any],
    *,
    default: Any = dataclasses.MISSING,
    **declared: Any,
) -> Any:
    """Declare a setting, as a field of `Settings`.

    Args:
        help: The help text of its option.
        check: The check of its values.
        default: The value for runs that do not give one, including runs of earlier versions
            without the setting. If there is no default, `resolve` fills in a value.
        declared: Other fields of its `Declaration`.

    Returns:
        A field of a dataclass.
    """
    if "choices" in declared:
        declared = {"metavar": "|".join(declared["choices"]), **declared}
    return dataclasses.field(
        default=default, metadata={"declaration": Declaration(help, check, **declared)}
    )
