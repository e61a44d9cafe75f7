"""`nres evaluate-optimizer`: compare learned optimizers with others on new tasks."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from nres.cli.console import compact_table, say
from nres.cli.errors import explained
from nres.cli.export import learned_system
from nres.cli.options import Best, Quiet, TrustCode, whole
from nres.figures import optimizers_figure
from nres.runs import Run, SettingsError, evaluate_optimizers
from nres.runs.optimizer_evaluation import loss_text, times_text
from nres.runs.settings import EVERYDAY
from nres.systems.learned_optimizer import (
    HELD_OUT,
    Celo2,
    LearnableOptimizer,
    read_celo2,
    read_optimizer,
)
from nres.systems.learned_optimizer.export import is_shipped


@explained
def evaluate_optimizer(
    files: Annotated[
        list[Path],
        typer.Argument(
            help="Files of learned optimizers (.npz; others must hold weights of Celo2), folders "
            "of their runs, or celo2, which comes with nres.",
            metavar="FILE",
        ),
    ],
    tasks: Annotated[
        str | None,
        typer.Option(
            help=f"Train on these tasks, separated by commas: {', '.join(HELD_OUT)}.",
            metavar="NAMES",
            rich_help_panel=EVERYDAY,
            show_default="all",
        ),
    ] = None,
    steps: Annotated[
        int,
        typer.Option(
            help="Train each model for N steps.",
            callback=whole(),
            metavar="N",
            rich_help_panel=EVERYDAY,
        ),
    ] = 1000,
    seeds: Annotated[
        int,
        typer.Option(
            help="Train N models per task.", callback=whole(), metavar="N", rich_help_panel=EVERYDAY
        ),
    ] = 3,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write the evaluation to this folder, or continue the one in it.",
            metavar="FOLDER",
            rich_help_panel=EVERYDAY,
            show_default="evaluation in a single run's folder, else runs/evaluation",
        ),
    ] = None,
    best: Best = False,
    trust_code: TrustCode = False,
    quiet: Quiet = False,
) -> None:
    """Compare learned optimizers with Adam, AdamW, momentum, Muon and schedule-free AdamW.

    Every optimizer tries its learning rates on every task, and the best counts. The same command
    continues an evaluation that was interrupted. `nres report` shows that of a run.

    Example: nres evaluate-optimizer mine.npz --tasks convolutional,transformer
    """
    given = ",".join(HELD_OUT) if tasks is None else tasks
    names = tuple(name.strip() for name in given.split(",") if name.strip())
    if len(set(names)) < len(names) or not names:
        raise SettingsError(f"--tasks must name each task once, got {tasks!r}.")
    learned = {
        file.resolve().name if file.is_dir() else file.stem: _opened(file, best, trust_code)
        for file in files
    }
    if len(learned) < len(files):
        raise SettingsError("the files must have different names, which name the optimizers.")
    alone = len(files) == 1 and files[0].is_dir()
    out = out or (files[0] if alone else Path("runs")) / "evaluation"
    console = Console()
    with console.status("") as status:

        def report(what: str, done: int, total: int) -> None:
            status.update(f"{what} ({done + 1} of {total})")

        result = evaluate_optimizers(
            learned, out, tasks=names, steps=steps, seeds=seeds, report=report
        )
    optimizers_figure(result, list(learned), out / "evaluation")
    if not quiet:
        console.print(_table(result))
        say(f"Evaluation: {out}", console)


def _opened(path: Path, best: bool, trust_code: bool) -> tuple[LearnableOptimizer, Any]:
    """Read an optimizer and its parameters from a file or from a run."""
    if not path.is_dir():
        ours = path.suffix == ".npz" or is_shipped(path)
        return read_optimizer(path)[:2] if ours else (Celo2(), read_celo2(path))
    run = Run.open(path, trust_code=trust_code)
    return learned_system(run).optimizer, run.newest(best=best)[1]


def _table(result: dict[str, Any]) -> Any:
    every = list(next(iter(result["tasks"].values()))["optimizers"])
    title = f"Training loss and speedup over Adam, {result['steps']:,} steps"
    table = compact_table(title, "task", "optimizer", "rate", "loss", "speedup")
    for task, found in result["tasks"].items():
        for i, name in enumerate(every):
            row = found["optimizers"][name]
            loss = loss_text(row["final_loss"])
            table.add_row(task if i == 0 else "", name, f"{row['rate']:g}", loss, times_text(row))
    return table
