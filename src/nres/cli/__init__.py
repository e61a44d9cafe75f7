"""The command line of nres: `nres --help`.

Other packages add commands to it (see `nres.cli.extensions`). They write them with the names that
this module exports: `explained` turns errors into one-sentence messages, `say_line` and `tell`
print, and `finished` completes a run.
"""

from pathlib import Path
from typing import Annotated

import typer

import nres
from nres.caching import cache_compilations
from nres.cli import (
    auto,
    compare,
    data,
    demo,
    evaluate_optimizer,
    export,
    inspect,
    render,
    report,
    train,
    variance,
)
from nres.cli.console import plain as plain
from nres.cli.console import say as say_line
from nres.cli.errors import TOLD as TOLD
from nres.cli.errors import explained as explained
from nres.cli.errors import tell as tell
from nres.cli.extensions import Commands
from nres.cli.help import CONTEXT, Command
from nres.cli.train import Quiet as Quiet
from nres.cli.train import finished as finished
from nres.runs.names import unknown as unknown

__all__ = [
    "TOLD",
    "Quiet",
    "app",
    "explained",
    "finished",
    "plain",
    "say_line",
    "tell",
    "unknown",
]

app = typer.Typer(
    cls=Commands,
    help="Gradients for long unrolls: noise-reuse evolution strategies and their relatives.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings=CONTEXT,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        say_line(f"nres {nres.__version__}")
        raise typer.Exit


@app.callback()
def everywhere(
    compile_cache: Annotated[
        Path | None,
        typer.Option(
            help="Keep compiled code in this folder, so that later commands start faster.",
            metavar="FOLDER",
            show_default="no folder",
        ),
    ] = None,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print the version and exit.",
            callback=_print_version,
            is_eager=True,
        ),
    ] = False,
) -> None:
    """Apply the options of `nres` itself."""
    if compile_cache is not None:
        cache_compilations(compile_cache)


COMMANDS = {
    "Get started": {"demo": demo.demo, "list": inspect.list_known, "data": data.data},
    "Train": {"train": train.train, "resume": train.resume, "compare": compare.compare},
    "Inspect runs": {
        "show": inspect.show,
        "evaluate": inspect.evaluate,
        "plot": inspect.plot,
        "report": report.report,
        "render": render.render,
        "export": export.export,
        "evaluate-optimizer": evaluate_optimizer.evaluate_optimizer,
    },
    "Choose a method": {"advise": auto.advise, "variance": variance.variance},
}
for panel, commands in COMMANDS.items():
    for name, command in commands.items():
        app.command(name, cls=Command, rich_help_panel=panel)(command)
