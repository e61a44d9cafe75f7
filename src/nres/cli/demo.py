"""`nres demo`: all nine methods on a chaotic system, in about a minute."""

import json
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from nres.experiments import lorenz
from nres.experiments.figures import lorenz_paths
from nres.files import replacing
from nres.systems import Lorenz
from nres.train import TrainResult

# Enough for each to arrive where it is going; those on whole episodes take fewer, longer updates.
UPDATES = {m.name: 600 if m.name in ("FullES", "BPTT") else 2400 for m in lorenz.METHODS}


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the figure and the numbers.")] = Path("."),
    seed: Annotated[int, typer.Option(help="Seed of all randomness.")] = 0,
) -> None:
    """Fit a chaotic system with each of the nine methods; print a table and draw a figure.

    Example: nres demo --out results/demo
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise typer.BadParameter(f"--out needs a folder to write to: {error}") from error
    console = Console()
    console.print(
        "Recovering the two parameters of a chaotic system from one coordinate over 2000 steps, "
        "with the settings of the paper. Compiling takes a few seconds for each method.\n"
    )
    system = Lorenz()
    results = {}
    columns = (
        TextColumn("{task.description:8}"),
        BarColumn(),
        TextColumn("{task.completed:>5}/{task.total} updates"),
        TextColumn("loss {task.fields[loss]:>7}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bar:
        for method in lorenz.METHODS:
            updates = UPDATES[method.name]
            task = bar.add_task(method.name, total=updates, loss="…")

            def show(progress, task=task):
                loss = f"{progress.rows['loss'][-1]:.1f}"
                bar.update(task, completed=progress.state.update, loss=loss)

            results[method.name] = lorenz.run(
                method, system, updates=updates, seed=seed, callback=show
            )
            if results[method.name].interrupted:
                raise typer.Exit(130)
    rows = [_summary(system, name, result) for name, result in results.items()]
    console.print(_table(rows))
    lorenz_paths(system, results, out / "demo.png")
    with replacing(out / "demo.json") as partial:
        partial.write_text(json.dumps({"seed": seed, "methods": rows}, indent=2) + "\n")
    console.print(f"\nFigure: {out / 'demo.png'}, numbers: {out / 'demo.json'}")


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
        "test_loss": float(system.test_loss(result.theta, lorenz.TEST_KEY)),
        "distance": float(np.linalg.norm(np.asarray(result.theta) - np.asarray(system.truth))),
    }


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(title="Lorenz, T = 2000, after training")
    table.add_column("method")
    for heading in (
        "updates/s",
        "unroll steps",
        "one after another",
        "seconds",
        "test loss",
        "distance to truth",
    ):
        table.add_column(heading, justify="right")
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
