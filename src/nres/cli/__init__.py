"""The command line: `nres --help`.

Other packages add commands to it (`nres.cli.extensions`) and write them with the names that are
exported here: `explained` turns errors into sentences, `say_line` and `tell` print, `finished`
carries out a run as far as it is not.
"""

from pathlib import Path
from typing import Annotated

import typer

from nres.caching import cache_compilations
from nres.cli.compare import compare
from nres.cli.console import plain as plain
from nres.cli.console import say as say_line
from nres.cli.data import data
from nres.cli.demo import demo
from nres.cli.errors import TOLD as TOLD
from nres.cli.errors import explained as explained
from nres.cli.errors import tell as tell
from nres.cli.export import export
from nres.cli.extensions import Commands
from nres.cli.inspect import evaluate, list_known, plot, show
from nres.cli.render import render
from nres.cli.report import report
from nres.cli.train import Quiet as Quiet
from nres.cli.train import finished as finished
from nres.cli.train import resume, train
from nres.cli.variance import advise, variance
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
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def everywhere(
    compile_cache: Annotated[
        Path | None,
        typer.Option(
            help="Keep compiled code in this folder, so that later commands start faster."
        ),
    ] = None,
) -> None:
    """Set what holds for every command."""
    if compile_cache is not None:
        cache_compilations(compile_cache)


app.command()(demo)
app.command("list")(list_known)
app.command()(train)
app.command()(compare)
app.command()(resume)
app.command()(evaluate)
app.command()(plot)
app.command()(show)
app.command()(render)
app.command()(export)
app.command()(data)
app.command()(variance)
app.command()(advise)
app.command()(report)
