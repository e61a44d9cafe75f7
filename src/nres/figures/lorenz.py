"""Loss surface of the Lorenz system, and the paths that methods take on it."""

from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, LogNorm
from matplotlib.figure import Figure

from nres.evaluation import evaluate
from nres.figures.style import COLOURS, line_style
from nres.files import save_figure
from nres.results import TrainResult
from nres.system import System
from nres.systems import Lorenz

# Black lines have to stand out everywhere, so the surface is never darker than grey.
_PALE = ListedColormap(colormaps["Greys"](np.linspace(0, 0.6, 256)))


def loss_surface(
    system: Lorenz, ln_r: Float[np.ndarray, " columns"], ln_a: Float[np.ndarray, " rows"]
) -> Float[Array, "rows columns"]:
    """Compute the training loss on a grid of parameters."""
    grid = jnp.stack(jnp.meshgrid(jnp.asarray(ln_r), jnp.asarray(ln_a)), axis=-1)
    return losses_at(system, grid.reshape(-1, 2)).reshape(grid.shape[:2])


@eqx.filter_jit
def losses_at(system: System, thetas: Float[Array, "points d"]) -> Float[Array, " points"]:
    """Compute the loss of one episode at each of the given parameters, with the same key."""
    key = jax.random.key(0)
    return jax.vmap(lambda theta: evaluate(system, theta, key).loss)(thetas)


def draw_surface(
    panel: Axes, system: Lorenz, ln_r: np.ndarray, ln_a: np.ndarray, **style: Any
) -> Any:
    """Draw the loss surface, the initial and the true parameters.

    Args:
        panel: The axes to draw on.
        system: The system, of two parameters.
        ln_r: Positions of the columns of the grid.
        ln_a: Positions of its rows.
        **style: Further arguments of matplotlib's `pcolormesh`.

    Returns:
        The image, which a colour bar needs.
    """
    loss = np.asarray(loss_surface(system, ln_r, ln_a))
    image = panel.pcolormesh(
        ln_r, ln_a, loss, norm=LogNorm(), rasterized=True, shading="nearest", **style
    )
    style = {"ls": "", "mec": "black", "zorder": 5}
    panel.plot(
        *system.initial_theta(),
        marker="s",
        color="white",
        ms=7,
        label="initial parameters",
        **style,
    )
    panel.plot(*system.truth, marker="*", color="#ffd700", ms=15, label="true parameters", **style)
    panel.set(xlim=(ln_r[0], ln_r[-1]), ylim=(ln_a[0], ln_a[-1]), xlabel="ln r", ylabel="ln a")
    return image


def lorenz_paths(system: Lorenz, results: dict[str, TrainResult], path: Path) -> None:
    """Draw the path of each method on the loss surface, and its test loss over time."""
    figure = Figure(figsize=(12, 4.6), layout="constrained")
    surface, curves = figure.subplots(1, 2, width_ratios=[1.1, 1])

    ln_r, ln_a = np.linspace(3.0, 3.9, 240), np.linspace(1.9, 3.9, 240)
    image = draw_surface(surface, system, ln_r, ln_a, cmap=_PALE)
    figure.colorbar(image, ax=surface, label="training loss")
    for name, result in results.items():
        evals = result.history.evals
        surface.plot(evals["ln_r"], evals["ln_a"], **line_style(name))
        surface.plot(evals["ln_r"][-1], evals["ln_a"][-1], "o", color=COLOURS[name], ms=6)
    surface.set(title="Paths of the parameters")
    for name, result in results.items():
        history = result.history
        # The first evaluation, at zero seconds, has no place on a logarithmic axis.
        seconds, loss = history.eval_seconds[1:], history.evals["test_loss"][1:]
        curves.plot(seconds, loss, label=name, **line_style(name))
        # Without the dot, a method that was evaluated only once would be invisible.
        curves.plot(seconds[-1:], loss[-1:], "o", color=COLOURS[name], ms=5)
    curves.set(
        xlabel="seconds of training",
        ylabel="test loss",
        xscale="log",
        yscale="log",
        title="Test loss on unseen initial states",
    )
    ticks = [30, 40, 60, 100, 200, 300, 400]
    curves.set_yticks(ticks, map(str, ticks))
    curves.minorticks_off()
    curves.xaxis.set_major_formatter("{x:g}")
    curves.grid(alpha=0.3)
    figure.legend(loc="outside right center", frameon=False)
    save_figure(figure, path)
