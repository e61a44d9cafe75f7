"""`nres export`: write a learned optimizer to a file, for use elsewhere."""

from pathlib import Path
from typing import Annotated

import typer

from nres.cli.console import say
from nres.cli.errors import explained
from nres.cli.options import Best, TrustCode
from nres.runs import Run, RunError, SettingsError, write_optimizer
from nres.runs.names import unknown
from nres.runs.settings import EVERYDAY
from nres.systems.learned_optimizer import (
    FORMATS,
    LearnedOptimizerSystem,
    read_optimizer,
    write_for,
)
from nres.systems.learned_optimizer.export import is_shipped


@explained
def export(
    run: Annotated[
        Path,
        typer.Argument(
            help="The folder of a run, the .npz file of an exported optimizer, or celo2, which "
            "comes with nres.",
            metavar="RUN",
        ),
    ],
    to: Annotated[
        str,
        typer.Option(
            help="Write for this library: optax, torch (one file that needs torch alone, and "
            "weights), pylo or celo2 (weights only).",
            metavar="NAME",
            rich_help_panel=EVERYDAY,
        ),
    ] = "optax",
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write this file: .npz for optax, .py for torch, .safetensors for pylo, .msgpack "
            "for celo2.",
            metavar="FILE",
            rich_help_panel=EVERYDAY,
            show_default="optimizer.npz or optimizer_LIBRARY, in RUN or beside it",
        ),
    ] = None,
    best: Best = False,
    trust_code: TrustCode = False,
) -> None:
    """Export a learned optimizer; that of a run with a card that describes it.

    Example: nres export runs/learned-optimizer-nres-... --to torch --out mine.py
    """
    if to not in FORMATS:
        raise SettingsError(unknown("format", to, FORMATS))
    shipped = is_shipped(run) and not run.is_dir()
    folder = run if run.is_dir() else run.parent
    name = "optimizer" if to == "optax" else f"optimizer_{to}"
    out = out or folder / f"{name}{FORMATS[to]}"
    if out.suffix != FORMATS[to]:
        raise SettingsError(f"--out must end in {FORMATS[to]} for {to}, got {out}.")
    if shipped or run.is_file():
        if best:
            raise SettingsError(f"--best needs the folder of a run, and {run} is not one.")
        if out.resolve() == run.resolve():
            raise SettingsError(f"--out {out} is the file to export: choose another.")
        optimizer, theta, about = read_optimizer(run)
        written = write_for(to, out, optimizer, theta, about)
    else:
        opened = Run.open(run, trust_code=trust_code)
        written = write_optimizer(opened, learned_system(opened), out, best=best, to=to)
    for path in written:
        say(path)


def learned_system(run: Run) -> LearnedOptimizerSystem:
    """Return the system of a run, or raise an error if it does not learn an optimizer."""
    system = run.components.system
    if not isinstance(system, LearnedOptimizerSystem):
        raise RunError(
            f"{run.path} has no optimizer: its system, {run.settings.system}, does not learn one."
        )
    return system
