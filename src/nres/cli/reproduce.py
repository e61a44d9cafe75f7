"""`nres reproduce`: a figure of the paper, by one command."""

import dataclasses
import itertools
import json
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from nres.cli.errors import explained
from nres.cli.export import write_optimizer
from nres.cli.train import carry_out
from nres.experiments import learned_optimizer, variance
from nres.experiments.presets import fashion_mnist_system
from nres.files import write_json
from nres.pools.jax import as_pool
from nres.runs import Run, Settings, SettingsError, build, resolve
from nres.runs.folder import device, versions
from nres.runs.settings import Problem
from nres.systems.learned_optimizer import LearnedOptimizerSystem, read_optimizer
from nres.variance import Row

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
    write_json(
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
    if run.updates_made() < updates:
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
    write_json(
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


StudyName = Annotated[
    str, typer.Option("--system", help="learned-optimizer (for a GPU) or lorenz.")
]
Quick = Annotated[bool, typer.Option("--quick", help="A small version, to see that it runs.")]


@app.command("variance-K")
@explained
def variance_of_periods(
    system: StudyName = "learned-optimizer", out: Out = None, quick: Quick = False
) -> None:
    """Total variance of GPES against its period, at checkpoints of a PES run [fig:variance].

    Minutes on a large GPU for learned-optimizer, a minute on two cores for lorenz; goes on where
    it was interrupted.
    Example: nres reproduce variance-K --system lorenz
    """
    folder = out or Path("results/variance-K")
    study, horizon, rows = _along_pes("variance-K", system, folder, quick, with_fulles=False)
    title = f"{system}: T = {horizon}, W = {study.window}, sigma = {study.sigma:g}"
    variance.periods_figure(rows, title, folder / f"{system}.png")
    console = Console()
    falls = sum(
        all(a.variance >= b.variance for a, b in itertools.pairwise(some)) for some in rows.values()
    )
    least = sum(min(some, key=lambda r: r.variance).method == "NRES" for some in rows.values())
    console.print(
        f"The variance falls with K at {falls} of {len(rows)} checkpoints; NRES has the least at "
        f"{least}. The paper: at all of them."
    )
    console.print(f"Figure: {folder / system}.png", soft_wrap=True, highlight=False)


@app.command("variance-fulles")
@explained
def variance_of_full_es(
    system: StudyName = "learned-optimizer", out: Out = None, quick: Quick = False
) -> None:
    """Total variance of T/W NRES estimates and of one FullES estimate [fig:nres_vs_fulles].

    At checkpoints of a PES run; a minute on a large GPU for learned-optimizer, seconds for lorenz.
    Example: nres reproduce variance-fulles --system lorenz
    """
    folder = out or Path("results/variance-fulles")
    study, horizon, rows = _along_pes("variance-fulles", system, folder, quick, with_fulles=True)
    pairs = {update: variance.equal_compute(some, horizon) for update, some in rows.items()}
    title = f"{system}: T = {horizon}, W = {study.window}, sigma = {study.sigma:g}"
    variance.fulles_figure(pairs, title, folder / f"{system}.png")
    table = Table(title=title)
    for heading in ("updates", "NRES", "FullES", "FullES / NRES"):
        table.add_column(heading, justify="right", no_wrap=True)
    for update, (nres, full) in pairs.items():
        cells = (f"{r.variance:.3g} ± {(r.high - r.low) / 2:.2g}" for r in (nres, full))
        table.add_row(f"{update:,}", *cells, f"{full.variance / nres.variance:.3g}")
    console = Console()
    console.print(table)
    console.print(f"Figure: {folder / system}.png", soft_wrap=True, highlight=False)


def _along_pes(
    name: str, system: str, folder: Path, quick: bool, with_fulles: bool
) -> tuple[variance.Study, int, dict[int, tuple[Row, ...]]]:
    """Train with PES, then measure at the checkpoints what is not measured yet."""
    if system not in variance.STUDIES:
        there = ", ".join(variance.STUDIES)
        raise SettingsError(f"there is no study of {system!r}: there are {there}.")
    study = variance.STUDIES[system]
    command = f"nres reproduce {name} --system {system}" + " --quick" * quick
    options: dict[str, Any] = {}
    if quick:
        study = dataclasses.replace(study, updates=4, keep_every=2, samples=16)
        options = {"horizon": 20 * study.window}
    settings = resolve(
        system,
        "pes",
        updates=study.updates,
        seed=study.seed,
        keep_every=study.keep_every,
        options=options,
    )
    problem = build(settings)
    horizon = as_pool(problem.system).horizon
    periods = [k for k in study.periods if k < horizon] if not with_fulles else []
    wanted: dict[str, Any] = {
        "windows": [study.window, horizon] if with_fulles else [study.window],
        "periods": [*periods, horizon],
        "sigmas": [study.sigma],
        "samples": study.samples,
    }
    facts = {"command": command, "measured": wanted}
    file = folder / f"{system}.json"
    found: list[dict[str, Any]] = []
    if file.exists():
        before = json.loads(file.read_text(encoding="utf-8"))
        same = all(before.get(name) == value for name, value in facts.items())
        # As settings, which may have more fields now than when they were written.
        if not same or Settings.from_json(before["pes"]) != settings:
            raise SettingsError(f"{file} holds other results: choose another folder with --out.")
        found = before["checkpoints"]

    def keep(update: int, rows: list[dict[str, Any]]) -> None:
        found.append({"update": update, "rows": rows})
        about = {"pes": settings.to_json(), "device": device(), "versions": versions()}
        write_json(file, facts | about | {"checkpoints": found})

    # Of the start itself the paper says nothing.
    updates = range(study.keep_every, study.updates + 1, study.keep_every)
    known = {entry["update"]: entry["rows"] for entry in found}
    trajectory: dict[int, Any] = dict.fromkeys(updates)
    if not known.keys() >= set(updates):
        run = _finished(folder / f"{system}-pes", settings, problem)
        trajectory = {u: theta for u, theta in run.trajectory().items() if u}
    key = jax.random.key(study.seed)
    rows = variance.along(problem.system, trajectory, key, known, keep, **wanted)
    return study, horizon, rows


def _finished(path: Path, settings: Settings, problem: Problem) -> Run:
    """The run with these settings in a folder, carried out as far as it is not."""
    if (path / "config.json").exists():
        run = Run.open(path)
        if run.settings != settings:
            raise SettingsError(f"{path} holds another run: choose another folder with --out.")
    else:
        run = Run.create(path, settings, problem)
    if run.updates_made() < settings.updates:
        carry_out(run, tensorboard=False, quiet=False)
    return run
