"""What an actor does: it unrolls the workers it was given, and keeps their states."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from nres.noise import Noise, Perturbed, as_keys
from nres.pools.base import Pool, Window
from nres.pools.jax import JaxPool, advance, as_pool


class Facts(NamedTuple):
    """What there is to know about a pool before it is used."""

    name: str
    horizon: int
    can_fork: bool


class Task(NamedTuple):
    """One window of a share of the workers; the parameters travel by themselves."""

    share: int
    state: int | None
    """The number under which the actor keeps the state to go on from."""
    given: PyTree
    """Or the state itself, where the actor does not have it."""
    member: int | None
    """If not `None`, all members go on from the state of this one."""
    again: bool
    """Whether the state was lost: then episodes are unrolled again, from their beginnings."""
    result: int
    """The number under which to keep the state after the window."""
    forget: tuple[int, ...]
    """The numbers of states that nobody will ask for any more."""
    noise: tuple | None
    """`Perturbed`, without theta; `None` if the parameters of each unroll are given."""
    keys: np.ndarray
    start: np.ndarray
    window: int
    length: np.ndarray
    scale: float | None
    """If not `None`, the actor weighs its workers' noise with their losses, and adds it up."""


class Reply(NamedTuple):
    """What an actor says about a window: a few numbers a worker."""

    loss: np.ndarray
    steps: np.ndarray
    ended: np.ndarray
    seconds: float
    """How long it took."""
    grad: PyTree
    """The sum of the workers' contributions, where it was asked for; else `None`."""
    norm: np.ndarray | None
    """The norm of each of them."""


class Actor:
    """Holds pools, made by `make_pool`, and the states of their workers."""

    def __init__(self, make_pool: Callable[[], Any], cpu: bool):
        if cpu:
            jax.config.update("jax_platforms", "cpu")
        self.make_pool = make_pool
        # One for each share: a simulator that offers no snapshots serves one alone.
        self.pools: dict[int, Pool] = {}
        self.states: dict[int, Any] = {}

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
        state = task.given if task.state is None else self.states[task.state]
        if task.member is not None:
            state = pool.fork(state, task.member)
        thetas = theta if task.noise is None else Perturbed(theta, *task.noise)
        extra: Any = 0
        if task.again:
            state, extra = _unroll_again(pool, thetas, task)
        window = _advance(pool, state, thetas, task.keys, task.start, task.window, task.length)
        self.states[task.result] = window.state
        loss, steps, ended = jax.device_get((window.loss, window.steps, window.ended))
        grad, norm = None, None
        if task.scale is not None:
            grad, norm = jax.device_get(_weigh(thetas, task.start, loss, steps, task.scale))
        return Reply(loss, steps + extra, ended, time.perf_counter() - began, grad, norm)

    def fetch(self, share: int, state: int, member: int | None) -> PyTree:
        """A state that this actor keeps, as arrays."""
        tree = self.states[state]
        if member is not None:
            tree = self._pool(share).fork(tree, member)
        return jax.tree.map(_portable, tree)

    def _pool(self, share: int) -> Pool:
        if share not in self.pools:
            self.pools[share] = as_pool(self.make_pool())
        return self.pools[share]


def _advance(pool, state, thetas, keys, start, window, length) -> Window:
    if isinstance(pool, JaxPool):
        start, length = jnp.asarray(start), jnp.asarray(length)
        return _advance_compiled(pool, state, thetas, as_keys(keys), start, window, length)
    if isinstance(thetas, Perturbed):
        thetas = jax.device_get(thetas.at(start))
    return pool.advance(state, thetas, keys, start, window, length)


@eqx.filter_jit
def _advance_compiled(pool, state, thetas, keys, start, window, length) -> Window:
    if isinstance(thetas, Perturbed):
        thetas = thetas.at(start)
    return advance(pool, state, thetas, keys, start, window, length)


@eqx.filter_jit
def _weigh(perturbed: Perturbed, start, loss, steps, scale: float) -> tuple[PyTree, Any]:
    from nres.estimators.es import reduce  # which needs to know of this pool

    noise = Noise(jnp.asarray(perturbed.sigma), None, None)
    epsilon = perturbed.noise(start)
    result = reduce(noise, epsilon, jnp.asarray(loss), jnp.asarray(steps), scale=scale)
    return result.grad, result.norm


def _unroll_again(pool: Pool, thetas: Any, task: Task) -> tuple[Any, np.ndarray]:
    """The states at `start`, with the noises of these episodes, and the steps it took."""
    rounds = task.start // max(1, task.window)  # windows begin at multiples of their length
    last = int(rounds.max(initial=0))
    state, taken = None, np.zeros((), np.int32)
    for i in range(last):
        # They begin late and arrive together: see `Estimator.init`.
        behind = last - rounds
        here = np.maximum(i - behind, 0).astype(task.start.dtype) * task.window
        length = np.where(i >= behind, task.window, 0).astype(task.length.dtype)
        window = _advance(pool, state, thetas, task.keys, here, task.window, length)
        # The third member of a worker is the one that moves its state.
        state = window.state if thetas.members < 3 else pool.fork(window.state, 2)
        taken = taken + np.where(length > 0, np.asarray(window.steps), 0)
    return state, taken


def _portable(leaf: Any) -> Any:
    is_key = eqx.is_array(leaf) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return leaf if is_key else np.asarray(leaf)
