"""`nres reproduce`: a figure or table of the paper, by one command."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from nres.cli.errors import TOLD, explained, tell
from nres.cli.train import Quiet, finished
from nres.experiments.exhibits import Work, exhibit_summary, read_summaries
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
        int | None, typer.Option(help="How many, if not as many as planned.", min=1)
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A small version, to see that it runs.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="The folder of results: those of an id go into OUT/ID.")
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
    if what is None:
        console.print(_contents(folder))
    elif what == "table":
        console.print(_comparison(folder))
    elif what == "all":
        _all(
            [n for n, e in EXHIBITS.items() if tier in (None, e.tier)], folder, seeds, quick, quiet
        )
    elif what in EXHIBITS:
        _one(what, folder, seeds, quick, quiet)
    else:
        raise SettingsError(unknown("figure or table", what, [*EXHIBITS, "all", "table"]))


def _all(names: list[str], folder: Path, seeds: int | None, quick: bool, quiet: bool) -> None:
    """One after another: one that cannot be made does not keep the others from it."""
    failed = []
    for name in names:
        try:
            _one(name, folder, seeds, quick, quiet)
        except (SettingsError, *TOLD) as error:
            tell(f"{name}: {error}")
            failed.append(name)
    if failed:
        tell(f"not made: {', '.join(failed)}.")
        raise typer.Exit(1)


def _one(name: str, out: Path, seeds: int | None, quick: bool, quiet: bool) -> None:
    console, folder = Console(quiet=quiet), out / name
    _check_kind(folder, quick)
    if seeds is not None and (quick or not EXHIBITS[name].takes_seeds):
        what = "a --quick version" if quick else name
        raise SettingsError(f"--seeds is not for {what}, which has its own.")

    def finish(path: Path, settings: Settings) -> Run:
        return finished(path, settings, console, again=again, quiet=quiet)

    def say(text: str) -> None:
        console.print(f"{name}: {text}", highlight=False, soft_wrap=True)

    work = Work(folder, name, quick, seeds, finish, say)
    again = f"Go on with: {work.command} --out {out}"
    try:
        summary = exhibit_summary(EXHIBITS[name], work)
    except KeyboardInterrupt:
        console.print(f"Interrupted. {again}", highlight=False, soft_wrap=True)
        raise typer.Exit(130) from None
    console.print(_checks(summary))
    console.print(f"Figure: {work.drawing}.png", soft_wrap=True, highlight=False)


def _check_kind(folder: Path, quick: bool) -> None:
    """A small version does not take the place of results, nor the other way round."""
    file = folder / "summary.json"
    if file.exists() and json.loads(file.read_text(encoding="utf-8"))["quick"] != quick:
        kind = "results" if quick else "a --quick version"
        raise SettingsError(f"{folder} holds {kind}: choose another folder with --out.")


def _checks(summary: dict[str, Any]) -> Table:
    table = Table(title=f"{summary['claim']}\nReproduced: {summary['reproduced']}")
    for heading in ("", "paper", "here", ""):
        table.add_column(heading)
    for check in summary["checks"]:
        table.add_row(check["about"], check["paper"], check["ours"], check["grade"])
    return table


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
    table = Table(title=f"The paper, and {folder}", show_lines=True)
    for heading in ("id", "paper", "here", "seeds", "reproduced"):
        table.add_column(heading, no_wrap=heading == "id")
    for name, summary in there.items():
        paper, ours = (
            "\n".join(f"{check['about']}: {check[side]}" for check in summary["checks"])
            for side in ("paper", "ours")
        )
        table.add_row(name, paper, ours, str(summary["seeds"]), summary["reproduced"])
    return table
