"""Commands of other packages, which they offer as entry points of the group `nres.commands`.

A package declares in its `pyproject.toml`

    [project.entry-points."nres.commands"]
    name = "package.module:function"

where the function is a command as typer understands one. It is imported when it is called, or
listed by `nres --help`.
"""

from importlib.metadata import EntryPoint, entry_points
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from nres.cli.errors import tell
from nres.errors import first_line

GROUP = "nres.commands"
# Commands that come with the source of nres, by the package that has them.
INCLUDED = {"reproduce": "nres_paper"}


class Commands(TyperGroup):
    """The commands of nres, then those of other packages."""

    def list_commands(self, ctx: Any) -> list[str]:
        """List the names of all commands."""
        self._discover()
        return super().list_commands(ctx)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command; one of another package is imported now."""
        if cmd_name not in self.commands:
            self._discover()
        command: Any = self.commands.get(cmd_name)
        if isinstance(command, EntryPoint):
            command = self.commands[cmd_name] = _load(command)
        if command is None and cmd_name in INCLUDED:
            package = INCLUDED[cmd_name]
            tell(
                f"the installed metadata of nres do not name the command {cmd_name}: reinstall nres"
                f" (`pip install --editable .` in its folder), or run `python -m {package}`."
            )
            raise typer.Exit(2)
        return command

    def _discover(self) -> None:
        """Add what is installed to the commands, without importing it."""
        commands: dict[str, Any] = self.commands  # type: ignore[assignment]
        for point in entry_points(group=GROUP):
            commands.setdefault(point.name, point)


def _load(point: EntryPoint) -> Any:
    """Import a command; if that fails, return one that says why, so that the others work."""
    app = typer.Typer(add_completion=False)
    try:
        app.command(point.name)(point.load())
    except Exception as error:
        reason = f"{point.value} cannot be imported: {type(error).__name__}: {first_line(error)}"

        def failed() -> None:
            tell(reason)
            raise typer.Exit(1)

        anything = {"ignore_unknown_options": True, "allow_extra_args": True}
        app.command(point.name, help=reason, context_settings=anything)(failed)
    return get_command(app)
