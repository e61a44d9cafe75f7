"""`nres export`: write a learned optimizer to a file, for use elsewhere."""

from pathlib import Path
from typing import Annotated

import typer

from nres.cli.console import say
from nres.cli.errors import explained
from nres.cli.options import Best, RunFolder, TrustCode
from nres.runs import Run, RunError, SettingsError, write_optimizer
from nres.runs.settings import EVERYDAY
from nres.systems.learned_optimizer import LearnedOptimizerSystem


@explained
def export(
    run: RunFolder,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write this .npz file.",
            metavar="FILE",
            rich_help_panel=EVERYDAY,
            show_default="optimizer.npz in the run's folder",
        ),
    ] = None,
    best: Best = False,
    trust_code: TrustCode = False,
) -> None:
    """Export the learned optimizer of a run, with a card that describes it.

    Example: nres export runs/learned-optimizer-nres-... --out mine.npz
    """
    opened = Run.open(run, trust_code=trust_code)
    out = out or opened.path / "optimizer.npz"
    if out.suffix != ".npz":
        raise SettingsError(f"--out must end in .npz, got {out}.")
    system = opened.components.system
    if not isinstance(system, LearnedOptimizerSystem):
        raise RunError(
            f"{run} has no optimizer to export: its system, {opened.settings.system}, does not "
            "learn one."
        )
    for path in write_optimizer(opened, system, out, best=best):
        say(path)
