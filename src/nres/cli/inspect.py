"""`nres list`, `nres show`, `nres evaluate` and `nres plot`: inspect systems and runs."""

from pathlib import Path
from typing import Annotated

import jax
import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from nres.cli.console import compact_table, plain, say
from nres.cli.errors import explained
from nres.cli.options import Best, RunFolder, RunFolders, Seed, TrustCode, whole
from nres.cli.outcome import losses
from nres.evaluation import evaluate as evaluate_system
from nres.figures import run_figure
from nres.runs import METHODS, OPTIMIZERS, Run, RunError
from nres.runs.registry import SYSTEMS
from nres.runs.settings import EVERYDAY


@explained
def list_known() -> None:
    """List the systems, methods, optimizers and presets.

    Example: nres list
    """
    console = Console()
    systems = compact_table("Systems", "name")
    systems.add_column("task; an episode has T steps")
    for name, known in SYSTEMS.items():
        systems.add_row(name, known.summary)
    methods = compact_table("\nMethods", "name")
    methods.add_column("gradient estimate")
    methods.add_column("options besides --workers")
    for name, info in METHODS.items():
        names = (option.replace("_", "-") for option in info.accepts if option != "workers")
        methods.add_row(name, info.summary, " ".join(f"--{name}" for name in names))
    console.print(systems, methods)
    console.print("\nOptimizers")
    console.print(", ".join(OPTIMIZERS))
    for name, known in SYSTEMS.items():
        if not known.presets:
            continue
        fields = ("workers", "window", "period", "sigma", "shaping", "optimizer", "lr", "updates")
        used = [f for f in fields if any(getattr(p, f) is not None for p in known.presets.values())]
        presets = compact_table(f"\nPresets of {name}", "method", *used)
        presets.collapse_padding = True  # schedules of learning rates are long
        for method, preset in known.presets.items():
            values = (getattr(preset, field) for field in used)
            presets.add_row(method, *("–" if v is None else str(v) for v in values))
        console.print(presets)


@explained
def show(run: RunFolder) -> None:
    """Show the settings, versions, progress and losses of a run.

    Example: nres show runs/first
    """
    opened = Run.open(run)
    metrics, config = opened.metrics, opened.config
    table = Table(box=None, show_header=False, pad_edge=False)
    metadata = {k: v for k, v in opened.settings.to_json().items() if v not in (None, {})}
    metadata["created"] = config.get("created")
    for name in ("device", "versions", "git"):  # a foreign config may hold anything here
        value = config.get(name)
        described = value.items() if isinstance(value, dict) else ()
        metadata[name] = ", ".join(f"{k} {v}" for k, v in described)
    done = int(metrics["update"][-1]) if len(metrics["update"]) else 0
    ended = "" if opened.ended_early is None else f", {opened.ended_early}"
    metadata["updates made"] = f"{done:,} of {opened.settings.updates:,}{ended}"
    if done:
        metadata["seconds"] = f"{metrics['seconds'][-1]:.1f}"
        metadata["unroll steps"] = f"{metrics['total_steps'][-1]:.3e}"
    for name, label in (("snr", "signal-to-noise ratio"), ("linear_share", "linear share")):
        known = metrics.get(name, np.zeros(0))
        known = known[np.isfinite(known)]
        if known.size:
            metadata[label] = f"{known[0]:.2g} → {known[-1]:.2g}"
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
        int,
        typer.Option(
            help="Average the loss over N episodes.",
            callback=whole(),
            metavar="N",
            rich_help_panel=EVERYDAY,
        ),
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
    say(
        f"loss: {each.mean():.5g} ± {stderr:.2g} "
        f"(mean ± standard error over {episodes:,} episodes, after {updates:,} updates)"
    )
    system, horizon = components.system, components.system.horizon
    if shift := getattr(system, "shift", 0):
        say(f"This loss contains the shift of {shift:g} per step, which the metrics do not.")
    if (test_horizon := getattr(system, "test_horizon", horizon)) != horizon:
        say(f"Its episodes have {horizon:,} steps, those of the metrics {test_horizon:,}.")
    say("Metrics as evaluated during training:")
    for name, value in components.measure(theta).items():
        say(f"  {name}: {float(value):.5g}")


@explained
def plot(
    runs: RunFolders,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write this .png, .pdf or .svg file.",
            metavar="FILE",
            rich_help_panel=EVERYDAY,
            show_default="figure.png in the run's folder, runs.png for several runs",
        ),
    ] = None,
) -> None:
    """Draw the loss curves of one or several runs.

    Example: nres plot runs/first runs/second --out both.png
    """
    opened = [Run.open(run) for run in runs]
    for run in opened:
        if not len(run.metrics["update"]):
            raise RunError(f"{run.path} has no metrics yet: it has made no update.")
    if out is None:
        out = opened[0].path / "figure.png" if len(opened) == 1 else Path("runs.png")
    if out.suffix not in (".png", ".pdf", ".svg"):
        raise RunError(f"--out must end in .png, .pdf or .svg, got {out}.")
    run_figure(opened, out)
    say(f"Figure: {out}")
