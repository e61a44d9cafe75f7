"""Help pages, which look the same for every command of nres and of other packages."""

import inspect
from typing import Any

from typer.core import TyperCommand, TyperGroup

from nres.runs.settings import EVERYDAY

# Gives every command `-h` beside `--help`: subcommands inherit it.
CONTEXT = {"help_option_names": ["-h", "--help"]}


class _Help:
    """Mixin that changes the help page of a typer command."""

    help: str | None
    panel: str | None = None
    """The panel of options that name none."""

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        self.help = unwrapped(self.help)

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters of the command, as its help page shows them."""
        parameters = super().get_params(ctx)  # type: ignore[misc]
        for one in parameters:
            if one.param_type_name == "argument":
                # Typer would print the Python type beside the name.
                one.display_type_rich = lambda ctx: None
                continue
            one.rich_help_panel = getattr(one, "rich_help_panel", None) or self.panel
            if one.is_flag and one.metavar is None:
                one.metavar = ""  # typer would print `<bool>`, as if a flag took a value
        return parameters

    def get_help_option_names(self, ctx: Any) -> list[str]:
        """Return the names of the option `--help`, always in the same order."""
        return sorted(super().get_help_option_names(ctx))  # type: ignore[misc]


class Command(_Help, TyperCommand):
    """A command whose help page looks like those of all other commands."""

    panel = EVERYDAY


class Group(_Help, TyperGroup):
    """A group of commands whose help page looks like those of the commands."""


def unwrapped(text: str | None) -> str | None:
    """Join the lines of each paragraph: a terminal has its own width.

    Typer joins those of the first paragraph only.
    """
    if text is None:
        return None
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
