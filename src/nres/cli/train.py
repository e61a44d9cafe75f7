"""`nres train` and `nres resume`."""

import dataclasses
import math
import signal
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from nres import multihost
from nres.checkpoint import Checkpoints
from nres.cli.console import say
from nres.cli.errors import end, explained
from nres.cli.multihost import connect
from nres.cli.options import (
    Method,
    Quiet,
    RunFolder,
    System,
    Tensorboard,
    TrustCode,
    expand,
    setting_options,
    system_options,
)
from nres.cli.outcome import diverged, tell_outcome
from nres.display import Display
from nres.figures import run_figure
from nres.runs import Run, RunError, Settings, SettingsError, build, execute, new_path, resolve
from nres.runs.folder import shared_theta
from nres.runs.placement import relocated
from nres.runs.settings import checked
from nres.system import Theta


@explained
@expand(given=setting_options("train"), hosts=connect, options=system_options)
def train(
    system: System,
    *,
    options: dict[str, Any],
    method: Method = "nres",
    given: dict[str, Any],
    hosts: dict[str, Any],
    out: Annotated[Path | None, typer.Option(help="Write the run to this folder.")] = None,
    tensorboard: Tensorboard = False,
    quiet: Quiet = False,
) -> None:
    """Train a system's parameters. Settings that are not given are those of the paper.

    Example: nres train lorenz --method nres --updates 5000 --out runs/first
    """
    connect(**hosts)
    start = given["start_from"]
    if start is not None:
        given["start_from"] = str(Path(start).absolute())
    settings = resolve(system, method.lower(), options=system_options(**options), **given)
    components = build(settings)
    if start is not None:
        components = dataclasses.replace(components, theta=_start(Path(start), components.theta))
    # The first process has the folder, and creates it.
    chosen = str(out or new_path(system, settings.method)) if multihost.is_primary() else None
    path = multihost.from_primary(chosen)
    run = Run.create(path, settings, components)
    carry_out(run, components=components, tensorboard=tensorboard, quiet=quiet)


def _start(path: Path, like: Theta) -> Theta:
    """Read the parameters of another run's newest checkpoint, or of a file."""
    if not multihost.from_primary(path.is_dir()):
        return shared_theta(path.resolve(), like)
    with Checkpoints(path / "checkpoints", write=False) as checkpoints:
        updates = checkpoints.updates()
        if not updates:
            raise SettingsError(f"--from {path}: there is no checkpoint in that folder.")
        # The code of that run is not needed for this, and is not run.
        return checkpoints.restore(updates[-1], {"theta": like}, partial=True)[0]["theta"]


@explained
@expand(given=setting_options("resume"), hosts=connect)
def resume(
    run: RunFolder,
    given: dict[str, Any],
    hosts: dict[str, Any],
    fresh_episodes: Annotated[
        bool,
        typer.Option(
            "--fresh-episodes",
            help="Keep parameters and optimizer, and begin new episodes; for simulators whose "
            "states cannot be saved.",
        ),
    ] = False,
    trust_code: TrustCode = False,
    tensorboard: Tensorboard = False,
    quiet: Quiet = False,
) -> None:
    """Continue a run that was interrupted or killed; it ends exactly as it would have.

    --devices or --ray continue it elsewhere; --ray none brings it back from a Ray cluster.

    Example: nres resume runs/first
    """
    connect(**hosts)
    updates = given.pop("updates")
    if updates is not None:
        checked("updates", updates)
    opened = Run.open(run, trust_code=trust_code)
    carry_out(
        opened,
        settings=relocated(opened.settings, **given),
        updates=updates,
        fresh_episodes=fresh_episodes,
        tensorboard=tensorboard,
        quiet=quiet,
    )


def carry_out(run: Run, *, quiet: bool, **options: Any) -> None:
    """Execute a run with a display, draw its figure, and say how it ended.

    **Arguments:**

    - `run`: the run.
    - `quiet`: whether to print nothing but errors.
    - `options`: arguments of `nres.runs.execute`.
    """
    console = Console()
    quiet = quiet or not multihost.is_primary()
    silent = quiet or not console.is_terminal
    settings = run.settings
    title = f"{settings.method} on {settings.system.rpartition('/')[2]}"
    try:
        with Display(title, console, quiet=silent) as display:
            outcome = execute(run, progress=display, **options)
    except KeyboardInterrupt:
        # While compiling, or a second time: what is lost was not in a checkpoint yet.
        say(f"Interrupted. Go on from the newest checkpoint with: nres resume {run.path}", console)
        end(130)
    run = outcome.run
    if multihost.is_primary():
        run_figure([run], run.path / "figure.png")
    if not quiet:
        tell_outcome(console, outcome)
    if outcome.diverged:
        raise RunError(diverged(outcome))
    if outcome.unfinished and (outcome.signal is not None or multihost.is_multihost()):
        # If it was none of this process, another one of the run got it.
        raise typer.Exit(128 + (outcome.signal or signal.SIGTERM))


def finished(path: Path, settings: Settings, console: Console, *, again: str, quiet: bool) -> Run:
    """Return the run with these settings in a folder, executed as far as it is not.

    If that is interrupted, the command ends, and says how to go on: `again`.
    """
    components = None
    if (path / "config.json").exists():
        run = Run.open(path)
        if run.settings != settings:
            raise RunError(
                f"{path} holds a run with other settings: choose another folder with --out."
            )
        # The settings, and with them the code, are those of the command.
        run = dataclasses.replace(run, trusted=True)
        if run.config.get("diverged"):  # which it would do again
            return run
        with Checkpoints(path / "checkpoints", write=False) as checkpoints:
            made = checkpoints.updates()
            seconds = checkpoints.metadata(made[-1])["seconds"] if made else 0.0
        complete = bool(made) and made[-1] >= settings.updates
        if complete or seconds >= (settings.budget_seconds or math.inf):
            return run
    else:
        components = build(settings)
        run = Run.create(path, settings, components)
    title = f"{settings.method}, seed {settings.seed}"
    try:
        silent = quiet or not console.is_terminal
        with Display(title, console, quiet=silent) as display:
            stopped = execute(run, components=components, progress=display).signal
    except KeyboardInterrupt:  # while compiling, or a second time
        stopped = int(signal.SIGINT)
    if stopped is not None:
        say(f"Interrupted. {again}", console)
        raise typer.Exit(128 + stopped)
    return run
