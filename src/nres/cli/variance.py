"""`nres variance`: measure gradient estimates."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import jax
import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from nres.cli.console import compact_table, say
from nres.cli.errors import explained
from nres.cli.options import Quiet, Seed, System, expand, system_options, whole
from nres.execution import choose
from nres.figures import periods_figure
from nres.files import write_json
from nres.pools.jax import as_pool
from nres.runs import Components, Run, Settings, SettingsError, build, new_path, resolve
from nres.runs.machine import device, versions
from nres.runs.names import full_name
from nres.runs.settings import EVERYDAY
from nres.runs.trust import foreign_code, remember
from nres.system import Theta
from nres.variance import Row, sweep_along

# The number of samples for compiled systems, and for simulators, which are slower.
SAMPLES, HOST_SAMPLES = 4096, 256
MEASUREMENT = "Measurement"


def _samples(default: int) -> Any:
    """Return the option for the number of episodes, with its default for compiled systems."""
    return typer.Option(
        help="Unroll N episodes per sweep.",
        callback=whole(8),
        metavar="N",
        rich_help_panel=MEASUREMENT,
        show_default=f"{default}; {HOST_SAMPLES} on a simulator",
    )


def run_option(help: str) -> Any:
    """Return the option for a run whose parameters are measured at."""
    return typer.Option(
        help=help,
        metavar="RUN",
        rich_help_panel=EVERYDAY,
        show_default="measure at the initial parameters",
    )


def folder_option(help: str, default: str) -> Any:
    """Return the option for the folder to write to."""
    return typer.Option(help=help, metavar="FOLDER", rich_help_panel=EVERYDAY, show_default=default)


@explained
@expand(options=system_options)
def variance(
    system: System,
    *,
    checkpoints: Annotated[
        Path | None,
        run_option("Measure at the checkpoints of this run that `nres train --keep-every` kept."),
    ] = None,
    seed: Seed = 0,
    out: Annotated[
        Path | None,
        folder_option(
            "Write the numbers and the figure to this folder.",
            "the run's folder, or runs/SYSTEM-variance-TIME",
        ),
    ] = None,
    quiet: Quiet = False,
    periods: Annotated[
        str | None,
        typer.Option(
            help="Measure at these periods K, separated by commas.",
            metavar="K,...",
            rich_help_panel=MEASUREMENT,
            show_default="W, 4 W, 16 W, ... and the horizon",
        ),
    ] = None,
    window: Annotated[
        int | None,
        typer.Option(
            help="Unroll W steps per estimate.",
            callback=whole(),
            metavar="W",
            rich_help_panel=MEASUREMENT,
            show_default="from the run or the preset, else a tenth of the horizon",
        ),
    ] = None,
    sigma: Annotated[
        float | None,
        typer.Option(
            help="Scale the noise by this number.",
            metavar="SIGMA",
            rich_help_panel=MEASUREMENT,
            show_default="from the run or the preset, else required",
        ),
    ] = None,
    samples: Annotated[int | None, _samples(SAMPLES)] = None,
    options: dict[str, Any],
) -> None:
    """Measure the total variance of gradient estimates for several noise-sharing periods.

    The command measures at the initial parameters, or at the checkpoints of a run.

    Example: nres variance lorenz --periods 100,200,500,2000 --checkpoints runs/first
    """
    console = Console()
    given = system_options(**options)
    run, components, settings = measured(system, checkpoints, seed, given, sigma, window)
    pool = as_pool(components.system)
    w = window or settings.window or max(1, pool.horizon // 10)
    chosen = _integers("--periods", periods) if periods else _quadrupling(w, pool.horizon)
    scale = sigma if sigma is not None else _first(settings.sigma)
    trajectory: dict[int, Theta] = {0: components.theta} if run is None else run.trajectory()
    folder = writable(out or (new_path(system, "variance") if run is None else run.path))
    many = samples or choose(pool, SAMPLES, HOST_SAMPLES)
    found: dict[int, list[dict[str, Any]]] = {}
    with measuring(system, folder, out is None), _bar(console, "variance", quiet) as bar:
        rows = sweep_along(
            pool,
            trajectory,
            jax.random.key(seed),
            {},
            lambda update, table: found.update({update: table}),
            sigmas=[scale],
            windows=[w],
            periods=chosen,
            samples=many,
            callback=lambda fraction: bar((len(found) + fraction) / len(trajectory)),
        )
    result = {
        "command": ["nres", *sys.argv[1:]],
        "system": settings.system,
        "options": settings.options,
        "samples": many,
        "device": device(),
        "versions": versions(),
        "rows": [{"update": update} | row for update, table in found.items() for row in table],
    }
    write_json(folder / "variance.json", result)
    title = f"{settings.system}: W = {w}, sigma = {scale:g}"
    periods_figure(rows, title, folder / "variance")
    if not quiet:
        for update, table in rows.items():
            name = f"after {update:,} updates" if run is not None else "at the initial parameters"
            console.print(_table(f"{title}, {name}", table))
        say(f"Figure: {folder / 'variance.png'}", console)


def measured(
    system: str,
    run: Path | None,
    seed: int,
    options: dict[str, Any],
    sigma: float | None,
    window: int | None,
) -> tuple[Run | None, Components, Settings]:
    """Return the run, if one is given, and the components and settings to measure with."""
    if run is not None:
        opened, named = Run.open(run), full_name(system)
        if (its := opened.settings.system) != named:
            raise SettingsError(f"{run} is a run of {its}, not of {system}.")
        # The command names the code of the run, but not the modules that its options might import.
        remember(foreign_code(named, {}))
        if options:
            raise SettingsError(
                "--set, --policy and --data-dir cannot change the system of a run: leave them out."
            )
        if opened.settings.sigma is None and sigma is None:
            raise SettingsError(
                f"{run} has no sigma, because its method is {opened.settings.method}: give --sigma."
            )
        return opened, opened.components, opened.settings
    settings = resolve(
        system,
        "nres",
        seed=seed,
        lr=1.0,  # required, but not used here
        sigma=None if sigma is None else str(sigma),
        window=window,
        options=options,
    )
    return None, build(settings), settings


def writable(folder: Path) -> Path:
    """Create a folder if need be, so that a mistake shows before the measurement."""
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        raise SettingsError(f"{folder} is not writable: choose another folder with --out.")
    return folder


@contextmanager
def measuring(system: str, folder: Path, created: bool) -> Iterator[None]:
    """Explain what a measurement refuses; if it fails, remove the folder that nres created."""
    try:
        yield
    except BaseException as error:
        if created and not any(folder.iterdir()):
            folder.rmdir()
        if isinstance(error, ValueError):
            raise SettingsError(f"{system}: {error}") from error
        raise


def _first(sigma: str | None) -> float:
    """Return the first value of a schedule."""
    assert sigma is not None
    return float(sigma.partition(",")[0])


def _quadrupling(window: int, horizon: int) -> list[int]:
    """Return the multiples of the window by powers of four, and the horizon."""
    periods = []
    while 2 * window <= horizon:
        periods.append(window)
        window *= 4
    return [*periods, horizon]


def _integers(option: str, text: str) -> list[int]:
    try:
        values = [int(part) for part in text.split(",")]
    except ValueError:
        raise SettingsError(
            f"{option} takes whole numbers, for example 1,4,16; got {text!r}."
        ) from None
    if min(values) < 1:
        raise SettingsError(f"{option} must be at least 1, got {min(values)}.")
    return values


@contextmanager
def _bar(console: Console, title: str, quiet: bool) -> Iterator[Any]:
    """Show a progress bar, and yield the function that sets the fraction that is done."""
    hidden = quiet or not console.is_terminal
    with Progress(console=console, disable=hidden, transient=True) as progress:
        task = progress.add_task(title, total=1.0)
        yield lambda fraction: progress.update(task, completed=fraction)


def _table(title: str, rows: tuple[Row, ...]) -> Table:
    table = compact_table(
        title, "method", "period K", "total variance", "95 % interval", "signal/noise"
    )
    for row in rows:
        table.add_row(
            row.method,
            f"{row.period:,}",
            f"{row.variance:.3g}",
            f"{row.low:.3g} – {row.high:.3g}",
            f"{row.snr:.3g}" if row.signal > 2 * row.signal_stderr else "–",
        )
    return table
