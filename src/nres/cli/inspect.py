"""`nres list`, `nres show`, `nres evaluate` and `nres plot`."""

from pathlib import Path
from typing import Annotated

import jax
import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from nres.checks import LARGEST
from nres.cli.console import plain, say
from nres.cli.errors import explained
from nres.cli.options import Best, RunFolder, Seed, TrustCode
from nres.cli.outcome import losses
from nres.evaluation import evaluate as evaluate_system
from nres.figures import run_figure
from nres.runs import METHODS, OPTIMIZERS, Run, RunError
from nres.runs.registry import SYSTEMS


@explained
def list_known() -> None:
    """List systems, methods and presets.

    Example: nres list
    """
    console = Console()
    systems = Table(title="Systems", title_justify="left", box=None, pad_edge=False)
    for heading in ("name", "what", "presets"):
        systems.add_column(heading)
    for name, known in SYSTEMS.items():
        systems.add_row(name, known.summary, ", ".join(known.presets))
    methods = Table(title="\nMethods", title_justify="left", box=None, pad_edge=False)
    for heading in ("name", "what", "options"):
        methods.add_column(heading)
    for name, info in METHODS.items():
        methods.add_row(name, info.summary, ", ".join(info.accepts))
    console.print(systems, methods)
    console.print(f"\nOptimizers: {', '.join(OPTIMIZERS)}.")
    for name, known in SYSTEMS.items():
        if not known.presets:
            continue
        presets = Table(
            title=f"\nPresets of {name}", title_justify="left", box=None, pad_edge=False
        )
        fields = ("workers", "window", "period", "sigma", "optimizer", "lr", "updates")
        for heading in ("method", *fields):
            presets.add_column(heading, justify="left" if heading == "method" else "right")
        for method, preset in known.presets.items():
            values = (getattr(preset, field) for field in fields)
            presets.add_row(method, *("–" if v is None else str(v) for v in values))
        console.print(presets)


@explained
def show(run: RunFolder) -> None:
    """Show a run: settings, versions, progress, best loss.

    Example: nres show runs/first
    """
    opened = Run.open(run)
    metrics, config = opened.metrics, opened.config
    table = Table(box=None, show_header=False, pad_edge=False)
    metadata = {k: v for k, v in opened.settings.to_json().items() if v not in (None, {})}
    metadata["created"] = config.get("created")
    for name in ("device", "versions", "git"):  # as they were found, whatever they are
        value = config.get(name)
        described = value.items() if isinstance(value, dict) else ()
        metadata[name] = ", ".join(f"{k} {v}" for k, v in described)
    done = int(metrics["update"][-1]) if len(metrics["update"]) else 0
    metadata["updates made"] = f"{done:,} of {opened.settings.updates:,}"
    if done:
        metadata["seconds"] = f"{metrics['seconds'][-1]:.1f}"
        metadata["unroll steps"] = f"{metrics['total_steps'][-1]:.3e}"
    for name, value in metadata.items():
        if value:
            table.add_row(name, plain(value))
    for line in losses(opened):
        name, _, value = line.partition(": ")
        table.add_row(plain(name), plain(value))
    Console().print(table)


@explained
def evaluate(
    run: RunFolder,
    episodes: Annotated[
        int, typer.Option(help="Average over N episodes.", min=1, max=LARGEST)
    ] = 100,
    seed: Seed = 0,
    best: Best = False,
    trust_code: TrustCode = False,
) -> None:
    """Evaluate the parameters of a run's newest checkpoint, without noise.

    Example: nres evaluate runs/first --episodes 1000
    """
    opened = Run.open(run, trust_code=trust_code)
    (updates, theta), components = opened.newest(best=best), opened.components
    result = evaluate_system(components.system, theta, jax.random.key(seed), episodes=episodes)
    each = np.asarray(result.losses)
    stderr = each.std(ddof=1) / np.sqrt(episodes) if episodes > 1 else 0.0
    say(f"loss: {each.mean():.5g} ± {stderr:.2g} over {episodes} episodes, after {updates} updates")
    say("As measured while training:")
    for name, value in components.measure(theta).items():
        say(f"  {name}: {float(value):.5g}")


@explained
def plot(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs.")],
    out: Annotated[Path | None, typer.Option(help="Write this picture.")] = None,
) -> None:
    """Draw one or several runs: into the run's folder, or to a file.

    Example: nres plot runs/first runs/second --out both.png
    """
    opened = [Run.open(run) for run in runs]
    for run in opened:
        if not len(run.metrics["update"]):
            raise RunError(f"{run.path} has no metrics yet.")
    if out is None:
        out = opened[0].path / "figure.png" if len(opened) == 1 else Path("runs.png")
    if out.suffix not in (".png", ".pdf", ".svg"):
        raise RunError(f"{out} must end in .png, .pdf or .svg.")
    run_figure(opened, out)
    say(f"Figure: {out}")
