"""`nres export`: a learned optimizer, to be used elsewhere."""

from pathlib import Path
from typing import Annotated

import typer

from nres.cli.console import say
from nres.cli.errors import explained
from nres.cli.options import Best, RunFolder, TrustCode
from nres.runs import Run, RunError, SettingsError, write_optimizer
from nres.systems.learned_optimizer import LearnedOptimizerSystem


@explained
def export(
    run: RunFolder,
    out: Annotated[Path | None, typer.Option(help="Write this .npz file.")] = None,
    best: Best = False,
    trust_code: TrustCode = False,
) -> None:
    """Write the optimizer that a run has learned, with a card that says what it is.

    Example: nres export runs/learned-optimizer-nres-... --out mine.npz
    """
    opened = Run.open(run, trust_code=trust_code)
    out = out or opened.path / "optimizer.npz"
    if out.suffix != ".npz":
        raise SettingsError(f"{out} must end in .npz.")
    system = opened.components.system
    if not isinstance(system, LearnedOptimizerSystem):
        raise RunError(f"{opened.settings.system} learns no optimizer: there is none to export.")
    for path in write_optimizer(opened, system, out, best=best):
        say(path)
