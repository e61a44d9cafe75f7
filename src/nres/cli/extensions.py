"""Commands of other packages, offered as entry points of the group `nres.commands`.

A package declares a command in its `pyproject.toml`:

    [project.entry-points."nres.commands"]
    name = "package.module:function"

The function is a typer command. nres imports it when somebody calls it or asks for `nres --help`.
"""

from importlib.metadata import entry_points
from typing import Any

import typer
from typer.main import get_command

from nres.cli.errors import tell
from nres.cli.help import Command, Group
from nres.errors import first_line

GROUP = "nres.commands"
PANEL = "Commands of other packages"
# Commands that come with the source of nres, and the package that contains each.
INCLUDED = {"reproduce": "nres_paper"}


class Commands(Group):
    """The commands of nres, then those of other packages."""

    def list_commands(self, ctx: Any) -> list[str]:
        """List the names of all commands."""
        self._discover()
        return super().list_commands(ctx)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command, and import it first if another package offers it."""
        if cmd_name not in self.commands:
            self._discover()
        command: Any = self.commands.get(cmd_name)
        # An entry point, of importlib or of the backport that other packages put in its place.
        if hasattr(command, "load"):
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
        """Add the installed commands of other packages, without importing them."""
        commands: dict[str, Any] = self.commands  # type: ignore[assignment]
        for point in entry_points(group=GROUP):
            commands.setdefault(point.name, point)


def _load(point: Any) -> Any:
    """Import a command; if that fails, return one that says why, so that the others work."""
    app = typer.Typer(add_completion=False)
    try:
        app.command(point.name, cls=Command, rich_help_panel=PANEL)(point.load())
    except Exception as error:
        reason = f"{point.value} cannot be imported: {type(error).__name__}: {first_line(error)}"

        def failed() -> None:
            tell(reason)
            raise typer.Exit(1)

        anything = {"ignore_unknown_options": True, "allow_extra_args": True}
        app.command(
            point.name, cls=Command, help=reason, context_settings=anything, rich_help_panel=PANEL
        )(failed)
    return get_command(app)
