"""`nres render`: film a trained policy."""

from pathlib import Path
from typing import Annotated

import typer

from nres.cli.console import say
from nres.cli.errors import explained
from nres.cli.options import Best, RunFolder, Seed, TrustCode, whole
from nres.pools.mujoco.render import choose_backend, save
from nres.runs import Run, RunError, SettingsError
from nres.runs.settings import EVERYDAY


@explained
def render(
    run: RunFolder,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write an animation to this .gif file, or a strip of frames to this .png file.",
            metavar="FILE",
            rich_help_panel=EVERYDAY,
            show_default="policy.gif in the run's folder",
        ),
    ] = None,
    steps: Annotated[
        int,
        typer.Option(help="Film N steps.", callback=whole(), metavar="N", rich_help_panel=EVERYDAY),
    ] = 400,
    every: Annotated[
        int,
        typer.Option(
            help="Draw a frame every N steps.",
            callback=whole(),
            metavar="N",
            rich_help_panel=EVERYDAY,
        ),
    ] = 4,
    seed: Seed = 0,
    best: Best = False,
    trust_code: TrustCode = False,
) -> None:
    """Film the policy of a run's newest checkpoint in MuJoCo.

    Example: nres render runs/swimmer-nres-... --out swimmer.gif
    """
    choose_backend()
    opened = Run.open(run, trust_code=trust_code)
    out = out or opened.path / "policy.gif"
    if out.suffix not in (".gif", ".png"):
        raise SettingsError(f"--out must end in .gif or .png, got {out}.")
    film = opened.components.estimator.pool.film
    if film is None:
        raise RunError(f"{run} cannot be filmed: {opened.settings.system} cannot be drawn.")
    frames, seconds = film(opened.theta(best=best), seed, steps=steps, every=every)
    save(frames, out, milliseconds=round(1000 * seconds))
    say(f"{len(frames)} frames: {out}")
