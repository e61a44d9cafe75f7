"""`nres render`: film a trained policy."""

import re
from pathlib import Path
from typing import Annotated

import typer

from nres.cli.console import say
from nres.cli.errors import explained
from nres.cli.options import Best, RunFolder, Seed, TrustCode, whole
from nres.pools.mujoco.render import choose_backend, find_ffmpeg, save
from nres.runs import Run, RunError, SettingsError
from nres.runs.settings import EVERYDAY

# The largest width and height of a frame, in pixels.
LARGEST_SIDE = 8192


@explained
def render(
    run: RunFolder,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write an animation to this .gif file, a video to this .mp4 file, or a strip of "
            "frames to this .png file.",
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
    size: Annotated[
        str,
        typer.Option(
            help="Draw frames of this width and height, in pixels.",
            metavar="WxH",
            rich_help_panel=EVERYDAY,
        ),
    ] = "320x240",
    seed: Seed = 0,
    best: Best = False,
    trust_code: TrustCode = False,
) -> None:
    """Film the policy of a run's newest checkpoint.

    Example: nres render runs/swimmer-nres-... --out swimmer.gif
    """
    choose_backend()
    opened = Run.open(run, trust_code=trust_code)
    out = out or opened.path / "policy.gif"
    if out.suffix not in (".gif", ".mp4", ".png"):
        raise SettingsError(f"--out must end in .gif, .mp4 or .png, got {out}.")
    pixels = _pixels(size)
    if out.suffix == ".mp4":
        find_ffmpeg()
        if any(count % 2 for count in pixels):
            raise SettingsError(f"--size must have even numbers for an .mp4 file, got {size}.")
    film = opened.components.estimator.pool.film
    if film is None:
        raise RunError(f"{run} cannot be filmed: {opened.settings.system} cannot be drawn.")
    frames, seconds = film(opened.theta(best=best), seed, steps=steps, every=every, size=pixels)
    save(frames, out, seconds)
    say(f"{len(frames)} frames: {out}")


def _pixels(size: str) -> tuple[int, int]:
    """Read a width and a height, for example from 640x480."""
    found = re.fullmatch(r"([0-9]{1,5})x([0-9]{1,5})", size)
    width, height = map(int, found.groups()) if found else (0, 0)
    if not (1 <= width <= LARGEST_SIDE and 1 <= height <= LARGEST_SIDE):
        raise SettingsError(
            f"--size takes WIDTHxHEIGHT in pixels, for example 640x480 and at most "
            f"{LARGEST_SIDE}x{LARGEST_SIDE}; got {size!r:.60}."
        )
    return width, height
