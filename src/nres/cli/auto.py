"""`nres train --auto` and `nres advise`: choose settings by short trials."""

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import jax
import typer
from rich.console import Console

from nres.cli.console import say
from nres.cli.errors import explained
from nres.cli.options import Quiet, Seed, System, expand, system_options
from nres.cli.variance import folder_option, measured, measuring, run_option, writable
from nres.files import write_json
from nres.pools.jax import as_pool
from nres.runs import Components, Run, RunError, Settings, SettingsError, new_path, tune_settings
from nres.runs.auto import command_options, measurements
from nres.runs.machine import device, versions
from nres.runs.registry import SYSTEMS
from nres.runs.settings import EVERYDAY
from nres.tuning import Probe, Trial, tune


def _steps(help: str, default: str = "no limit") -> Any:
    return typer.Option(help=help, metavar="STEPS", rich_help_panel=EVERYDAY, show_default=default)


def budget_options(
    total_steps: Annotated[
        float | None, _steps("Plan --auto for this many unroll steps in total.")
    ] = None,
    sequential_steps: Annotated[
        float | None, _steps("Plan --auto for this many sequential unroll steps.")
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            help="Plan --auto for this many seconds.",
            metavar="N",
            rich_help_panel=EVERYDAY,
            show_default="the steps of the preset, else of 1000 updates",
        ),
    ] = None,
) -> dict[str, float]:
    """Return the limits that are given, by the names of the arguments of `nres.tune`."""
    given = {
        "total_steps": total_steps,
        "sequential_steps": sequential_steps,
        "seconds": seconds,
    }
    budget = {name: value for name, value in given.items() if value is not None}
    for name, value in budget.items():
        if not 0 < value < 1e18:
            raise SettingsError(
                f"--{name.replace('_', '-')} must be a positive number below 1e18, got {value:g}."
            )
    if seconds is not None and len(budget) > 1:
        raise SettingsError("--seconds cannot be combined with a number of steps: give one budget.")
    return budget


def check_auto(
    auto: bool, budget: dict[str, float | None], seeds: int | None, coordinator: str | None
) -> None:
    """Refuse options that cannot be combined with --auto, or that need it."""
    others = {"--seeds": seeds, "--coordinator": coordinator}
    for option, other in others.items():
        if auto and other is not None:
            raise SettingsError(
                f"--auto cannot be combined with {option}: start one run per seed, on one machine."
            )
    for name, value in budget.items():
        if not auto and value is not None:
            raise SettingsError(f"--{name.replace('_', '-')} is a budget of --auto: add --auto.")


def tuned_run(
    given: dict[str, Any],
    budget: dict[str, float],
    out: Path | None,
    make: Callable[[Settings], Components],
    *,
    quiet: bool,
) -> tuple[Run, Components]:
    """Choose settings by trials, print the reasons, and create a run with them.

    Args:
        given: The settings that the user gives.
        budget: The budget, from `budget_options`.
        out: The folder of the run.
        make: A function that makes components.
        quiet: Print nothing.

    Returns:
        The run and its components.
    """
    if out is not None and (out / "config.json").exists():  # before the trials, which take time
        raise RunError(
            f"{out} holds a run already: choose another folder, or resume that run: "
            f"nres resume {out}"
        )
    console = Console()
    with _reporting(console, quiet) as report:
        chosen = tune_settings(given, budget, make, report)
    if not quiet:
        say("\n".join(chosen.reasons), console)
    path = out or new_path(chosen.settings.system, chosen.settings.method)
    run = Run.create(path, chosen.settings, chosen.components, tuning=chosen.record)
    return run, chosen.components


@explained
@expand(options=system_options)
def advise(
    system: System,
    *,
    total_steps: Annotated[float, _steps("Plan for this many unroll steps in total.", "1e8")] = 1e8,
    sequential_steps: Annotated[
        float, _steps("Plan for this many sequential unroll steps.", "1e5")
    ] = 1e5,
    run: Annotated[Path | None, run_option("Start at the newest parameters of this run.")] = None,
    seed: Seed = 0,
    out: Annotated[
        Path | None,
        folder_option("Write the measurements to this folder.", "runs/SYSTEM-advice-TIME"),
    ] = None,
    quiet: Quiet = False,
    options: dict[str, Any],
) -> None:
    """Recommend sigma, a learning rate, a window and a number of workers for a budget.

    The command makes the same trials as `nres train --auto`, and prints a command that trains with
    the settings that they suggest.

    Example: nres advise lorenz --total-steps 1e8 --sequential-steps 2.4e5
    """
    console = Console()
    given = system_options(**options)
    budget: dict[str, Any] = budget_options(total_steps, sequential_steps)
    # An estimator needs a sigma and a window; here any will do.
    opened, components, settings = measured(system, run, seed, given, 1.0, 1)
    pool = as_pool(components.system)
    theta = components.theta if opened is None else opened.theta()
    folder = writable(out or new_path(system, "advice"))
    with measuring(system, folder, out is None), _reporting(console, quiet) as report:
        key = jax.random.key(seed)
        tuned = tune(pool, theta, key=key, callback=report, **budget)
    recommended = command_options(tuned, budget)
    write_json(
        folder / "advice.json",
        {
            "command": ["nres", *sys.argv[1:]],
            "system": settings.system,
            "options": settings.options,
            "budget": budget,
            "recommended": recommended,
            **measurements(tuned),
            "device": device(),
            "versions": versions(),
        },
    )
    if quiet:
        return
    chosen = [f"--{name}={value}" for name, value in recommended.items()]
    usual = SYSTEMS[system].options if system in SYSTEMS else {}
    own = {k: v for k, v in settings.options.items() if usual.get(k) != v}
    chosen += [f"--set={name}={value}" for name, value in own.items()]
    chosen += [] if run is None else [f"--from={run}"]
    say(shlex.join(["nres", "train", system, *chosen]), console)
    say("\n".join(tuned.reasons), console)
    say(f"Measurements: {folder / 'advice.json'}", console)


@contextmanager
def _reporting(console: Console, quiet: bool) -> Iterator[Callable[[Probe | Trial], None]]:
    """Yield a function that shows the current probe or trial in a terminal."""
    if quiet or not console.is_terminal:
        yield lambda result: None
        return
    with console.status("tuning") as status:
        yield lambda result: status.update(f"tuning: {_in_words(result)}")


def _in_words(result: Probe | Trial) -> str:
    """Describe a probe or a trial."""
    if isinstance(result, Trial):
        return f"trial with sigma {result.sigma:g}: loss {result.loss:.4g}"
    loss, distance = min(zip(result.losses, result.distances, strict=True))
    return f"probe with sigma {result.sigma:g}: loss {loss:.4g} at {distance:g} per parameter"
