"""`nres demo`: run nine methods on a chaotic system, in about a minute."""

from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from nres.cli.console import compact_table, say
from nres.cli.errors import explained
from nres.cli.options import Seed
from nres.display import Display
from nres.figures import DISPLAY_NAMES, lorenz_paths
from nres.files import write_json
from nres.results import TrainResult
from nres.runs import build, resolve
from nres.runs.components import EVAL_KEY
from nres.runs.registry import SYSTEMS
from nres.runs.settings import EVERYDAY
from nres.systems import Lorenz
from nres.training import train


@explained
def demo(
    out: Annotated[
        Path,
        typer.Option(
            help="Write the figure and the numbers to this folder.",
            metavar="FOLDER",
            rich_help_panel=EVERYDAY,
        ),
    ] = Path("."),
    seed: Seed = 0,
) -> None:
    """Fit a chaotic system with each of nine methods; print a table and draw a figure.

    Example: nres demo --out results/demo
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise typer.BadParameter(f"--out needs a folder to write to: {error}") from error
    console = Console()
    console.print(
        "Each method tries to recover the two parameters of a chaotic system from one coordinate "
        "over 2000 steps, with the hyperparameters of the paper. Compilation takes a few seconds "
        "per method.\n"
    )
    system, results = SYSTEMS["lorenz"].make(), {}
    for method in SYSTEMS["lorenz"].presets:
        settings = resolve("lorenz", method, seed=seed)
        components = build(settings)
        silent = not console.is_terminal
        with Display(f"{DISPLAY_NAMES[method]:7}", console, quiet=silent) as display:
            result = train(
                components.estimator,
                components.optimizer,
                components.theta,
                updates=settings.updates,
                key=components.key,
                eval_fn=components.measure,
                eval_every=settings.eval_every,
                progress=display,
            )
        if result.interrupted:
            raise typer.Exit(130)
        results[DISPLAY_NAMES[method]] = result
    rows = [_summary(system, name, result) for name, result in results.items()]
    console.print(_table(rows))
    lorenz_paths(system, results, out / "demo.png")
    write_json(out / "demo.json", {"seed": seed, "methods": rows})
    say(f"\nFigure: {out / 'demo.png'}, numbers: {out / 'demo.json'}", console)


def _summary(system: Lorenz, name: str, result: TrainResult) -> dict[str, Any]:
    history = result.history
    return {
        "method": name,
        "updates": result.state.update,
        "seconds": result.state.seconds,
        "setup_seconds": history.setup_time,
        "updates_per_second": result.state.update / result.state.seconds,
        "unroll_steps": result.state.steps.total,
        "sequential_steps": result.state.steps.sequential,
        "test_loss": float(system.test_loss(result.theta, jax.random.key(EVAL_KEY))),
        "distance": float(np.linalg.norm(np.asarray(result.theta) - np.asarray(system.truth))),
    }


def _table(rows: list[dict[str, Any]]) -> Table:
    table = compact_table(
        "Lorenz, T = 2000, after training",
        "method", "updates/s", "steps", "sequential", "seconds", "test loss", "distance to truth",
    )  # fmt: skip
    for row in rows:
        table.add_row(
            row["method"],
            f"{row['updates_per_second']:,.0f}",
            f"{row['unroll_steps']:.2e}",
            f"{row['sequential_steps']:.2e}",
            f"{row['seconds']:.2f}",
            f"{row['test_loss']:.1f}",
            f"{row['distance']:.3f}",
        )
    return table
