"""`nres report`: runs compared on one page."""

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
    title: Annotated[str, typer.Option(help="Give the page this heading.")] = "Runs compared",
) -> None:
    """Write one HTML page about runs: curves to zoom into, tables to sort, settings, pictures.

    It needs no network and no other file. What is in `notes.txt` in the folder of a run is shown,
    too, as are variance figures and animations there.

    Example: nres report runs/first runs/second -o report.html
    """
    if out.suffix not in (".html", ".htm"):
        raise SettingsError(f"{out} must end in .html.")
    write_report(find_runs(runs), out, title)
    say(f"Report: {out}")
