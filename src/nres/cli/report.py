"""`nres report`: compare runs on one page."""

from pathlib import Path
from typing import Annotated

import typer

from nres.cli.console import say
from nres.cli.errors import explained
from nres.report import find_runs, write_report
from nres.runs import SettingsError


@explained
def report(
    runs: Annotated[
        list[Path], typer.Argument(help="Folders of runs, or of a comparison.", metavar="RUN...")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Write this HTML file.")] = Path(
        "report.html"
    ),
    title: Annotated[
        str | None,
        typer.Option(help="Give the page this heading; by default the systems and methods."),
    ] = None,
) -> None:
    """Write one HTML page about runs: interactive curves, sortable tables, settings, pictures.

    The page needs no network and no other file. It shows `notes.txt` of the folder of a run, and
    the variance figures and animations in it.

    Example: nres report runs/first runs/second -o report.html
    """
    if out.suffix not in (".html", ".htm"):
        raise SettingsError(f"{out} must end in .html.")
    write_report(find_runs(runs), out, title)
    say(f"Report: {out}")
