"""`nres data`: list data sets and download them."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn
from rich.table import Table

from nres.cli.console import plain, say
from nres.cli.errors import explained
from nres.data import DATASETS, download, places
from nres.runs import SettingsError
from nres.runs.settings import EVERYDAY


@explained
def data(
    fetch: Annotated[
        str | None,
        typer.Option(
            "--download",
            help="Download this data set.",
            metavar="NAME",
            rich_help_panel=EVERYDAY,
            show_default="list the data sets",
        ),
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            help="Look for data sets in this folder, and download to it.",
            metavar="FOLDER",
            rich_help_panel=EVERYDAY,
            show_default="the folders that `nres data` lists",
        ),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            help="Download from this mirror.",
            metavar="URL",
            rich_help_panel=EVERYDAY,
            show_default="from the data set",
        ),
    ] = None,
) -> None:
    """List the data sets and where they are, or download one.

    Example: nres data --download cifar10
    """
    console = Console()
    if fetch is not None:
        if fetch not in DATASETS:
            raise SettingsError(
                f"no data set is called {fetch!r}: choose one of {', '.join(DATASETS)}."
            )
        with _bars(console) as bars:
            tasks: dict[str, TaskID] = {}

            def report(name: str, got: int, total: int | None) -> None:
                if name not in tasks:
                    tasks[name] = bars.add_task(name, total=total)
                bars.update(tasks[name], completed=got)

            folder = download(DATASETS[fetch], data_dir, url=url, report=report)
        say(f"{fetch}: {folder}", console)
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("data set", "file", "found in"):
        table.add_column(heading, overflow="fold")
    table.add_row("fashion-mnist 8x8", "", "the package nres")
    for dataset in DATASETS.values():
        for i, file in enumerate(dataset.files):
            found = dataset.find(file, data_dir)
            where = "[dim]not found[/dim]" if found is None else plain(found.parent)
            table.add_row(dataset.name if i == 0 else "", file.name, where)
    console.print(table)
    say("\nFolders searched:", console)
    for place in places(data_dir):
        say(f"  {place}", console)
    say("Download a data set with: nres data --download NAME", console)


def _bars(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    return Progress(*columns, console=console)
