"""Options that several commands share, and the options generated from the settings of a run."""

import functools
import inspect
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from nres.checks import LARGEST, whole_number
from nres.runs import SettingsError
from nres.runs.declarations import SEEDS
from nres.runs.methods import METHODS
from nres.runs.registry import SYSTEMS
from nres.runs.settings import DECLARATIONS, EVERYDAY, METRICS, SYSTEM, default_of, type_of


def whole(least: int = 1, most: int = LARGEST) -> Callable[[int | None], int | None]:
    """Make a check of a whole number, as a callback of an option.

    With typer's `min` and `max`, the help would show numbers of up to 19 digits.
    """

    def check(value: int | None) -> int | None:
        try:
            return None if value is None else whole_number("it", value, least, most)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error

    return check


def _starting_with(names: Iterable[str]) -> Callable[[str], list[str]]:
    """Make the function with which a shell completes one of the names."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return complete


_SYSTEM = typer.Argument(
    help=DECLARATIONS["system"].help, metavar="SYSTEM", autocompletion=_starting_with(SYSTEMS)
)
System = Annotated[str, _SYSTEM]
OptionalSystem = Annotated[str | None, _SYSTEM]
Method = Annotated[
    str,
    typer.Option(
        help=DECLARATIONS["method"].help,
        metavar=DECLARATIONS["method"].metavar,
        rich_help_panel=DECLARATIONS["method"].panel,
        autocompletion=_starting_with(METHODS),
    ),
]
RunFolder = Annotated[Path, typer.Argument(help="The folder of a run.", metavar="RUN")]
RunFolders = Annotated[list[Path], typer.Argument(help="The folders of runs.", metavar="RUN")]
Quiet = Annotated[
    bool,
    typer.Option("--quiet", help="Print only errors and interruptions.", rich_help_panel=EVERYDAY),
]
Seed = Annotated[
    int,
    typer.Option(
        help=DECLARATIONS["seed"].help,
        callback=whole(*SEEDS),
        metavar="SEED",
        rich_help_panel=EVERYDAY,
    ),
]
TrustCode = Annotated[
    bool,
    typer.Option(
        "--trust-code",
        help="Run the code of the system, and use the Ray cluster, that the folder or file names, "
        "even if you have not named them on this machine.",
        rich_help_panel=EVERYDAY,
    ),
]
Best = Annotated[
    bool,
    typer.Option(
        "--best",
        help="Use the parameters of the best evaluation instead of the newest checkpoint.",
        rich_help_panel=EVERYDAY,
    ),
]
Tensorboard = Annotated[
    bool,
    typer.Option(
        "--tensorboard", help="Also write TensorBoard event files.", rich_help_panel=METRICS
    ),
]


def expand(**groups: Callable | Iterable[inspect.Parameter]) -> Callable[[Callable], Callable]:
    """Replace parameters of a command by groups of options, which it receives as dictionaries.

    ```python
    @expand(hosts=connect, given=setting_options("train"))
    def train(system: System, given: dict[str, Any], hosts: dict[str, Any]) -> None:
        connect(**hosts)
    ```

    Args:
        groups: The options that replace each parameter, by its name: a list of parameters with
            typer's annotations, or a function that has such parameters.

    Returns:
        A decorator for the command.
    """
    options = {
        name: list(inspect.signature(group).parameters.values() if callable(group) else group)
        for name, group in groups.items()
    }

    def decorate(command: Callable) -> Callable:
        parameters = []
        for name, parameter in inspect.signature(command).parameters.items():
            parameters += options.get(name, [parameter])
        # Keyword-only parameters may come in any order, also after one with a default.
        parameters = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in parameters]

        @functools.wraps(command)
        def expanded(**values: Any) -> Any:
            for name, group in options.items():
                values[name] = {one.name: values.pop(one.name) for one in group}
            return command(**values)

        expanded.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        expanded.__annotations__ = {one.name: one.annotation for one in parameters}
        return expanded

    return decorate


def setting_options(command: str, default_text: str | None = None) -> list[inspect.Parameter]:
    """Return the options of a command that are settings, in the order of their declarations.

    Args:
        command: The name of the command.
        default_text: The default of all of them in words, if it is not the declared one.

    Returns:
        Parameters with typer's annotations.
    """
    names = [name for name, declared in DECLARATIONS.items() if command in declared.commands]
    return [setting_option(name, default_text) for name in names]


def setting_option(name: str, default_text: str | None = None) -> inspect.Parameter:
    """Return the option of a setting."""
    declared = DECLARATIONS[name]
    shown = default_text or declared.default_text
    kind = declared.typed or type_of(name)
    flag = declared.flag or f"--{name.replace('_', '-')}"
    option = typer.Option(
        flag,
        help=declared.help,
        metavar=declared.metavar,
        rich_help_panel=declared.panel,
        show_default=True if shown is None else shown,
        autocompletion=_starting_with(declared.choices) if declared.choices else None,
    )
    annotation = Annotated[kind, option] if kind is bool else Annotated[kind | None, option]
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default_of(name), annotation=annotation
    )


def given_by_user(context: typer.Context, values: dict[str, Any]) -> dict[str, Any]:
    """Return the values that the user gave, without defaults.

    Args:
        context: The context of the command.
        values: Values of its parameters, by name.
    """
    sources = {name: context.get_parameter_source(name) for name in values}
    default = {
        name for name, source in sources.items() if source is None or "DEFAULT" in source.name
    }
    return {name: value for name, value in values.items() if name not in default}


def system_options(
    options: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help=DECLARATIONS["options"].help,
            metavar="NAME=VALUE",
            rich_help_panel=SYSTEM,
            show_default="from the system",
        ),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            help="Control a simulator with this policy: linear, mlp:64,64, mlp:64:relu or gru:16.",
            metavar="POLICY",
            rich_help_panel=SYSTEM,
            show_default="linear",
        ),
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            help="Read downloaded data sets from this folder.",
            metavar="FOLDER",
            rich_help_panel=SYSTEM,
            show_default="the folders that `nres data` lists",
        ),
    ] = None,
) -> dict[str, Any]:
    """Return the arguments of a system: those given as `NAME=VALUE`, the policy and the folder.

    A value is JSON, or text if it is not valid JSON.
    """
    named = {"policy": policy, "data_dir": data_dir}
    given: dict[str, Any] = {name: str(value) for name, value in named.items() if value is not None}
    for pair in options or []:
        name, equals, value = pair.partition("=")
        if not equals or not name.isidentifier():
            raise SettingsError(f"--set takes NAME=VALUE, for example horizon=500; got {pair!r}.")
        try:
            given[name] = json.loads(value)
        except (ValueError, RecursionError):  # it is text, or nested too deeply
            given[name] = value
    return given
