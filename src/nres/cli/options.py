"""Options that several commands share, and those that follow from the settings of a run."""

import functools
import inspect
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from nres.runs import SettingsError
from nres.runs.declarations import SEEDS
from nres.runs.settings import DECLARATIONS, default_of, type_of

SYSTEM = "System"

System = Annotated[str, typer.Argument(help=DECLARATIONS["system"].help)]
Method = Annotated[
    str,
    typer.Option(help=DECLARATIONS["method"].help, rich_help_panel=DECLARATIONS["method"].panel),
]
RunFolder = Annotated[Path, typer.Argument(help="The folder of a run.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")]
Seed = Annotated[
    int, typer.Option(help=DECLARATIONS["seed"].help, min=SEEDS[0], max=SEEDS[1], metavar="SEED")
]
TrustCode = Annotated[
    bool,
    typer.Option("--trust-code", help="Run the code that the folder names, whoever wrote it."),
]
Best = Annotated[
    bool, typer.Option("--best", help="Take the parameters of the best evaluation instead.")
]
Tensorboard = Annotated[
    bool, typer.Option("--tensorboard", help="Write TensorBoard event files, too.")
]


def expand(**groups: Callable | Iterable[inspect.Parameter]) -> Callable[[Callable], Callable]:
    """Replace parameters of a command by groups of options, which it gets as dictionaries.

    ```python
    @expand(hosts=connect, given=setting_options("train"))
    def train(system: System, given: dict[str, Any], hosts: dict[str, Any]) -> None:
        connect(**hosts)
    ```

    **Arguments:**

    - `groups`: by the name of a parameter, its options: parameters with typer's annotations, or a
        function that has them.
    """
    options = {
        name: list(inspect.signature(group).parameters.values() if callable(group) else group)
        for name, group in groups.items()
    }

    def decorate(command: Callable) -> Callable:
        parameters = []
        for name, parameter in inspect.signature(command).parameters.items():
            parameters += options.get(name, [parameter])
        # In any order: a parameter with a default may come first.
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


def setting_options(command: str) -> list[inspect.Parameter]:
    """Return an option for each of the settings that a command has, as they are declared."""
    return [setting_option(name) for name, d in DECLARATIONS.items() if command in d.commands]


def setting_option(name: str) -> inspect.Parameter:
    """Return the option of a setting."""
    declared = DECLARATIONS[name]
    kind = declared.typed or type_of(name)
    flag = declared.flag or f"--{name.replace('_', '-')}"
    option = typer.Option(
        flag, help=declared.help, metavar=declared.metavar, rich_help_panel=declared.panel
    )
    annotation = Annotated[kind, option] if kind is bool else Annotated[kind | None, option]
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default_of(name), annotation=annotation
    )


def system_options(
    options: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help=DECLARATIONS["options"].help,
            metavar="NAME=VALUE",
            rich_help_panel=SYSTEM,
        ),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            help="Give a simulator this policy: linear, mlp:64,64 or mlp:64,64:relu.",
            rich_help_panel=SYSTEM,
        ),
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            help="Read data sets that do not come with nres from this folder.",
            metavar="FOLDER",
            rich_help_panel=SYSTEM,
        ),
    ] = None,
) -> dict[str, Any]:
    """Return the arguments of a system: `NAME=VALUE` with values in JSON or text, and others."""
    named = {"policy": policy, "data_dir": data_dir}
    given: dict[str, Any] = {name: str(value) for name, value in named.items() if value is not None}
    for pair in options or []:
        name, equals, value = pair.partition("=")
        if not equals or not name.isidentifier():
            raise SettingsError(f"--set takes NAME=VALUE, for example horizon=500; got {pair!r}.")
        try:
            given[name] = json.loads(value)
        except (ValueError, RecursionError):  # text, or too long or deep for a value
            given[name] = value
    return given
