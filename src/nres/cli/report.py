"""`nres report`: write an HTML page that compares runs."""

from pathlib import Path
from typing import Annotated

import typer

from nres.cli.console import say
from nres.cli.errors import explained
from nres.report import find_runs, write_report
from nres.runs import SettingsError
from nres.runs.settings import EVERYDAY


@explained
def report(
    runs: Annotated[
        list[Path],
        typer.Argument(help="The folders of runs or of comparisons.", metavar="RUN"),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            help="Write this HTML file.",
            metavar="FILE",
            rich_help_panel=EVERYDAY,
        ),
    ] = Path("report.html"),
    title: Annotated[
        str | None,
        typer.Option(
            help="Give the page this title.",
            metavar="TITLE",
            rich_help_panel=EVERYDAY,
            show_default="from the runs",
        ),
    ] = None,
) -> None:
    """Write an HTML page about runs: curves, tables, settings and pictures.

    The page is one file and needs no network. It includes `notes.txt`, variance figures and
    animations from the folders of the runs.

    Example: nres report runs/first runs/second -o report.html
    """
    if out.suffix not in (".html", ".htm"):
        raise SettingsError(f"--out must end in .html, got {out}.")
    given = {} if title is None else {"title": title}
    write_report(find_runs(runs), out, **given)
    say(f"Report: {out}")
