"""The command line: `nres --help`."""

from pathlib import Path
from typing import Annotated

import typer

from nres.caching import cache_compilations
from nres.cli.compare import compare
from nres.cli.data import data
from nres.cli.demo import demo
from nres.cli.export import export
from nres.cli.inspect import evaluate, list_known, plot, show
from nres.cli.render import render
from nres.cli.report import report
from nres.cli.reproduce import reproduce
from nres.cli.train import resume, train
from nres.cli.variance import advise, variance

app = typer.Typer(
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
app.command()(reproduce)
