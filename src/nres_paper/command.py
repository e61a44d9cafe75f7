"""The command `nres reproduce`, which makes a figure or table of the paper."""

import shlex
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from nres.cli import TOLD, Quiet, explained, finished, plain, say_line, tell, unknown
from nres.runs import Run, Settings, SettingsError
from nres_paper.auto import Auto
from nres_paper.figures import FIGURES
from nres_paper.grades import NOT_RUN
from nres_paper.reproduction import (
    Context,
    make_summary,
    read_summaries,
    verdict_line,
)

RESULTS, QUICK_RESULTS = Path("results"), Path("runs/quick")
TIERS = ("cpu", "gpu")


@explained
def reproduce(
    what: Annotated[
        str | None,
        typer.Argument(
            help="The ID of a figure, 'all' for every figure, or 'table' for a list of all checks.",
            metavar="ID",
        ),
    ] = None,
    tier: Annotated[
        str | None,
        typer.Option(
            help="Make only the figures for this device: cpu or gpu. Works with 'all'.",
            metavar="TIER",
            show_default="both",
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            help="Run N seeds.", min=1, metavar="N", show_default="as planned for the figure"
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="Carry out only the runs with this name, for example PES; may be repeated.",
            metavar="NAME",
            show_default="all runs of the figure",
        ),
    ] = None,
    seed: Annotated[
        list[int] | None,
        typer.Option(
            help="Carry out only the runs with this seed; may be repeated.",
            metavar="SEED",
            show_default="all planned seeds",
        ),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Make a small version, to see that it runs."),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write the results of ID to OUT/ID.",
            metavar="OUT",
            show_default="results, or runs/quick with --quick",
        ),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Reproduce a figure or table of the paper, and check the claims about it.

    Without an ID, list all figures and tables. The command writes a drawing
    (PNG and SVG), the measurements and summary.json (the claim, the paper's
    result and the result here) to OUT/ID. It uses existing results, and
    resumes where it was interrupted. Claims about runs that were not made yet
    say so.

    Example: nres reproduce lorenz-es
    """
    folder = out or (QUICK_RESULTS if quick else RESULTS)
    console = Console()
    if tier not in (None, *TIERS):
        raise SettingsError(f"--tier must be cpu or gpu, not {tier!r}.")
    if tier is not None and what != "all":
        raise SettingsError("--tier works only with `nres reproduce all`.")
    if seeds is not None and (quick or what in (None, "table")):
        raise SettingsError("--seeds works only with an ID or with all, and not with --quick.")
    if (only or seed) and what not in FIGURES:
        raise SettingsError("--only and --seed work only with an ID.")
    if what is None:
        console.print(_contents(folder))
    elif what == "table":
        console.print(_all_checks(folder))
    elif what == "all":
        _check_kind(folder, quick)
        names = [name for name, figure in FIGURES.items() if tier in (None, figure.tier)]
        _all(names, folder, seeds, quick, quiet)
    elif what in FIGURES:
        _check_kind(folder, quick)
        _one(what, folder, seeds, quick, quiet, only or (), seed or ())
    else:
        raise SettingsError(unknown("figure or table", what, [*FIGURES, "all", "table"]))


def _all(names: list[str], folder: Path, seeds: int | None, quick: bool, quiet: bool) -> None:
    """Make one figure after another, and continue after one that fails."""
    failed = []
    for name in names:
        try:
            _one(name, folder, seeds if FIGURES[name].takes_seeds else None, quick, quiet)
        except (SettingsError, *TOLD) as error:
            tell(f"{name}: {error}")
            failed.append(name)
        except typer.Exit:
            raise
        except Exception:  # for example, too little memory for one of them
            traceback.print_exc()
            failed.append(name)
    if failed:
        tell(f"these figures failed: {', '.join(failed)}.")
        raise typer.Exit(1)


def _one(
    name: str,
    out: Path,
    seeds: int | None,
    quick: bool,
    quiet: bool,
    only: Sequence[str] = (),
    only_seeds: Sequence[int] = (),
) -> None:
    console, folder = Console(quiet=quiet), out / name
    if (only or only_seeds) and not FIGURES[name].takes_names:
        raise SettingsError(f"--only and --seed do not apply to {name}, which has no named runs.")
    if seeds is not None and not FIGURES[name].takes_seeds:
        raise SettingsError(f"--seeds does not apply to {name}, whose seeds are fixed.")
    said: list[str] = []

    def finish(path: Path, plan: Settings | Auto) -> Run:
        settings = plan.settings(path) if isinstance(plan, Auto) else plan
        return finished(path, settings, console, again=again, quiet=quiet)

    def say(text: str) -> None:
        said.append(text)
        say_line(f"{name}: {text}", console)

    context = Context(folder, name, quick, seeds, only, only_seeds, finish, say)
    again = f"Resume with: {context.again} --out {shlex.quote(str(out))}"
    try:
        summary = make_summary(FIGURES[name], context)
    except KeyboardInterrupt:
        say_line(f"Interrupted. {again}", console)
        raise typer.Exit(130) from None
    if not said:
        say_line(f"Used the results in {folder}. Choose another --out to measure again.", console)
    console.print(_checks(summary))
    say_line(f"Figure: {context.drawing}.png", console)


def _check_kind(folder: Path, quick: bool) -> None:
    """Refuse to mix quick versions and results in one folder, where figures share runs."""
    marker = folder / "QUICK"
    small = marker.exists()
    used = small or any((folder / name).exists() for name in FIGURES)
    if used and small != quick:
        there = "--quick versions" if small else "full results"
        raise SettingsError(f"{folder} contains {there}: choose another folder with --out.")
    if quick:
        folder.mkdir(parents=True, exist_ok=True)
        marker.touch()


def _checks(summary: dict[str, Any]) -> Table:
    table = Table(title=plain(f"{summary['claim']}\n{verdict_line(summary)}"))
    for heading in ("", "paper or aim", "here", "")[: 3 if summary["quick"] else 4]:
        table.add_column(heading)
    for check in summary["checks"]:
        _add_check(table, [], check)
    return table


def _add_check(table: Table, first: list[str], check: dict[str, Any]) -> None:
    """Add a check to a table, without its grade if the table has no column for it."""
    cells = [*first, check["about"], check["paper"], check["ours"], check["grade"] or ""]
    table.add_row(*map(plain, cells[: len(table.columns)]))


def _contents(folder: Path) -> Table:
    summaries = read_summaries(folder, FIGURES)
    table = Table(title="Figures and tables of the paper: nres reproduce ID")
    for heading in ("id", "tier", "claim", "reproduced"):
        table.add_column(heading, no_wrap=heading == "id")
    for name, figure in FIGURES.items():
        found = summaries[name]["reproduced"] if name in summaries else NOT_RUN
        table.add_row(name, figure.tier, figure.claim, found)
    return table


def _all_checks(folder: Path) -> Table:
    summaries = read_summaries(folder, FIGURES)
    if not summaries:
        raise SettingsError(
            f"there are no results in {folder}: make them with `nres reproduce ID`."
        )
    table = Table(title=plain(f"Claims of the paper and results in {folder}"))
    for heading in ("id", "", "paper or aim", "here", ""):
        table.add_column(heading, no_wrap=heading == "id")
    for name in FIGURES:
        if name in summaries:
            for i, check in enumerate(summaries[name]["checks"]):
                _add_check(table, [name if i == 0 else ""], check)
        else:
            table.add_row(name, "", "", NOT_RUN, "")
        table.add_section()
    return table


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
app.command()(reproduce)
