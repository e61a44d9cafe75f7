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
from nres.cli.auto import budget_options, check_auto, tuned_run
from nres.cli.console import say
from nres.cli.errors import end, explained
from nres.cli.multihost import connect
from nres.cli.options import (
    Method,
    OptionalSystem,
    Quiet,
    RunFolder,
    Tensorboard,
    TrustCode,
    expand,
    given_by_user,
    setting_options,
    system_options,
    whole,
)
from nres.cli.outcome import diverged, tell_outcome, tell_seeds
from nres.display import Display
from nres.figures import run_figure
from nres.runs import (
    Run,
    RunError,
    Settings,
    SettingsError,
    build,
    execute,
    new_path,
    read_settings,
    resolve,
)
from nres.runs.components import Components
from nres.runs.folder import shared_theta
from nres.runs.placement import PLACEMENT, relocated
from nres.runs.settings import EVERYDAY, checked
from nres.runs.trust import foreign_cluster, foreign_code, refusal
from nres.system import Theta


@explained
@expand(
    given=setting_options("train"), hosts=connect, options=system_options, budget=budget_options
)
def train(
    context: typer.Context,
    system: OptionalSystem = None,
    *,
    method: Method = "nres",
    seeds: Annotated[
        int | None,
        typer.Option(
            help="Train N runs, with the seeds from --seed on, in folders inside --out.",
            callback=whole(),
            metavar="N",
            show_default="one run",
            rich_help_panel=EVERYDAY,
        ),
    ] = None,
    options: dict[str, Any],
    given: dict[str, Any],
    config: Annotated[
        Path | None,
        typer.Option(
            help="Read settings from this .yaml, .toml or .json file, or from the folder of a run; "
            "options on the command line take precedence.",
            metavar="FILE",
            show_default="none",
            rich_help_panel=EVERYDAY,
        ),
    ] = None,
    trust_code: TrustCode = False,
    tensorboard: Tensorboard = False,
    hosts: dict[str, Any],
    auto: Annotated[
        bool,
        typer.Option(
            "--auto",
            help="Choose the settings that you do not give by short trials, for nres, pes, tes "
            "and fulles.",
            rich_help_panel=EVERYDAY,
        ),
    ] = False,
    budget: dict[str, Any],
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write the run to this folder.",
            metavar="FOLDER",
            show_default="runs/SYSTEM-METHOD-TIME",
            rich_help_panel=EVERYDAY,
        ),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Train the parameters of a system.

    Defaults come from the preset of the system and the method, if there is one; those of the
    paper's systems have its hyperparameters. `nres list` shows the presets.

    With --auto, short trials choose sigma, the learning rate, workers and window for a budget of
    steps or seconds, and training follows. The trials count as steps of the run.

    With --seeds, the same command with the same --out resumes runs that were interrupted.

    Example: nres train lorenz --method nres --updates 5000 --out runs/first
    """
    if seeds is not None and hosts["coordinator"] is not None:
        raise SettingsError(
            "--seeds cannot be combined with --coordinator: start one run per seed, with --seed."
        )
    check_auto(auto, budget, seeds, hosts["coordinator"])
    connect(**hosts)
    own = given_by_user(context, given | {"method": method.lower(), "system": system})
    merged = {"method": method} | _merged(config, own, system_options(**options), trust_code)
    if merged.get("start_from") is not None:
        merged["start_from"] = str(Path(merged["start_from"]).absolute())
    if auto:
        run, components = tuned_run(merged, budget_options(**budget), out, _built, quiet=quiet)
        carry_out(run, components=components, tensorboard=tensorboard, quiet=quiet)
        return
    settings = resolve(**merged)
    if seeds is not None:
        planned = [dataclasses.replace(settings, seed=settings.seed + i) for i in range(seeds)]
        _train_seeds(planned, out, tensorboard=tensorboard, quiet=quiet)
        return
    components = _built(settings)
    # The first process creates the folder; the others need not see it.
    chosen = (
        str(out or new_path(settings.system, settings.method)) if multihost.is_primary() else None
    )
    path = multihost.from_primary(chosen)
    run = Run.create(path, settings, components)
    carry_out(run, components=components, tensorboard=tensorboard, quiet=quiet)


def _train_seeds(
    planned: list[Settings], out: Path | None, *, tensorboard: bool, quiet: bool
) -> None:
    """Train runs that differ only in their seed, and print the mean and the spread of losses."""
    first, components = planned[0], None
    if out is not None and (out / "config.json").exists():
        raise RunError(f"{out} holds a run: choose another folder with --out.")
    if out is None:
        components = _built(first)  # so that mistakes show before a folder is created
    folder = out or new_path(first.system, first.method)
    console = Console()
    again = f"Resume with the same command and --out {folder}"
    runs = [
        finished(
            folder / f"{settings.method}-{settings.seed}",
            settings,
            console,
            components=components if settings is first else None,
            again=again,
            quiet=quiet,
            tensorboard=tensorboard,
        )
        for settings in planned
    ]
    run_figure(runs, folder / "figure.png")
    if not quiet:
        tell_seeds(console, runs, folder)
    lost = [run.path for run in runs if run.config.get("diverged")]
    if lost:
        raise RunError(
            f"{', '.join(map(str, lost))}: no worker gives a finite loss or gradient any more. Use "
            "a smaller learning rate, --lr, and another folder."
        )


def _built(settings: Settings) -> Components:
    """Build the components of a new run, with the initial parameters that --from names."""
    components = build(settings)
    if settings.start_from is None:
        return components
    theta = _start(Path(settings.start_from), components.theta)
    return dataclasses.replace(components, theta=theta)


def _merged(
    config: Path | None, own: dict[str, Any], options: dict[str, Any], trust_code: bool
) -> dict[str, Any]:
    """Combine the settings of the command line with those of a file.

    Args:
        config: The file, or the folder of a run.
        own: The settings on the command line, which take precedence.
        options: The arguments of the system on the command line, which do so one by one.
        trust_code: Run code, and connect to a Ray cluster, that only the file names.
    """
    recorded = {} if config is None else read_settings(config)
    if "ray" in own or "devices" in own:  # the run moves, as with `nres resume`
        recorded = {name: recorded[name] for name in recorded if name not in PLACEMENT}
    merged = recorded | own
    if own.get("ray") == "none":
        del merged["ray"]
    merged["options"] = recorded.get("options", {}) | options
    if "system" not in merged:
        where = "" if config is None else f", or give `system` in {config}"
        raise SettingsError(f"name a SYSTEM{where}; `nres list` shows those that nres knows.")
    if config is not None and not trust_code:
        named = foreign_code(own["system"], options) if "system" in own else []
        named += foreign_cluster(own.get("ray"))
        ray = merged.get("ray")
        words = refusal(config, merged["system"], merged["options"], ray, named)
        if words is not None:
            raise SettingsError(words)
    return merged


def _start(path: Path, like: Theta) -> Theta:
    """Read the initial parameters from a run's newest checkpoint or from a file."""
    if not multihost.from_primary(path.exists()):
        raise SettingsError(f"--from {path}: there is no such file or folder.")
    # A run may come from somebody else, so a link in its folder is not followed; others are.
    target = path if (path.parent / "config.json").exists() else path.resolve()
    if not multihost.from_primary(target.is_dir() and not target.is_symlink()):
        return shared_theta(target, like)
    with Checkpoints(path / "checkpoints", write=False) as checkpoints:
        updates = checkpoints.updates()
        if not updates:
            raise SettingsError(f"--from {path}: there is no checkpoint in that folder.")
        # This does not run the code of that run's system.
        return checkpoints.restore(updates[-1], {"theta": like}, partial=True)[0]["theta"]


@explained
@expand(given=setting_options("resume", default_text="as before"), hosts=connect)
def resume(
    run: RunFolder,
    given: dict[str, Any],
    hosts: dict[str, Any],
    fresh_episodes: Annotated[
        bool,
        typer.Option(
            "--fresh-episodes",
            help="Keep parameters and optimizer, and start new episodes; for simulators whose "
            "states cannot be saved.",
            rich_help_panel=EVERYDAY,
        ),
    ] = False,
    trust_code: TrustCode = False,
    tensorboard: Tensorboard = False,
    quiet: Quiet = False,
) -> None:
    """Resume a run that was interrupted or killed.

    The result is exactly the same as without the interruption.

    Use --devices or --ray to resume it on other devices or machines, and --ray none to bring it
    back from a Ray cluster.

    Example: nres resume runs/first
    """
    connect(**hosts)
    updates = given.pop("updates")
    stopping = {name: given.pop(name) for name in ("stop_after", "auto_stop")}
    if updates is not None:
        checked("updates", updates)
    opened = Run.open(run, trust_code=trust_code)
    settings = relocated(opened.settings, **given)
    changed = {name: value for name, value in stopping.items() if value is not None}
    settings = dataclasses.replace(settings, **changed)
    carry_out(
        opened,
        settings=settings,
        updates=updates,
        fresh_episodes=fresh_episodes,
        tensorboard=tensorboard,
        quiet=quiet,
    )


def carry_out(run: Run, *, quiet: bool, **options: Any) -> None:
    """Execute a run with a live display, draw its figure, and print its outcome.

    Args:
        run: The run.
        quiet: Print only errors.
        options: Arguments of `nres.runs.execute`.
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
        # It came during compilation, or for a second time: updates since the newest checkpoint
        # are lost.
        say(f"Interrupted. Resume from the newest checkpoint with: nres resume {run.path}", console)
        end(130)
    run = outcome.run
    if multihost.is_primary():
        run_figure([run], run.path / "figure.png")
    if not quiet:
        tell_outcome(console, outcome)
    if outcome.diverged:
        raise RunError(diverged(outcome))
    if outcome.unfinished and (outcome.signal is not None or multihost.is_multihost()):
        # If this process received no signal, another process of the run did.
        raise typer.Exit(128 + (outcome.signal or signal.SIGTERM))


def finished(
    path: Path,
    settings: Settings,
    console: Console,
    *,
    components: Components | None = None,
    again: str,
    quiet: bool,
    tensorboard: bool = False,
) -> Run:
    """Return the finished run with these settings in a folder; start or resume it if need be.

    Args:
        path: The folder.
        settings: The settings of the run.
        console: The console to print to.
        components: The components of a new run, if they are built already.
        again: The sentence that tells the user how to resume, printed after an interruption.
        quiet: Print only errors.
        tensorboard: Also write TensorBoard event files to the folder.

    Returns:
        The run, which is complete or has ended early.
    """
    if (path / "config.json").exists():
        run = Run.open(path)
        if run.settings != settings:
            raise RunError(
                f"{path} holds a run with other settings: choose another folder with --out."
            )
        # The user named this code on the command line.
        run = dataclasses.replace(run, trusted=True)
        if run.ended_early is not None:  # it would end at the same update again
            return run
        with Checkpoints(path / "checkpoints", write=False) as checkpoints:
            made = checkpoints.updates()
            seconds = checkpoints.metadata(made[-1])["seconds"] if made else 0.0
        complete = bool(made) and made[-1] >= settings.updates
        if complete or seconds >= (settings.budget_seconds or math.inf):
            return run
    else:
        components = components or _built(settings)
        run = Run.create(path, settings, components)
    title = f"{settings.method}, seed {settings.seed}"
    try:
        silent = quiet or not console.is_terminal
        with Display(title, console, quiet=silent) as display:
            outcome = execute(run, components=components, progress=display, tensorboard=tensorboard)
            run, stopped = outcome.run, outcome.signal
    except KeyboardInterrupt:  # during compilation, or for a second time
        stopped = int(signal.SIGINT)
    if stopped is not None:
        say(f"Interrupted. {again}", console)
        raise typer.Exit(128 + stopped)
    return run
