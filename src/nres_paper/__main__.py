"""`python -m nres_paper`: the command `nres reproduce`, whether or not it is installed."""

import typer

from nres_paper.command import reproduce

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
app.command()(reproduce)

if __name__ == "__main__":
    app()
