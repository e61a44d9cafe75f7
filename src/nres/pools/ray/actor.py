"""What an actor does: it unrolls the workers it was given, and keeps their states."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from nres.checkpoint import is_key
from nres.noise import Noise
from nres.pools.base import Pool, Window
from nres.pools.jax import JaxPool, advance, as_pool


class Facts(NamedTuple):
    """What there is to know about a pool before it is used."""

    name: str
    horizon: int
    can_fork: bool


class Noisy(NamedTuple):
    """Parameters that are to be perturbed: theta travels by itself, so this is O(N) numbers."""

    keys: np.ndarray
    """The words of each worker's key."""
    episode: np.ndarray
    sigma: np.ndarray
    """That of each worker's present noise."""
    horizon: int
    window: int
    period: int
    members: int
    accumulate: bool
    scale: float
    """What contributions are scaled by."""
    generator: str
    """What the keys are for: a name that JAX knows."""

    def of(self, part: slice, sigma: np.ndarray) -> "Noisy":
        """That of some of the workers."""
        return self._replace(keys=self.keys[part], episode=self.episode[part], sigma=sigma)


class Task(NamedTuple):
    """One window of a share of the workers."""

    share: int
    state: int | None
    """The number under which the actor keeps the state to go on from."""
    given: tuple[PyTree, PyTree]
    """Or the state itself, and the score, where the actor does not have them."""
    member: int | None
    """If not `None`, all members go on from the state of this one."""
    again: bool
    """Whether the state was lost: then episodes are unrolled again, from their beginnings."""
    result: int
    """The number under which to keep the state after the window."""
    forget: tuple[int, ...]
    """The numbers of states that nobody will ask for any more."""
    noisy: Noisy | None
    """How to perturb the parameters; `None` if those of each unroll are given."""
    keys: np.ndarray
    start: np.ndarray
    window: int
    """As for `Pool.advance`; zero with `again` does nothing but that."""
    length: np.ndarray


class Reply(NamedTuple):
    """What an actor says about a window: a few numbers a worker, and one a parameter."""

    loss: np.ndarray
    steps: np.ndarray
    ended: np.ndarray
    grad: PyTree
    """The sum of the workers' contributions; `None` if nothing was perturbed."""
    norm: np.ndarray | None
    """The norm of each of them."""
    seconds: float
    """How long it took."""


class Actor:
    """Holds pools, made by `make_pool`, and the states and scores of their workers."""

    def __init__(self, make_pool: Callable[[], Any], configuration: dict[str, Any]):
        for name, value in configuration.items():  # of JAX
            jax.config.update(name, value)
        self.make_pool = make_pool
        # One for each share: a simulator that offers no snapshots serves one alone.
        self.pools: dict[int, Pool] = {}
        self.states: dict[int, tuple[Any, PyTree]] = {}

    def facts(self, share: int) -> Facts:
        pool = self._pool(share)
        return Facts(repr(pool), int(pool.horizon), bool(pool.can_fork))

    def check(self, share: int, theta: PyTree) -> None:
        self._pool(share).check(theta)

    def advance(self, theta: PyTree, task: Task) -> Reply:
        began = time.perf_counter()
        pool = self._pool(task.share)
        for number in task.forget:
            self.states.pop(number, None)
        state, score = self._state(task.share, task.state, task.given, task.member)
        grad, norm = None, None
        extra = np.zeros((), np.int32)
        if task.noisy is None:
            window = _advance(pool, state, theta, task.keys, task.start, task.length, task.window)
        else:
            if task.again:
                state, score, extra = _unroll_again(pool, theta, task)
            if state is not None and task.again and task.window == 0:
                self.states[task.result] = state, score
                nothing = np.zeros((task.noisy.members, task.start.size))
                return Reply(nothing, extra, nothing > 0, None, None, time.perf_counter() - began)
            window, score, grad, norm = _run(
                pool, theta, task, state, score, task.start, task.length
            )
        self.states[task.result] = window.state, score
        loss, steps, ended, grad, norm = jax.device_get(
            (window.loss, window.steps, window.ended, grad, norm)
        )
        return Reply(loss, steps + extra, ended, grad, norm, time.perf_counter() - began)

    def fetch(self, share: int, number: int, member: int | None) -> tuple[PyTree, PyTree]:
        """A state that this actor keeps, as arrays, and the score that goes with it."""
        return jax.tree.map(_portable, self._state(share, number, (None, None), member))

    def _state(self, share, number, given, member) -> tuple[Any, PyTree]:
        state, score = given if number is None else self.states[number]
        return (state if member is None else self._pool(share).fork(state, member)), score

    def _pool(self, share: int) -> Pool:
        if share not in self.pools:
            self.pools[share] = as_pool(self.make_pool())
        return self.pools[share]


def _advance(pool, state, thetas, keys, start, length, window) -> Window:
    """A window with the parameters of each unroll."""
    if isinstance(pool, JaxPool):
        return _advance_compiled(pool, state, thetas, keys, start, window, length)
    thetas, start, length = jax.device_get((thetas, start, length))
    return pool.advance(state, thetas, keys, start, window, length)


@eqx.filter_jit
def _advance_compiled(pool, state, thetas, keys, start, window, length) -> Window:
    if not is_key(keys):
        keys = jax.random.wrap_key_data(keys)
    return advance(pool, state, thetas, keys, start, window, length)


def _run(pool, theta, task, state, score, start, length) -> tuple[Window, PyTree, PyTree, Any]:
    """A window with perturbed parameters: what it leaves, and what it contributes to a gradient."""
    run = _run_compiled if isinstance(pool, JaxPool) else _run_noisy
    theta, start, length = jax.tree.map(jnp.asarray, (theta, start, length))
    return run(pool, task.noisy, state, score, task.keys, theta, start, length, task.window)


def _run_noisy(pool, noisy, state, score, keys, theta, start, length, window):
    # Which need to know of this pool, too.
    from nres.estimators.es import perturb, reduce
    from nres.estimators.values import Workers

    sigma = jnp.asarray(noisy.sigma)
    words = jnp.asarray(noisy.keys)
    own = jax.random.wrap_key_data(words, impl=noisy.generator)
    if isinstance(pool, JaxPool):
        keys = jax.random.wrap_key_data(keys, impl=noisy.generator)
    noise, epsilon, thetas = perturb(
        theta,
        Workers(own, jnp.asarray(noisy.episode), start),
        None if score is None else Noise(sigma, None, score),
        sigma,
        horizon=noisy.horizon,
        period=noisy.period,
        members=noisy.members,
        keep=False,
        accumulate=noisy.accumulate,
    )
    result = _advance(pool, state, thetas, keys, start, length, window)
    loss, steps = jnp.asarray(result.loss), jnp.asarray(result.steps)
    part = reduce(noise, epsilon, loss, steps, scale=noisy.scale)
    return result, noise.score, part.grad, part.norm


_run_compiled = eqx.filter_jit(_run_noisy)


def _unroll_again(pool: Pool, theta: PyTree, task: Task) -> tuple[Any, PyTree, np.ndarray]:
    """States and scores at `start`, with the noises of these episodes, and the steps it took."""
    assert task.noisy is not None
    size = task.noisy.window
    rounds = task.start // size  # windows begin at multiples of their length
    last = int(rounds.max(initial=0))
    state, score, taken = None, None, np.zeros((), np.int32)
    for i in range(last):
        # They begin late and arrive together: see `Estimator.init`.
        behind = last - rounds
        here = np.maximum(i - behind, 0).astype(task.start.dtype) * size
        length = np.where(i >= behind, size, 0).astype(task.length.dtype)
        whole = task._replace(window=size)
        window, score, *_ = _run(pool, theta, whole, state, score, here, length)
        # The third member of a worker is the one that moves its state.
        state = window.state if task.noisy.members < 3 else pool.fork(window.state, 2)
        taken = taken + np.where(length > 0, np.asarray(window.steps), 0)
    return state, score, taken


def _portable(leaf: Any) -> Any:
    return leaf if is_key(leaf) else np.asarray(leaf)
