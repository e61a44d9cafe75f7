"""`nres reproduce`: a figure of the paper, by one command."""

import json
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import typer
from rich.console import Console

from nres.cli.errors import explained
from nres.cli.train import carry_out
from nres.experiments import learned_optimizer
from nres.files import replacing
from nres.runs import Run, build, resolve
from nres.systems.learned_optimizer import LearnedOptimizerSystem

Out = Annotated[Path | None, typer.Option(help="Folder for figures and numbers.")]
Seed = Annotated[int, typer.Option(help="Seed of all randomness.")]

app = typer.Typer(help="Make a figure of the paper again.", no_args_is_help=True)


@app.command()
@explained
def landscape(
    out: Out = None,
    points: Annotated[int, typer.Option(help="Losses to compute.", min=10)] = 801,
    distance: Annotated[float, typer.Option(help="How far to go, in both directions.")] = 0.5,
    seed: Seed = 0,
) -> None:
    """The loss of a learned optimizer along a random direction, and its exact gradient's norm.

    Some minutes on two cores, seconds on a GPU. Example: nres reproduce landscape
    """
    out = out or Path("results/landscape")
    system = learned_optimizer.fashion_mnist_system()
    at, along = jax.random.split(jax.random.key(seed))
    theta = system.initial_theta(at)
    direction = jax.random.normal(along, theta.shape)
    direction = direction / jnp.linalg.norm(direction)
    distances = np.linspace(-distance, distance, points)
    losses = learned_optimizer.landscape(system, theta, direction, distances)
    horizons = (1, 3, 10, 30, 100, 300, 1000)
    norms = learned_optimizer.gradient_norms(system, theta, horizons)
    learned_optimizer.landscape_figure(distances, losses, horizons, norms, out / "landscape.png")
    _write(
        out / "landscape.json",
        {
            "command": f"nres reproduce landscape --points {points} --seed {seed}",
            "distance": distances.tolist(),
            "loss": losses.tolist(),
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
    seed: Seed = 0,
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
        log_every=max(1, updates // 240),
    )
    path = out / "nres"
    if (path / "config.json").exists():
        run = Run.open(path)
    else:
        run = Run.create(path, settings, build(settings))
    carry_out(run, updates=updates, tensorboard=False, quiet=False)
    system = run.problem.system
    assert isinstance(system, LearnedOptimizerSystem)
    racers = {
        "learned": learned_optimizer.Racer(system.optimizer, run.theta()),
        **learned_optimizer.tuned(system),
    }
    curves = {name: racer.losses(system) for name, racer in racers.items()}
    others = learned_optimizer.unseen(system, 5)
    learned_optimizer.race_figure(Run.open(path).metrics, curves, out / "figure.png")
    _write(
        out / "race.json",
        {
            "command": f"nres reproduce learned-optimizer --updates {updates} --seed {seed}",
            "mean_loss": {name: float(curve.mean()) for name, curve in curves.items()},
            "final_loss": {name: float(curve[-100:].mean()) for name, curve in curves.items()},
            "unseen_mean_loss": {
                name: [float(racer.losses(other).mean()) for other in others]
                for name, racer in racers.items()
            },
        },
    )
    Console().print(f"Figure: {out / 'figure.png'}", soft_wrap=True, highlight=False)


def _write(path: Path, value: dict[str, Any]) -> None:
    with replacing(path) as partial:
        partial.write_text(json.dumps(value) + "\n", encoding="utf-8")
