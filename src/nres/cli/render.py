"""`nres render`: look at a trained policy."""

from pathlib import Path
from typing import Annotated

import typer

from nres.cli.console import say
from nres.cli.errors import explained
from nres.cli.options import Best, RunFolder, Seed, TrustCode
from nres.pools import MujocoPool
from nres.pools.mujoco.render import choose_backend, film, save
from nres.runs import Run, RunError, SettingsError


@explained
def render(
    run: RunFolder,
    out: Annotated[
        Path | None,
        typer.Option(help="Write this .gif with an animation, or .png with a strip of frames."),
    ] = None,
    steps: Annotated[int, typer.Option(help="Show N steps.", min=1)] = 400,
    every: Annotated[int, typer.Option(help="Show a frame every N steps.", min=1)] = 4,
    seed: Seed = 0,
    best: Best = False,
    trust_code: TrustCode = False,
) -> None:
    """Film the policy of a run's newest checkpoint, in MuJoCo.

    Example: nres render runs/swimmer-nres-... --out swimmer.gif
    """
    choose_backend()
    opened = Run.open(run, trust_code=trust_code)
    out = out or opened.path / "policy.gif"
    if out.suffix not in (".gif", ".png"):
        raise SettingsError(f"{out} must end in .gif or .png.")
    pool = opened.components.system
    if not isinstance(pool, MujocoPool):
        raise RunError(f"{opened.settings.system} is not a MuJoCo task: there is nothing to film.")
    frames = film(pool, opened.theta(best=best), seed, steps=steps, every=every)
    seconds = pool.task.frame_skip * pool.model.opt.timestep * every
    save(frames, out, milliseconds=round(1000 * seconds))
    say(f"{len(frames)} frames: {out}")
