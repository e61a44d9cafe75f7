"""`nres reproduce`: a figure of the paper, by one command."""

import json
import math
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import typer
from rich.console import Console

from nres.cli.errors import explained
from nres.cli.export import write_optimizer
from nres.cli.train import carry_out
from nres.experiments import learned_optimizer
from nres.experiments.presets import fashion_mnist_system
from nres.files import replacing
from nres.runs import Run, SettingsError, build, resolve
from nres.systems.learned_optimizer import LearnedOptimizerSystem, read_optimizer

Out = Annotated[Path | None, typer.Option(help="Folder for figures and numbers.")]
Seed = Annotated[int, typer.Option(help="Seed of all randomness.")]

# The loss at a fresh theta is anything from 1.3 to 11,000; that of this seed is about the paper's.
START = 11

app = typer.Typer(help="Make a figure of the paper again.", no_args_is_help=True)


@app.command()
@explained
def landscape(
    out: Out = None,
    learned: Annotated[
        Path | None, typer.Option(help="An exported optimizer, to look around it, too.")
    ] = None,
    points: Annotated[int, typer.Option(help="Losses to compute on each line.", min=3)] = 201,
    distance: Annotated[float, typer.Option(help="How far to go, in both directions.")] = 0.4,
    seed: Seed = START,
) -> None:
    """The loss of a learned optimizer along a random direction, and its exact gradient's norm.

    About six minutes on two cores.
    Example: nres reproduce landscape --learned results/learned-optimizer/optimizer.npz
    """
    out = out or Path("results/landscape")
    system = fashion_mnist_system()
    at, along = jax.random.split(jax.random.key(seed))
    thetas = {"at a fresh start": system.initial_theta(at)}
    if learned is not None:
        optimizer, theta, _ = read_optimizer(learned)
        if optimizer != system.optimizer:
            raise SettingsError(f"{learned} holds {optimizer}, not {system.optimizer}.")
        thetas["at a learned optimizer"] = theta
    direction = jax.random.normal(along, thetas["at a fresh start"].shape)
    direction = direction / jnp.linalg.norm(direction)
    distances = np.linspace(-distance, distance, points)
    horizons = (1, 3, 10, 30, 100, 300, 1000)
    shorter = [
        LearnedOptimizerSystem(system.task, system.optimizer, horizon=steps) for steps in horizons
    ]
    losses, norms = {}, {}
    # In full single precision: what is jagged should be the loss, not its rounding.
    with jax.default_matmul_precision("highest"):
        for name, theta in thetas.items():
            losses[name] = learned_optimizer.landscape(system, theta, direction, distances)
            norms[name] = [learned_optimizer.gradient_norm(other, theta) for other in shorter]
    learned_optimizer.landscape_figure(distances, losses, horizons, norms, out / "landscape.png")
    _write(
        out / "landscape.json",
        {
            "command": f"nres reproduce landscape --points {points} --distance {distance}"
            + f" --seed {seed}"
            + ("" if learned is None else f" --learned {learned}"),
            "distance": distances.tolist(),
            "loss": {name: values.tolist() for name, values in losses.items()},
            "horizon": horizons,
            "gradient_norm": norms,
        },
    )
    Console().print(f"Figure: {out / 'landscape.png'}", soft_wrap=True, highlight=False)


@app.command("learned-optimizer")
@explained
def learn_optimizer(
    out: Out = None,
    updates: Annotated[int, typer.Option(help="The paper makes 240,000.", min=1)] = 240_000,
    seed: Seed = START,
) -> None:
    """Learn an optimizer with NRES, and let it race tuned Adam and SGD on its own task.

    A minute on a large GPU, half a day on two cores; goes on where it was interrupted.
    Example: nres reproduce learned-optimizer
    """
    out = out or Path("results/learned-optimizer")
    settings = resolve(
        "learned-optimizer",
        "nres",
        updates=updates,
        seed=seed,
        eval_every=max(1, updates // 240),
        log_every=max(1, updates // 1200),
    )
    path = out / "nres"
    if (path / "config.json").exists():
        run = Run.open(path)
        if run.settings.seed != seed:
            raise SettingsError(
                f"{path} holds a run of seed {run.settings.seed}: choose another folder with --out."
            )
    else:
        run = Run.create(path, settings, build(settings))
    if not len(run.metrics["update"]) or run.newest()[0] < updates:
        carry_out(run, updates=updates, tensorboard=False, quiet=False)
    system = run.problem.system
    assert isinstance(system, LearnedOptimizerSystem)
    racers = {
        "learned": learned_optimizer.Racer(system.optimizer, run.theta()),
        **learned_optimizer.tuned(system),
    }
    curves = {name: racer.losses(system) for name, racer in racers.items()}
    others = learned_optimizer.other_sequences(system, 5)
    write_optimizer(run, system, out / "optimizer.npz")
    learned_optimizer.race_figure(Run.open(path).metrics, curves, out / "figure.png")
    _write(
        out / "race.json",
        {
            "command": f"nres reproduce learned-optimizer --updates {updates} --seed {seed}",
            "mean_loss": {name: float(curve.mean()) for name, curve in curves.items()},
            "final_loss": {name: float(curve[-100:].mean()) for name, curve in curves.items()},
            "mean_loss_on_other_sequences": {
                name: [float(racer.losses(other).mean()) for other in others]
                for name, racer in racers.items()
            },
        },
    )
    Console().print(f"Figure: {out / 'figure.png'}", soft_wrap=True, highlight=False)


def _write(path: Path, value: dict[str, Any]) -> None:
    with replacing(path) as partial:
        partial.write_text(json.dumps(_finite(value)) + "\n", encoding="utf-8")


def _finite(value: Any) -> Any:
    """The same, with null for numbers that JSON does not know."""
    if isinstance(value, dict):
        return {name: _finite(v) for name, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
