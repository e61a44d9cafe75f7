"""The command line: `nres --help`."""

import typer

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
)
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
