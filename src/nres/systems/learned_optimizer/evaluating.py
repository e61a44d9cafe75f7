r"""Comparisons of optimizers: each trains models on some tasks, with its learning rate swept.

All rates fall linearly to zero over the training, except that of schedule-free AdamW, which stays.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Key

from nres.checks import whole_number
from nres.system import Theta
from nres.systems.learned_optimizer.celo2 import Celo2
from nres.systems.learned_optimizer.optimizers import LearnableOptimizer
from nres.systems.learned_optimizer.tasks import Params, Task

# The share of a training whose mean training loss counts as the final one.
LAST = 0.05
# The number of batches of the held-out loss.
BATCHES = 20
# The decay of the running average of Adam's curves, from which speedups are read.
SMOOTH = 0.95


class Contender(NamedTuple):
    """An optimizer to compare, and the learning rates that it tries."""

    make: Callable[[Any], optax.GradientTransformation]
    """Returns the optimizer for a learning rate: a number, or a function of the step."""
    rates: tuple[float, ...]
    falls: bool = True
    """True if the rate falls linearly to zero."""
    averaged: Callable[[Any, Params], Params] | None = None
    """Returns the model to use from the optimizer's state and the model in training, if they
    differ."""


def _rates(least: int, most: int) -> tuple[float, ...]:
    """Return rates from 10^least to 10^most, three per power of ten."""
    return tuple(float(f"{m}e{e}") for e in range(least, most) for m in (1, 2, 5))


BASELINES: Mapping[str, Contender] = {
    "Adam": Contender(optax.adam, _rates(-4, -1)),
    "AdamW": Contender(functools.partial(optax.adamw, weight_decay=0.01), _rates(-4, -1)),
    "momentum": Contender(functools.partial(optax.sgd, momentum=0.9), _rates(-3, 1)),
    "Muon": Contender(optax.contrib.muon, _rates(-3, 0)),
    "schedule-free AdamW": Contender(
        functools.partial(optax.contrib.schedule_free_adamw, weight_decay=0.01),
        _rates(-4, -1),
        falls=False,
        averaged=optax.contrib.schedule_free_eval_params,
    ),
}
"""The optimizers to compare with, from optax."""


# The rates of VeLO's speedups: 1e-7, 3e-7, and so on to 1.
CONSTANT_ADAM = Contender(
    optax.adam,
    (*(float(f"{m}e{e}") for e in range(-7, 0) for m in (1, 3)), 1.0),
    falls=False,
)


def learned_contender(optimizer: LearnableOptimizer, theta: Theta) -> Contender:
    """Return a learned optimizer as a contender; the rate multiplies its steps.

    Args:
        optimizer: The optimizer. The rate of a `Celo2` is replaced; others keep their own steps,
            multiplied by 0.1 to 10.
        theta: Its parameters.
    """
    rates = _rates(-4, -1) if isinstance(optimizer, Celo2) else (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
    return Contender(functools.partial(optimizer.as_optax, theta), rates)


class Outcome(NamedTuple):
    """The result of a contender on a task, with the rate whose final training loss is least."""

    rate: float
    curve: Float[np.ndarray, " steps"]
    """The mean training loss of every step, over seeds."""
    final: Float[np.ndarray, " seeds"]
    """The mean training loss of the last steps."""
    held_out: Float[np.ndarray, " seeds"]
    """The loss on data that the model was not trained on, after the last step."""


def evaluate_contender(
    task: Task, contender: Contender, *, steps: int, seeds: int, key: Key[Array, ""]
) -> Outcome:
    """Train a task's model with each of a contender's rates, and return the best.

    Args:
        task: The task.
        contender: The optimizer and its rates.
        steps: The number of training steps.
        seeds: The number of initial models, each with batches of its own.
        key: A JAX random key, which all contenders should share.

    Returns:
        The result with the best rate. A model that diverges counts as infinitely bad.

    Example:
        ```python
        task = learned_optimizer.convolutional_task()
        adam = evaluate_contender(task, BASELINES["Adam"], steps=500, seeds=3, key=key)
        adam.rate, adam.final.mean()
        ```
    """
    steps, seeds = whole_number("steps", steps), whole_number("seeds", seeds)
    keys = jax.random.split(key, seeds)
    curves, held_out = _trained(task, contender, steps, keys)
    final = np.asarray(curves[..., -max(1, round(LAST * steps)) :].mean(axis=-1))
    means = np.nan_to_num(final.mean(axis=1), nan=np.inf)
    best = int(means.argmin())
    return Outcome(
        contender.rates[best],
        np.asarray(curves[best]).mean(axis=0),
        final[best],
        np.asarray(held_out[best]),
    )


@eqx.filter_jit
def _trained(task: Task, contender: Contender, steps: int, keys: Array):
    """Return training losses (rates, seeds, steps) and held-out losses (rates, seeds)."""

    def one(rate, key):
        schedule = optax.linear_schedule(rate, 0.0, steps) if contender.falls else rate
        optimizer = contender.make(schedule)
        params = task.init(jax.random.fold_in(key, 0))

        def step(carry, t):
            params, state = carry
            train, _ = task.draw(jax.random.fold_in(key, t + 1), None)
            batch = jax.tree.map(lambda x: x[train], task.train)
            loss, grads = jax.value_and_grad(task.loss)(params, batch)
            updates, state = optimizer.update(grads, state, params)
            return (optax.apply_updates(params, updates), state), loss

        carry = params, optimizer.init(params)
        (params, state), losses = jax.lax.scan(step, carry, jnp.arange(steps, dtype=jnp.int32))
        if contender.averaged is not None:
            params = contender.averaged(state, params)

        def held_out(i):
            _, index = task.draw(jax.random.fold_in(key, steps + 1 + i), None)
            return task.loss(params, jax.tree.map(lambda x: x[index], task.evaluated_on))

        return losses, jnp.mean(jax.lax.map(held_out, jnp.arange(BATCHES, dtype=jnp.int32)))

    rates = jnp.asarray(contender.rates)
    return jax.vmap(jax.vmap(one, in_axes=(None, 0)), in_axes=(0, None))(rates, keys)


def adam_curve(
    task: Task, *, steps: int, seeds: int, key: Key[Array, ""]
) -> Float[np.ndarray, " steps"]:
    """Return the least training loss that Adam with a constant rate reaches by each step.

    It is the least over rates of the running averages of mean curves, made monotone.

    Args:
        task: The task.
        steps: The number of steps.
        seeds: The number of seeds to average over.
        key: A JAX random key.

    Returns:
        One loss per step.

    Reference:
        Metz et al., *VeLO: training versatile learned optimizers by scaling up*, 2022.
    """
    curves, _ = _trained(task, CONSTANT_ADAM, steps, jax.random.split(key, seeds))
    smooth = smoothed(np.nan_to_num(np.asarray(curves, np.float64).mean(axis=1), nan=np.inf))
    return np.minimum.accumulate(smooth.min(axis=0))


def smoothed(curves: Float[np.ndarray, "... steps"]) -> Float[np.ndarray, "... steps"]:
    """Return running averages of curves, which begin with their first value."""
    result = np.array(curves, np.float64)
    for t in range(1, result.shape[-1]):
        result[..., t] = SMOOTH * result[..., t - 1] + (1 - SMOOTH) * curves[..., t]
    return result


class Speedup(NamedTuple):
    """The factor between the steps of Adam and of another optimizer to the same loss."""

    factor: float
    reached: bool
    """False if Adam does not reach it; the factor is then a lower bound."""


def speedup(outcome: Outcome, adam: Float[np.ndarray, " steps"]) -> Speedup:
    """Compare an outcome with `adam_curve`: the steps at which Adam reaches its final loss.

    Args:
        outcome: The outcome of a contender.
        adam: The curve of Adam on the same task, usually over more steps.

    Returns:
        Adam's steps divided by the contender's.
    """
    loss, steps = float(np.mean(outcome.final)), len(outcome.curve)
    if not np.isfinite(loss):
        return Speedup(0.0, True)
    below = np.flatnonzero(adam <= loss)
    return Speedup((int(below[0]) + 1 if below.size else len(adam)) / steps, bool(below.size))
