"""`nres train` and `nres resume`."""

import dataclasses
import json
import math
import signal
from pathlib import Path
from typing import Annotated, Any

import jax
import typer
from rich.console import Console

from nres import multihost
from nres.checkpoint import Checkpoints
from nres.checks import LARGEST
from nres.cli.console import say
from nres.cli.errors import end, explained
from nres.cli.multihost import ConnectTimeout, Coordinator, NumProcesses, ProcessId, connect
from nres.cli.outcome import diverged, tell_outcome
from nres.display import Display
from nres.figures import run_figure
from nres.runs import (
    Problem,
    Run,
    RunError,
    Settings,
    SettingsError,
    build,
    execute,
    new_path,
    resolve,
)
from nres.runs.folder import shared_theta
from nres.runs.places import moved
from nres.system import Theta

System = Annotated[
    str,
    typer.Argument(help="A name from `nres list`, file.py:Class, module:Class or gym:ENV-ID."),
]
Options = Annotated[
    list[str] | None,
    typer.Option("--set", help="An argument of the system, such as horizon=500.", metavar="K=V"),
]
PolicyOption = Annotated[
    str | None, typer.Option(help="Of a simulator: linear, mlp:64,64 or mlp:64,64:relu.")
]
DataDir = Annotated[
    Path | None, typer.Option(help="Where data sets are that do not come with nres.")
]
Devices = Annotated[str | None, typer.Option(help="How many devices share the workers, or all.")]
Ray = Annotated[
    str | None,
    typer.Option(help="Actors share the workers: local, auto or HOST:PORT.", metavar="ADDRESS"),
]
Actors = Annotated[int | None, typer.Option(help="How many; one a processor, if not said.")]
AllowStale = Annotated[
    bool, typer.Option("--allow-stale", help="Do not wait for the slowest half of the actors.")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Say nothing but errors.")]
Seed = Annotated[int, typer.Option(help="Seed of all randomness.", min=-(2**63), max=2**63 - 1)]
TrustCode = Annotated[
    bool,
    typer.Option("--trust-code", help="Run the code that the folder names, wherever it is from."),
]
Best = Annotated[
    bool, typer.Option("--best", help="Take the parameters of the best evaluation instead.")
]
Tensorboard = Annotated[
    bool, typer.Option("--tensorboard", help="Write TensorBoard event files, too.")
]


@explained
def train(
    system: System,
    method: Annotated[str, typer.Option(help="One of `nres list`.")] = "nres",
    workers: Annotated[int | None, typer.Option(help="N, unrolls side by side.")] = None,
    window: Annotated[int | None, typer.Option(help="W, steps an update.")] = None,
    sigma: Annotated[
        str | None, typer.Option(help="Scale of the noise: 0.1, or 0.1,1000:0.05.")
    ] = None,
    period: Annotated[int | None, typer.Option(help="K, steps a noise serves.")] = None,
    noise: Annotated[str | None, typer.Option(help="keep or regenerate.")] = None,
    optimizer: Annotated[str | None, typer.Option(help="sgd, adam, ... of optax.")] = None,
    lr: Annotated[str | None, typer.Option(help="Learning rate: 1e-3, or 1e-3,1000:1e-4.")] = None,
    updates: Annotated[int | None, typer.Option(help="How many updates to make.")] = None,
    seed: Seed = 0,
    start_seed: Annotated[
        int | None, typer.Option(help="Seed of the start alone, if it is to be another.")
    ] = None,
    start: Annotated[
        Path | None,
        typer.Option(
            "--from", help="Begin with the parameters of another run, or of an .npz file."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The folder of the run.")] = None,
    eval_every: Annotated[int | None, typer.Option(help="Updates an evaluation.")] = None,
    log_every: Annotated[int | None, typer.Option(help="Updates an entry of metrics.")] = None,
    checkpoint_every: Annotated[int | None, typer.Option(help="Updates a checkpoint.")] = None,
    checkpoint_seconds: Annotated[float | None, typer.Option(help="Seconds a checkpoint.")] = None,
    keep_every: Annotated[
        int | None, typer.Option(help="Updates a checkpoint that is kept for good.")
    ] = None,
    devices: Devices = None,
    coordinator: Coordinator = None,
    num_processes: NumProcesses = None,
    process_id: ProcessId = None,
    connect_timeout: ConnectTimeout = 60,
    ray: Ray = None,
    actors: Actors = None,
    allow_stale: AllowStale = False,
    policy: PolicyOption = None,
    data_dir: DataDir = None,
    options: Options = None,
    tensorboard: Tensorboard = False,
    quiet: Quiet = False,
) -> None:
    """Train a system's parameters. What is not given is filled from the paper's settings.

    Example: nres train lorenz --method nres --updates 5000 --out runs/first
    """
    connect(coordinator, num_processes, process_id, connect_timeout)
    settings = resolve(
        system,
        method.lower(),
        workers=workers,
        window=window,
        sigma=sigma,
        period=period,
        noise=noise,
        optimizer=optimizer,
        lr=lr,
        updates=updates,
        seed=seed,
        start_seed=start_seed,
        eval_every=eval_every,
        log_every=log_every,
        checkpoint_every=checkpoint_every,
        checkpoint_seconds=checkpoint_seconds,
        keep_every=keep_every,
        devices=_count(devices),
        ray=ray,
        actors=actors,
        allow_stale=allow_stale,
        start_from=None if start is None else str(start.absolute()),
        options=parse_options(options, policy=policy, data_dir=data_dir),
    )
    problem = build(settings)
    if start is not None:
        problem = dataclasses.replace(problem, theta=_start(start, problem.theta))
    # The first process has the folder, and creates it.
    chosen = str(out or new_path(system, settings.method)) if multihost.is_primary() else None
    path = multihost.from_primary(chosen)
    run = Run.create(path, settings, problem)
    carry_out(run, problem, tensorboard=tensorboard, quiet=quiet)


def _start(path: Path, like: Theta) -> Theta:
    """The parameters of another run's newest checkpoint, or of a file."""
    if not multihost.from_primary(path.is_dir()):
        return shared_theta(path.resolve(), like)
    with Checkpoints(path / "checkpoints", write=False) as checkpoints:
        updates = checkpoints.updates()
        if not updates:
            raise SettingsError(f"--from {path}: there is no checkpoint in that folder.")
        # The code of that run is not needed for this, and is not run.
        return checkpoints.restore(updates[-1], {"theta": like}, partial=True)[0]["theta"]


@explained
def resume(
    run: Annotated[Path, typer.Argument(help="The folder of a run.")],
    updates: Annotated[
        int | None,
        typer.Option(
            help="Go on to this many updates instead of those planned.", min=1, max=LARGEST
        ),
    ] = None,
    devices: Devices = None,
    coordinator: Coordinator = None,
    num_processes: NumProcesses = None,
    process_id: ProcessId = None,
    connect_timeout: ConnectTimeout = 60,
    ray: Ray = None,
    actors: Actors = None,
    allow_stale: AllowStale = False,
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
    """Go on with a run that was interrupted or killed; it ends exactly as it would have.

    --devices or --ray continue it elsewhere; --ray none brings it back from a Ray cluster.

    Example: nres resume runs/first
    """
    connect(coordinator, num_processes, process_id, connect_timeout)
    opened = Run.open(run, trust_code=trust_code)
    settings = moved(opened.settings, _count(devices), ray, actors, allow_stale)
    problem = None
    if settings != opened.settings:
        problem = opened.build(settings)
    carry_out(
        opened,
        problem,
        settings=settings,
        updates=updates,
        fresh_episodes=fresh_episodes,
        tensorboard=tensorboard,
        quiet=quiet,
    )


def _count(devices: str | None) -> int | None:
    """A number of devices, or all there are; several hosts always share all of theirs."""
    if devices == "all" or (devices is None and multihost.is_multihost()):
        return jax.device_count()
    if devices is None:
        return None
    if not devices.isdecimal():
        raise SettingsError(f"--devices takes a number, or all; got {devices!r}.")
    return int(devices)


def carry_out(
    run: Run, problem: Problem | None = None, *, tensorboard: bool, quiet: bool, **options: Any
) -> None:
    """Execute a run with a display, draw its figure, and say how it ended."""
    console = Console()
    quiet = quiet or not multihost.is_primary()
    silent = quiet or not console.is_terminal
    settings = run.settings
    title = f"{settings.method} on {settings.system.rpartition('/')[2]}"
    try:
        with Display(title, console, quiet=silent) as display:
            outcome = execute(
                run, problem=problem, progress=display, tensorboard=tensorboard, **options
            )
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
    """The run with these settings in a folder, carried out as far as it is not.

    If that is interrupted, the command ends, and says how to go on: `again`.
    """
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
            seconds = checkpoints.facts(made[-1])["seconds"] if made else 0.0
        complete = bool(made) and made[-1] >= settings.updates
        if complete or seconds >= (settings.budget_seconds or math.inf):
            return run
    else:
        run = Run.create(path, settings, build(settings))
    title = f"{settings.method}, seed {settings.seed}"
    try:
        silent = quiet or not console.is_terminal
        with Display(title, console, quiet=silent) as display:
            stopped = execute(run, progress=display).signal
    except KeyboardInterrupt:  # while compiling, or a second time
        stopped = int(signal.SIGINT)
    if stopped is not None:
        say(f"Interrupted. {again}", console)
        raise typer.Exit(128 + stopped)
    return run


def parse_options(given: list[str] | None, **named: str | Path | None) -> dict[str, Any]:
    """`K=V` pairs, with values read as JSON where they are, and options with names of their own."""
    options: dict[str, Any] = {k: str(v) for k, v in named.items() if v is not None}
    for pair in given or []:
        name, equals, value = pair.partition("=")
        if not equals or not name.isidentifier():
            raise SettingsError(f"--set takes NAME=VALUE, such as horizon=500; got {pair!r}.")
        try:
            options[name] = json.loads(value)
        except (ValueError, RecursionError):  # text, or too long or deep for a value
            options[name] = value
    return options
