"""Whole episodes of groups of pairs at fixed parameters, from which all estimates are computed."""

import dataclasses
import functools
from typing import Any

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

import nres


@dataclasses.dataclass(frozen=True)
class Task:
    """A pool to unroll, and the settings of NRES on it."""

    pool: nres.Pool
    window: int
    """W, which divides T."""
    sigma: float
    workers: int
    """N, a multiple of the number of windows."""

    @property
    def windows(self) -> int:
        """n = T/W, the number of windows in an episode."""
        return self.pool.horizon // self.window


@dataclasses.dataclass(frozen=True)
class Episodes:
    """Antithetic episodes of independent groups of N workers."""

    noise: Float[np.ndarray, "groups workers d"]
    r"""The noises divided by $\sigma$."""
    losses: Float[np.ndarray, "groups members workers windows"]
    r"""The mean loss per step of each window, divided by $\sigma$."""
    states: Float[np.ndarray, "groups members workers boundaries features"]
    """The states between two windows, as vectors."""


def record(task: Task, theta: Any, law: nres.Noise, key: jax.Array, groups: int) -> Episodes:
    """Run one episode of each pair of `groups` groups.

    Args:
        task: The pool and the settings of NRES.
        theta: The parameters.
        law: The distribution of the noise.
        key: A JAX random key.
        groups: The number of independent groups of N workers.
    """
    count, sigma = groups * task.workers, task.sigma
    flat, unravel = jax.flatten_util.ravel_pytree(theta)
    keys = jax.random.split(key, count)
    noise = _draw(task, flat, law, keys)
    thetas = jax.vmap(jax.vmap(unravel))(flat[None, None] + sigma * jnp.stack([noise, -noise]))
    losses, states = unroll(task, [thetas] * task.windows, keys)

    def grouped(x):
        x = np.asarray(x, np.float64).reshape(2, groups, task.workers, *x.shape[2:])
        return np.moveaxis(x, 0, 1)

    return Episodes(
        np.asarray(noise, np.float64).reshape(groups, task.workers, -1),
        grouped(losses) / sigma,
        grouped(states),
    )


def unroll(
    task: Task, thetas: list[Any], keys: jax.Array
) -> tuple[Float[np.ndarray, "members workers windows"], np.ndarray]:
    """Unroll from step 0 for as many windows as there are sets of parameters.

    Args:
        task: The pool and the settings of NRES.
        thetas: The parameters in each window, with axes `(members, workers)` in front.
        keys: One key per worker.

    Returns:
        The mean loss per step of each window, and the states between the windows.
    """
    state, losses, states = None, [], []
    for i, own in enumerate(thetas):
        start = jnp.full(len(keys), i * task.window, jnp.int32)
        window = _advance(task.pool, state, own, keys, start, task.window)
        state = window.state
        losses.append(np.asarray(window.loss, np.float64) / task.window)
        states.append(_vectors(state))
    return np.stack(losses, axis=-1), np.stack(states, axis=2)[:, :, :-1]


def _advance(pool, state, thetas, keys, start, window):
    if pool.traceable:
        return _advance_compiled(pool, state, thetas, keys, start, window)
    return pool.advance_arrays(state, thetas, keys, start, window)


@functools.partial(jax.jit, static_argnums=5)
def _advance_compiled(pool, state, thetas, keys, start, window):
    return pool.advance_arrays(state, thetas, keys, start, window)


def _vectors(state: Any) -> Float[np.ndarray, "members workers features"]:
    """Return the states of all unrolls as vectors: what a policy observes, or all numbers."""
    kept = state["observation"] if isinstance(state, dict) else state
    leaves = [np.asarray(x, np.float64) for x in jax.tree.leaves(kept)]
    return np.concatenate([x.reshape(*x.shape[:2], -1) for x in leaves], axis=-1)


def _draw(task: Task, flat: jax.Array, law: nres.Noise, keys: jax.Array) -> jax.Array:
    """Draw noises of unit scale; a law may draw those of the workers of a group jointly."""
    count, size = len(keys), law.group_size(task.workers, flat.size)
    numbers, scale = jnp.zeros(count, jnp.int32), jnp.ones(count)
    jointly: dict[str, Any] = {}
    if size > 1:
        index = np.arange(count) % task.workers
        first = np.arange(count) - index % size
        group = nres.noise.Group(keys[first], jnp.asarray(index % size, jnp.int32), size)
        jointly = {"group": group}
    return law.draw(keys, numbers, scale, flat, **jointly)
