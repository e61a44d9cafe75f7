"""Learned optimizers: drawings of their loss, and tuned optimizers to compare with."""

import dataclasses
import math
from pathlib import Path

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PyTree
from matplotlib.figure import Figure

import nres
from nres.figures import log_if_positive, save_drawing
from nres.runs import Evaluations
from nres.systems.learned_optimizer import (
    SGD,
    Adam,
    LearnableOptimizer,
    LearnedOptimizerSystem,
    Momentum,
)

RED = "#c8102e"
COLOURS = (RED, "#0077bb", "#009988", "#888888")


def landscape(
    system: LearnedOptimizerSystem,
    theta: PyTree,
    direction: PyTree,
    distances: Float[np.ndarray, " points"],
) -> Float[np.ndarray, " points"]:
    """Compute the loss at `theta + distance · direction`."""

    @eqx.filter_jit
    def losses(system, theta, direction, distances):
        def one(distance):
            moved = jax.tree.map(lambda x, d: x + distance.astype(x.dtype) * d, theta, direction)
            return system.losses(moved, jax.random.key(0)).mean()

        return jax.vmap(one)(distances)

    parts = np.array_split(np.asarray(distances, np.float32), max(1, len(distances) // 200))
    return np.concatenate([losses(system, theta, direction, jnp.asarray(p)) for p in parts])


def landscape_figure(
    distances: Float[np.ndarray, " points"],
    losses: dict[str, Float[np.ndarray, " points"]],
    horizons: tuple[int, ...],
    norms: dict[str, list[float]],
    path: Path,
) -> None:
    """Draw the loss along a line through the given parameters, and the norm of the gradient."""
    figure = Figure(figsize=(4.4 * (1 + len(losses)), 3.8), layout="constrained")
    *lines, gradient = figure.subplots(1, 1 + len(losses))
    for panel, (name, values), colour in zip(lines, losses.items(), COLOURS, strict=False):
        panel.plot(distances, values, lw=0.8, color=colour)
        panel.set(xlabel="distance along a random direction", ylabel="loss", title=name)
        gradient.plot(horizons, norms[name], marker="o", color=colour, label=name)
    gradient.set(
        xlabel="steps backpropagated through",
        ylabel="norm of the gradient",
        xscale="log",
        yscale="log",
        title="The exact gradient",
    )
    gradient.legend(frameon=False)
    for panel in (*lines, gradient):
        panel.grid(alpha=0.3)
    save_drawing(figure, path)


RATES = tuple(float(f"{m}e{e}") for e in range(-5, 1) for m in (1, 2, 5))


@dataclasses.dataclass(frozen=True)
class TunedOptimizer:
    """An optimizer with parameters that were tuned or learned for a task."""

    optimizer: LearnableOptimizer
    theta: PyTree

    def losses(self, system: LearnedOptimizerSystem) -> Float[np.ndarray, " horizon"]:
        """Return the learning curve on the system's own sequence of data."""
        system = eqx.tree_at(lambda s: s.optimizer, system, self.optimizer)
        return np.asarray(system.losses(self.theta, jax.random.key(0)))


def tuned(system: LearnedOptimizerSystem) -> dict[str, TunedOptimizer]:
    """Tune the learning rate of classical optimizers, among `RATES`, for this task.

    The best rate has the least mean loss over the training, which is also the outer loss.
    """

    @eqx.filter_jit
    def mean_losses(system, theta, rates):
        key = jax.random.key(0)
        one = lambda rate: system.losses(theta | {"log_lr": rate}, key).mean()  # noqa: E731
        return jax.vmap(one)(rates)

    best = {}
    for name, optimizer in {"Adam": Adam(), "momentum": Momentum(), "SGD": SGD()}.items():
        other = eqx.tree_at(lambda s: s.optimizer, system, optimizer)
        theta = other.initial_theta(jax.random.key(0))
        losses = np.asarray(mean_losses(other, theta, jnp.log(jnp.asarray(RATES))))
        rate = RATES[int(np.nan_to_num(losses, nan=np.inf).argmin())]
        best[f"{name}, rate {rate:g}"] = TunedOptimizer(
            optimizer, theta | {"log_lr": jnp.asarray(math.log(rate))}
        )
    return best


def other_sequences(system: LearnedOptimizerSystem, count: int) -> list[LearnedOptimizerSystem]:
    """Return copies of the task with other initial models and other sequences of batches."""
    return [
        LearnedOptimizerSystem(
            system.task, system.optimizer, horizon=system.horizon, key=jax.random.key(seed)
        )
        for seed in range(1000, 1000 + count)
    ]


def learned_figure(
    learned: Evaluations, curves: dict[str, Float[np.ndarray, " horizon"]], path: Path
) -> None:
    """Draw the meta-training of an optimizer, and learning curves of models trained with it."""
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    outer, inner = figure.subplots(1, 2)
    outer.plot(learned.at["update"][1:], learned.values[1:], color=RED)
    outer.axhline(math.log(10), color="black", lw=0.8, ls=":", label="loss of guessing")
    outer.set(
        xlabel="updates of NRES",
        ylabel="mean loss over 1000 steps",
        xscale="log",
        title=f"Meta-training, from a loss of {learned.values[0]:.3g}",
    )
    log_if_positive(outer)
    outer.legend(frameon=False)
    for (name, curve), colour in zip(curves.items(), COLOURS, strict=True):
        # Every step uses another batch: a mean over fifty steps makes the curve readable.
        over = min(50, len(curve))
        mean = np.convolve(curve, np.ones(over) / over, mode="valid")
        inner.plot(np.arange(len(mean)) + over, mean, label=name, color=colour)
    inner.set(
        xlabel="training steps of the model",
        ylabel="validation loss",
        yscale="log",
        title="Training a model with each optimizer",
    )
    inner.legend(frameon=False)
    ticks = [0.4, 0.5, 0.6, 0.8, 1.0, 1.5, 2.0]
    inner.set_yticks(ticks, map(str, ticks))
    inner.minorticks_off()
    for panel in (outer, inner):
        panel.grid(alpha=0.3)
    save_drawing(figure, path)


def gradient_norm(system: LearnedOptimizerSystem, theta: PyTree) -> float:
    """Return the norm of the exact gradient, by backpropagation through a whole episode."""
    estimator = nres.BPTT(system, workers=1)
    state = estimator.init(theta, jax.random.key(0))
    grad = estimator.estimate(theta, state).grad
    return float(jnp.linalg.norm(jax.flatten_util.ravel_pytree(grad)[0]))
