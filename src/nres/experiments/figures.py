"""Figures. They take results and write a file; nothing is shown on a screen."""

from pathlib import Path

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from nres.experiments.lorenz import loss_surface
from nres.files import replacing
from nres.systems import Lorenz
from nres.train import TrainResult

# Distinguishable without seeing colour, too: dark to light in this order.
COLOURS = {"NRES": "#c8102e", "PES": "#0077bb", "FullES": "#222222", "TES": "#ee9922"}


def lorenz_paths(system: Lorenz, results: dict[str, TrainResult], path: Path) -> None:
    """The loss surface with every method's path, and test loss against wall-clock."""
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    surface, curves = figure.subplots(1, 2, width_ratios=[1.1, 1])

    ln_r, ln_a = np.linspace(3.0, 3.9, 240), np.linspace(1.9, 3.9, 240)
    loss = np.asarray(loss_surface(system, ln_r, ln_a))
    image = surface.pcolormesh(
        ln_r, ln_a, loss, norm=LogNorm(), cmap="Greys", rasterized=True, shading="nearest"
    )
    figure.colorbar(image, ax=surface, label="training loss")
    for name, result in results.items():
        evals = result.history.evals
        surface.plot(evals["ln_r"], evals["ln_a"], color=COLOURS[name], label=name, lw=1.8)
        surface.plot(evals["ln_r"][-1], evals["ln_a"][-1], "o", color=COLOURS[name], ms=6)
    surface.plot(*system.initial_theta(), "s", color="white", mec="black", ms=7)
    surface.plot(*system.truth, "*", color="#ffd700", mec="black", ms=15)
    surface.set(
        xlabel="ln r",
        ylabel="ln a",
        xlim=(ln_r[0], ln_r[-1]),
        ylim=(ln_a[0], ln_a[-1]),
        title="Paths from the start (square) towards the truth (star)",
    )
    for name, result in results.items():
        history = result.history
        curves.plot(
            history.eval_seconds,
            history.evals["test_loss"],
            color=COLOURS[name],
            label=name,
            lw=1.8,
        )
    curves.set(
        xlabel="seconds of training",
        ylabel="test loss",
        yscale="log",
        title="Loss over unseen initial states",
    )
    ticks = [30, 40, 60, 100, 200, 300]
    curves.set_yticks(ticks, map(str, ticks))
    curves.minorticks_off()
    curves.grid(alpha=0.3)
    curves.legend()
    with replacing(path) as partial:
        figure.savefig(partial, dpi=150)
