"""`nres reproduce`: a figure or table of the paper, by one command."""

import shlex
import traceback
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from nres.cli.console import plain
from nres.cli.console import say as say_line
from nres.cli.errors import TOLD, explained, tell
from nres.cli.train import Quiet, finished
from nres.experiments.exhibits import Work, exhibit_summary, read_summaries, verdict_line
from nres.experiments.paper import EXHIBITS
from nres.runs import Run, Settings, SettingsError
from nres.runs.names import unknown

RESULTS, QUICK_RESULTS = Path("results"), Path("runs/quick")
TIERS = ("cpu", "gpu")


@explained
def reproduce(
    what: Annotated[
        str | None,
        typer.Argument(help="An id; all; or table, to compare what is there.", metavar="ID"),
    ] = None,
    tier: Annotated[
        str | None, typer.Option(help="Of all, only those for a cpu, or for a gpu.")
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(help="How many, if not as many as planned; where runs differ in them.", min=1),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A small version, to see that it runs.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The folder of results, those of an id in OUT/ID: results, or runs/quick."
        ),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Make a figure or table of the paper again, and hold it against what the paper says.

    Without an ID: which there are. OUT/ID gets a figure (PNG and SVG), the measurements, and
    summary.json: the claim, what the paper found, what was found here. What is there already is
    not computed again, and what was interrupted goes on.

    Example: nres reproduce lorenz-es
    """
    folder = out or (QUICK_RESULTS if quick else RESULTS)
    console = Console()
    if tier not in (None, *TIERS):
        raise SettingsError(f"--tier is cpu or gpu, not {tier!r}.")
    if tier is not None and what != "all":
        raise SettingsError("--tier goes with `nres reproduce all`.")
    if seeds is not None and (quick or what in (None, "table")):
        raise SettingsError("--seeds goes with an ID or all, and not with --quick.")
    if what is None:
        console.print(_contents(folder))
    elif what == "table":
        console.print(_comparison(folder))
    elif what == "all":
        _check_kind(folder, quick)
        names = [name for name, exhibit in EXHIBITS.items() if tier in (None, exhibit.tier)]
        _all(names, folder, seeds, quick, quiet)
    elif what in EXHIBITS:
        _check_kind(folder, quick)
        _one(what, folder, seeds, quick, quiet)
    else:
        raise SettingsError(unknown("figure or table", what, [*EXHIBITS, "all", "table"]))


def _all(names: list[str], folder: Path, seeds: int | None, quick: bool, quiet: bool) -> None:
    """One after another: one that cannot be made does not keep the others from it."""
    failed = []
    for name in names:
        try:
            _one(name, folder, seeds if EXHIBITS[name].takes_seeds else None, quick, quiet)
        except (SettingsError, *TOLD) as error:
            tell(f"{name}: {error}")
            failed.append(name)
        except typer.Exit:
            raise
        except Exception:  # such as too little memory for one of them
            traceback.print_exc()
            failed.append(name)
    if failed:
        tell(f"not made: {', '.join(failed)}.")
        raise typer.Exit(1)


def _one(name: str, out: Path, seeds: int | None, quick: bool, quiet: bool) -> None:
    console, folder = Console(quiet=quiet), out / name
    if seeds is not None and not EXHIBITS[name].takes_seeds:
        raise SettingsError(f"--seeds is not for {name}, which has its own.")
    said: list[str] = []

    def finish(path: Path, settings: Settings) -> Run:
        return finished(path, settings, console, again=again, quiet=quiet)

    def say(text: str) -> None:
        said.append(text)
        say_line(f"{name}: {text}", console)

    work = Work(folder, name, quick, seeds, finish, say)
    again = f"Go on with: {work.command} --out {shlex.quote(str(out))}"
    try:
        summary = exhibit_summary(EXHIBITS[name], work)
    except KeyboardInterrupt:
        say_line(f"Interrupted. {again}", console)
        raise typer.Exit(130) from None
    if not said:
        say_line(f"Measured before, in {folder}: another --out measures anew.", console)
    console.print(_checks(summary))
    say_line(f"Figure: {work.drawing}.png", console)


def _check_kind(folder: Path, quick: bool) -> None:
    """A folder is for results or for small versions, which some take from others there."""
    marker = folder / "QUICK"
    small = marker.exists()
    used = small or any((folder / name).exists() for name in EXHIBITS)
    if used and small != quick:
        there = "--quick versions" if small else "results"
        raise SettingsError(f"{folder} holds {there}: choose another folder with --out.")
    if quick:
        folder.mkdir(parents=True, exist_ok=True)
        marker.touch()


def _checks(summary: dict[str, Any]) -> Table:
    table = Table(title=plain(f"{summary['claim']}\n{verdict_line(summary)}"))
    for heading in ("", "paper", "here", "")[: 3 if summary["quick"] else 4]:
        table.add_column(heading)
    for check in summary["checks"]:
        _add_check(table, [], check)
    return table


def _add_check(table: Table, first: list[str], check: dict[str, Any]) -> None:
    """A row of a table; without a verdict where it has no column for one."""
    cells = [*first, check["about"], check["paper"], check["ours"], check["grade"] or ""]
    table.add_row(*map(plain, cells[: len(table.columns)]))


def _contents(folder: Path) -> Table:
    there = read_summaries(folder, EXHIBITS)
    table = Table(title="Figures and tables of the paper: nres reproduce ID")
    for heading in ("id", "tier", "claim", "reproduced"):
        table.add_column(heading, no_wrap=heading == "id")
    for name, exhibit in EXHIBITS.items():
        found = there[name]["reproduced"] if name in there else ""
        table.add_row(name, exhibit.tier, exhibit.claim, found)
    return table


def _comparison(folder: Path) -> Table:
    there = read_summaries(folder, EXHIBITS)
    if not there:
        raise SettingsError(f"there are no summaries in {folder}: `nres reproduce ID` makes them.")
    table = Table(title=plain(f"The paper, and {folder}"))
    for heading in ("id", "", "paper", "here", ""):
        table.add_column(heading, no_wrap=heading == "id")
    for name, summary in there.items():
        for check in summary["checks"]:
            _add_check(table, [name], check)
            name = ""
        table.add_section()
    return table
