"""Paths of methods over the loss surface of the toy schedule, and the schedule that NRES learns."""

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

import nres
from nres.figures import COLOURS, DISPLAY_NAMES, line_style, losses_at, plain_numbers, save_drawing
from nres.runs import build, device, read_lines, versions, write_lines
from nres.systems import ToySchedule
from nres_paper.grades import BAND, DIFFERS, HOLDS, NOT_THERE, SHOWN, Check
from nres_paper.original import original
from nres_paper.pes_comparisons import PES_PAPER
from nres_paper.reproduction import Context, PaperFigure, Result, first_and_others

# The sums of losses at the end, read off the figure of the paper that introduced PES.
PAPER = {"pes": 570.0, "tes": 1500.0, "rtrl": 2430.0, "uoro": 2430.0, "tbptt": 2430.0}
METHODS = ("nres", *PAPER)
UPDATES, EVERY = 5000, 10
# The updates after which the schedule is drawn.
_SHOWN = (0, 300, 600, 1000, 5000)


def _settings(method: str, quick: bool = False) -> Any:
    small = {"updates": 40, "workers": 2} if quick else {"updates": UPDATES}
    return original("toy-schedule", method, seed=0, eval_every=EVERY, log_every=EVERY, **small)


def _make(context: Context) -> Result:
    file = context.folder / "metrics.jsonl"
    plans = {method: _settings(method, context.quick) for method in METHODS}
    rows = {row["method"]: row for row in read_lines(file)}
    for method, settings in plans.items():
        if method in rows and rows[method]["settings"] == settings.to_json():
            continue
        context.say(DISPLAY_NAMES[method])
        parts = build(settings)
        result = nres.train(
            parts.estimator,
            parts.optimizer,
            parts.theta,
            updates=settings.updates,
            key=parts.key,
            eval_fn=parts.measure,
            eval_every=EVERY,
        )
        if result.interrupted:
            raise KeyboardInterrupt
        evals = {name: np.round(x, 4).tolist() for name, x in result.history.evals.items()}
        row = {"method": method, "settings": settings.to_json(), "device": device()}
        rows[method] = row | {"versions": versions(), "seconds": result.state.seconds, **evals}
        write_lines(file, rows.values())
    _draw(rows, 41 if context.quick else 240, context.drawing)
    ends = {method: rows[method]["total_loss"][-1] for method in METHODS}
    metadata = (
        first_and_others([row[name] for row in rows.values()]) for name in ("device", "versions")
    )
    seconds = sum(row["seconds"] for row in rows.values())
    return Result(tuple(map(_check, METHODS, ends.values())), {"ends": ends}, seconds, 1, *metadata)


def _check(method: str, end: float) -> Check:
    about = f"sum of the losses of {DISPLAY_NAMES[method]} at the end"
    if method not in PAPER:
        return Check(about, NOT_THERE, f"{end:,.0f}", SHOWN)
    factor = end / PAPER[method]
    text = f"{end:,.0f}; {factor:.2g} of the paper's"
    return Check(
        about, f"{PAPER[method]:,.0f}", text, HOLDS if 1 / BAND <= factor <= BAND else DIFFERS
    )


def _draw(rows: dict[str, dict[str, Any]], points: int, path: Path) -> None:
    system = ToySchedule()
    figure = Figure(figsize=(12, 4.8), layout="constrained")
    surface, schedule = figure.subplots(1, 2, width_ratios=[1.25, 1])
    side = np.linspace(-5, 5, points)
    grid = jnp.stack(jnp.meshgrid(jnp.asarray(side), jnp.asarray(side)), axis=-1).reshape(-1, 2)
    totals = np.asarray(losses_at(system, grid)).reshape(points, points) * system.horizon
    image = surface.pcolormesh(
        side,
        side,
        totals,
        norm=LogNorm(),
        cmap="Greys",
        alpha=0.6,
        rasterized=True,
        shading="nearest",
    )
    bar = figure.colorbar(image, ax=surface, label="sum of the losses")
    plain_numbers(bar.ax.yaxis)
    for method, row in rows.items():
        name, x, y = DISPLAY_NAMES[method], row["log_rate_0"], row["log_rate_1"]
        surface.plot(x, y, label=name, **line_style(name))
        surface.plot(x[-1], y[-1], "o", color=COLOURS[name], ms=6)
    start = np.asarray(system.initial_theta())
    surface.plot(*start, "s", color="white", mec="black", ms=7, zorder=5, label="start")
    surface.set(
        xlabel="logarithm of the first rate",
        ylabel="logarithm of the last rate",
        title="Paths of the parameters over the loss surface",
    )
    row, t = rows["nres"], np.arange(system.horizon)
    shown = [update for update in _SHOWN if update // EVERY < len(row["log_rate_0"])]
    for number, update in enumerate(shown, start=1):
        first, last = (np.exp(row[f"log_rate_{i}"][update // EVERY]) for i in (0, 1))
        rates = (1 - t / system.horizon) * first + t / system.horizon * last
        shade = 0.2 + 0.8 * number / len(shown)
        schedule.plot(
            t, rates, color=COLOURS["NRES"], alpha=shade, lw=1.8, label=f"after {update:,} updates"
        )
    schedule.set(
        xlabel="step of the training run",
        ylabel="learning rate",
        yscale="log",
        title="The schedule that NRES learns",
    )
    schedule.grid(alpha=0.3)
    plain_numbers(schedule.yaxis)
    schedule.legend(loc=(0.03, 0.09), frameon=False, fontsize="small")
    surface.legend(loc="upper left", fontsize="small", ncols=2)
    save_drawing(figure, path)


SCHEDULE_PATHS = PaperFigure(
    PES_PAPER,
    "A learned schedule on a toy function: the path of PES ends in the valley of the loss; those "
    "of TES and of truncated or noisy gradients do not.",
    "cpu",
    _make,
    lambda: [_settings(method).to_json() for method in METHODS],
)
