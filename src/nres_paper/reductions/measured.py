"""Measurements of all reductions that need no drift, at fixed parameters."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from nres_paper.reductions.episodes import Episodes, Task
from nres_paper.reductions.estimates import (
    Controls,
    Updates,
    fit,
    linear_control,
    linear_controls,
    odd,
    one_sided,
    plain,
    potential_controls,
    weighted,
    window_gradients,
)
from nres_paper.reductions.statistics import Ratio, compare, over_episodes

# The steps that backpropagation through a window costs, per step of the window.
BACKPROPAGATION = 3
# Potentials have many coefficients.
_RIDGE = 1e-3

_Made = Callable[[Episodes, Episodes], Controls]


@dataclasses.dataclass(frozen=True)
class Shares:
    """Properties of the response to noise that bound the savings."""

    linear: float
    """The share of the response that one gradient for all windows explains."""
    linear_by_window: float
    """The share that a gradient for each window explains."""
    linear_over_episodes: float
    """The share of the response of the mean loss of an episode."""
    even: float
    """The variance of the even part of losses, divided by the mean square of the odd part."""


def shares(episodes: Episodes) -> Shares:
    """Measure how linear the response to noise is, and how large its even part."""
    response, length = odd(episodes), np.sum(episodes.noise**2, axis=-1)
    gradients = window_gradients(episodes)
    d = gradients.shape[1]
    # Without the squares that the noise of the gradients themselves contributes.
    rows = response[..., None] * episodes.noise[:, :, None, :]
    count = rows.shape[0] * rows.shape[1]
    by_window = np.sum(gradients**2) - rows.var(axis=(0, 1), ddof=1).sum() / count
    whole = rows.mean(axis=2)
    gradient = gradients.mean(axis=0)
    one = gradient @ gradient - whole.var(axis=(0, 1), ddof=1).sum() / count
    power = np.mean(response**2 * length[..., None])
    episode_power = np.mean(response.mean(axis=-1) ** 2 * length)
    even = (episodes.losses[:, 0] + episodes.losses[:, 1]) / 2
    return Shares(
        float((d + 2) * one / power),
        float((d + 2) * by_window / len(gradients) / power),
        float((d + 2) * one / episode_power),
        float(even.var(axis=(0, 1)).mean() / np.mean(response**2)),
    )


def measure_reductions(
    task: Task, theta: Any, episodes: Episodes, momentum: Float[np.ndarray, " d"]
) -> dict[str, dict[str, Ratio]]:
    """Return the ratio of the variance with each reduction to that without, at equal steps.

    What a reduction has to learn comes from one half of the groups, and is used on the other.

    Args:
        task: The pool and the settings of NRES.
        theta: The parameters of the episodes.
        episodes: The recorded episodes.
        momentum: A mean of earlier gradients, independent of these episodes.

    Returns:
        For each reduction, the ratio of one update (`update`) and of the mean over the updates of
        an episode (`episode`).
    """
    old, n = plain(episodes), task.windows
    mean_gradient = lambda e: window_gradients(e).mean(axis=0)  # noqa: E731
    made: dict[str, Updates] = {
        "exact gradient": _controlled(
            episodes, lambda train, test: linear_control(test.noise, mean_gradient(train), n)
        ),
        "momentum": _controlled(
            episodes, lambda train, test: linear_control(test.noise, momentum, n)
        ),
        "exact window gradients": _controlled(
            episodes, lambda train, test: linear_controls(test.noise, window_gradients(train))
        ),
        "equal windows": _equalised(episodes),
        "fitted potential": _controlled(episodes, _potentials, _RIDGE),
        "critic": _controlled(episodes, _critic, coefficients=np.array([-1.0])),
        "one-sided": one_sided(episodes),
    }
    costs = {}
    if task.pool.traceable:
        guesses = window_derivatives(task, theta)
        made["TBPTT"] = _controlled(
            episodes, lambda train, test: linear_controls(test.noise, guesses)
        )
        costs["TBPTT"] = 1 + BACKPROPAGATION * n / (2 * task.workers)
    return {
        name: {
            "update": compare(new, old, costs.get(name, 1.0)),
            "episode": compare(over_episodes(new), over_episodes(old), costs.get(name, 1.0)),
        }
        for name, new in made.items()
    }


def _controlled(
    episodes: Episodes,
    make: _Made,
    ridge: float = 1e-6,
    coefficients: Float[np.ndarray, " controls"] | None = None,
) -> Updates:
    """Subtract controls, with coefficients fitted on the other half of the groups if not given."""
    halves = _halves(episodes)
    reduced = []
    for test, train in (halves, halves[::-1]):
        own = coefficients
        if own is None:
            own = fit(plain(train), make(train, train), ridge)
        reduced.append(plain(test) - make(train, test) @ own)
    return np.concatenate(reduced)


def _halves(episodes: Episodes) -> list[Episodes]:
    middle = len(episodes.noise) // 2
    fields = dataclasses.astuple(episodes)
    return [Episodes(*(x[part] for x in fields)) for part in (np.s_[:middle], np.s_[middle:])]


def _equalised(episodes: Episodes) -> Updates:
    """Let every window respond like the mean of its episode: no potential can do better."""
    response = odd(episodes)
    mean = response.mean(axis=-1, keepdims=True)
    return weighted(np.broadcast_to(mean, response.shape), episodes.noise)


def _features(train: Episodes, test: Episodes) -> np.ndarray:
    """Return the states between windows and the products of their components, standardised."""
    middle, spread = train.states.mean(axis=(0, 1, 2)), train.states.std(axis=(0, 1, 2))
    x = (test.states - middle) / np.where(spread > 0, spread, 1)
    i, j = np.triu_indices(x.shape[-1])
    return np.concatenate([x, x[..., i] * x[..., j]], axis=-1)


def _potentials(train: Episodes, test: Episodes) -> Controls:
    """Return the controls of potentials, one for each feature between each two windows."""
    x = _features(train, test)
    apart = np.eye(x.shape[-2])[:, :, None] * x[..., None, :]
    return potential_controls(test, apart.reshape(*x.shape[:-1], -1))


def _critic(train: Episodes, test: Episodes) -> Controls:
    """Return the control of a potential that predicts the losses to come from the state.

    The losses to come also depend on the noise, which persists. The regression on the state
    therefore includes the noise, and the potential is the part of the state.
    """
    known, asked = _features(train, train), _features(train, test)
    to_come = np.cumsum(train.losses[..., ::-1], axis=-1)[..., ::-1]
    signs = np.array([1.0, -1.0])[None, :, None, None]
    noise = (signs * train.noise[:, None]).reshape(-1, train.noise.shape[-1])
    values = np.zeros(asked.shape[:-1])
    for k in range(asked.shape[-2]):
        x = known[..., k, :].reshape(len(noise), -1)
        x = np.concatenate([x, noise, np.ones((len(noise), 1))], axis=1)
        y = to_come[..., k + 1].reshape(-1)
        gram = x.T @ x
        weights = np.linalg.solve(gram + _RIDGE * np.diag(np.diag(gram)), x.T @ y)
        values[..., k] = asked[..., k, :] @ weights[: asked.shape[-1]]
    return potential_controls(test, values[..., None])


def window_derivatives(task: Task, theta: Any) -> Float[np.ndarray, "windows d"]:
    """Compute the derivative of each window's mean loss with the state at its start held fixed."""
    system = task.pool.system  # type: ignore[attr-defined]
    key = jax.random.key(0)

    def run(theta, state, start):
        if state is None:
            state = system.init(theta, key)

        def step(state, t):
            return system.step(state, theta, t, key)

        state, loss = jax.lax.scan(step, state, start + jnp.arange(task.window))
        return loss.mean(), state

    derive = jax.jit(jax.grad(run, has_aux=True))
    state, found = None, []
    for k in range(task.windows):
        gradient, state = derive(theta, state, k * task.window)
        found.append(np.asarray(gradient, np.float64).ravel())
    return np.stack(found)
