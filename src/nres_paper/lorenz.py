"""Figures about Lorenz: its loss surface, and the paths of estimators on it."""

import itertools
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.figure import Figure

import nres
from nres.figures import COLOURS, draw_surface, losses_at, save_drawing
from nres.runs import device, read_lines, versions, write_lines
from nres.systems import Lorenz
from nres_paper.grades import Check
from nres_paper.reproduction import Context, PaperFigure, Result, first_and_others


def local_minima(values: np.ndarray) -> int:
    """Count the values that are less than both of their neighbours."""
    middle = values[1:-1]
    return int(((middle < values[:-2]) & (middle < values[2:])).sum())


_POINTS = 500


def _surface(context: Context) -> Result:
    context.say("computing the loss on a grid")
    began = time.monotonic()
    system = Lorenz()
    points = 41 if context.quick else _POINTS
    figure = Figure(figsize=(12, 4.8), layout="constrained")
    surface, line = figure.subplots(1, 2, width_ratios=[1.1, 1])
    ln_r, ln_a = np.linspace(3.0, 3.9, points), np.linspace(1.9, 3.9, points)
    image = draw_surface(surface, system, ln_r, ln_a, cmap="viridis")
    figure.colorbar(image, ax=surface, label="training loss")
    surface.legend(loc="lower right")
    start, truth = np.asarray(system.initial_theta()), np.asarray(system.truth)
    share = np.linspace(0, 1, 8 * points)
    between = np.asarray(losses_at(system, jnp.asarray(truth + share[:, None] * (start - truth))))
    line.plot(share, between, lw=0.7, color=COLOURS["NRES"])
    line.set(xlabel="from the truth (0) to the start (1)", ylabel="training loss")
    line.grid(alpha=0.3)
    save_drawing(figure, context.drawing)
    rows = [{"share": s, "loss": v} for s, v in zip(share.tolist(), between.tolist(), strict=True)]
    write_lines(context.folder / "metrics.jsonl", rows)
    minima = local_minima(between)
    check = Check(
        f"local minima between truth and start ({len(share)} points)",
        "many",
        f"{minima:,}",
        "holds" if minima > 10 else "fails",
    )
    return Result((check,), {"local_minima": minima}, time.monotonic() - began)


# K = W is PES, K = T is NRES.
PERIODS = (100, 200, 500, 1000, 2000)


def _about(updates: int, workers: int) -> dict[str, Any]:
    return {"updates": updates, "lr": 1e-5, "workers": workers, "window": 100, "sigma": 0.04}


def _paths(context: Context) -> Result:
    """Train with the same learning rate for every K, so that only the variance differs."""
    seeds = context.seeds or (1 if context.quick else 5)
    updates, workers = (4, 2) if context.quick else (1000, 200)
    periods = (PERIODS[0], PERIODS[-1]) if context.quick else PERIODS
    system = Lorenz()
    file = context.folder / "metrics.jsonl"
    about = _about(updates, workers)
    rows = [row for row in read_lines(file) if row["settings"] == about]
    for period in periods:
        estimator = nres.GPES(system, workers=workers, window=100, sigma=0.04, period=period)
        for seed in range(seeds):
            if any((row["period"], row["seed"]) == (period, seed) for row in rows):
                continue
            context.say(f"K = {period}, seed {seed}")
            result = nres.train(
                estimator,
                optax.sgd(1e-5),
                system.initial_theta(),
                updates=updates,
                key=jax.random.key(seed),
                eval_fn=lambda theta: {"ln_r": theta[0], "ln_a": theta[1]},
                eval_every=1,
            )
            if result.interrupted:
                raise KeyboardInterrupt
            evals = {name: np.round(x, 5).tolist() for name, x in result.history.evals.items()}
            row = {"period": period, "seed": seed, "settings": about}
            row |= {"device": device(), "versions": versions()}
            rows.append(row | {"seconds": result.state.seconds, **evals})
            write_lines(file, rows)
    rows = [row for row in rows if row["seed"] < seeds]
    # Noise lengthens a path, so the length measures the variance.
    lengths = {k: [_length(row) for row in rows if row["period"] == k] for k in periods}
    _paths_figure(system, rows, lengths, 41 if context.quick else 200, context.drawing)
    means = {k: float(np.mean(values)) for k, values in lengths.items()}
    order = [means[k] for k in periods]
    right = all(a > b for a, b in itertools.pairwise(order))
    check = Check(
        "length of the path of GPES",
        "NRES (K = 2000) is the smoothest",
        ", ".join(
            f"K = {k}: {means[k]:.3g} ({min(v):.3g} to {max(v):.3g})" for k, v in lengths.items()
        ),
        "holds" if right else "differs" if min(order) == order[-1] else "fails",
    )
    numbers = {"settings": about, "lengths": lengths}
    seconds = sum(row["seconds"] for row in rows)
    metadata = (first_and_others([row[name] for row in rows]) for name in ("device", "versions"))
    return Result((check,), numbers, seconds, seeds, *metadata)


def _length(row: dict) -> float:
    return float(np.hypot(np.diff(row["ln_r"]), np.diff(row["ln_a"])).sum())


def _paths_figure(
    system: Lorenz, rows: list[dict], lengths: dict[int, list[float]], points: int, path: Path
) -> None:
    figure = Figure(figsize=(3.1 * len(lengths), 3.9), layout="constrained")
    panels = figure.subplots(1, len(lengths), sharex=True, sharey=True)
    ln_r, ln_a = np.linspace(3.2, 3.8, points), np.linspace(1.9, 3.5, points)
    names = {PERIODS[0]: " (PES)", PERIODS[-1]: " (NRES)"}
    for panel, period in zip(panels, lengths, strict=True):
        draw_surface(panel, system, ln_r, ln_a, cmap="Greys", alpha=0.55)
        row = next(row for row in rows if (row["period"], row["seed"]) == (period, 0))
        panel.plot(row["ln_r"], row["ln_a"], color=COLOURS["NRES"], lw=0.7)
        panel.set_title(
            f"K = {period}{names.get(period, '')}\nlength {lengths[period][0]:.3g}",
            fontsize="medium",
        )
        panel.label_outer()
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center", frameon=False)
    save_drawing(figure, path)


SURFACE = PaperFigure(
    "Figure 8",
    "The training loss of Lorenz is extremely sensitive to the parameters, with many local minima.",
    "cpu",
    _surface,
    lambda: {"points": _POINTS},
)
PATHS = PaperFigure(
    "Figure 5 (a)",
    "Among GPES with different periods K at one learning rate, NRES takes the smoothest path.",
    "cpu",
    _paths,
    lambda: _about(1000, 200) | {"periods": PERIODS},
    takes_seeds=True,
)
