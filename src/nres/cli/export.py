"""`nres export`: a learned optimizer, to be used elsewhere."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from nres.cli.errors import explained
from nres.experiments.card import write_optimizer
from nres.runs import Run, RunError, SettingsError
from nres.systems.learned_optimizer import LearnedOptimizerSystem


@explained
def export(
    run: Annotated[Path, typer.Argument(help="The folder of a run.")],
    out: Annotated[Path | None, typer.Option(help="The .npz file to write.")] = None,
) -> None:
    """Write the optimizer that a run has learned, with a card that says what it is.

    Example: nres export runs/learned-optimizer-nres-... --out mine.npz
    """
    opened = Run.open(run)
    out = out or opened.path / "optimizer.npz"
    if out.suffix != ".npz":
        raise SettingsError(f"{out} must end in .npz.")
    system = opened.problem.system
    if not isinstance(system, LearnedOptimizerSystem):
        raise RunError(f"{opened.settings.system} learns no optimizer: there is none to export.")
    Console().print("\n".join(map(str, write_optimizer(opened, system, out))), soft_wrap=True)
