"""Figures. They take results and write a file; nothing is shown on a screen."""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from nres.experiments.lorenz import draw_surface
from nres.figures import COLOURS, line_style
from nres.files import save_figure
from nres.systems import Lorenz
from nres.training import TrainResult


def lorenz_paths(system: Lorenz, results: dict[str, TrainResult], path: Path) -> None:
    """The loss surface with every method's path, and test loss against wall-clock."""
    figure = Figure(figsize=(12, 4.6), layout="constrained")
    surface, curves = figure.subplots(1, 2, width_ratios=[1.1, 1])

    ln_r, ln_a = np.linspace(3.0, 3.9, 240), np.linspace(1.9, 3.9, 240)
    image = draw_surface(surface, system, ln_r, ln_a, cmap="Greys")
    figure.colorbar(image, ax=surface, label="training loss")
    for name, result in results.items():
        evals = result.history.evals
        surface.plot(evals["ln_r"], evals["ln_a"], **line_style(name))
        surface.plot(evals["ln_r"][-1], evals["ln_a"][-1], "o", color=COLOURS[name], ms=6)
    surface.set(title="Paths from the start (square) towards the truth (star)")
    for name, result in results.items():
        history = result.history
        # From the first evaluation after the start: a logarithm knows no zero.
        seconds, loss = history.eval_seconds[1:], history.evals["test_loss"][1:]
        curves.plot(seconds, loss, label=name, **line_style(name))
    curves.set(
        xlabel="seconds of training",
        ylabel="test loss",
        xscale="log",
        yscale="log",
        title="Loss over unseen initial states",
    )
    ticks = [30, 40, 60, 100, 200, 300, 400]
    curves.set_yticks(ticks, map(str, ticks))
    curves.minorticks_off()
    curves.grid(alpha=0.3)
    figure.legend(loc="outside right center", frameon=False)
    save_figure(figure, path)
