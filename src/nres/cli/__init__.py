"""The command line: `nres --help`."""

import typer

from nres.cli.demo import demo

app = typer.Typer(
    help="Gradients for long unrolls: noise-reuse evolution strategies and their relatives.",
    no_args_is_help=True,
    add_completion=False,
)
app.command()(demo)


@app.callback()
def _nres() -> None:
    """Keeps `demo` a subcommand while it is the only one."""
