"""`Pool`: a batch of unrolls that advances one window at a time."""

import abc
import functools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int, PyTree


class PoolError(RuntimeError):
    """A simulator did what it must not, or where it runs cannot be used."""


class Window(eqx.Module):
    """What a pool returns for one window. Member and worker are the leading axes."""

    state: PyTree
    """Whatever the pool needs to continue: handed back, unread, at the next call."""
    loss: Float[Array | np.ndarray, "members workers"]
    """The losses of the window, summed; absorbed steps included."""
    steps: Int[Array | np.ndarray, "members workers"]
    """How many steps were really taken; absorbed steps not included."""


def check_window(pool: Any, window: Any, lanes: tuple[int, int], length: np.ndarray) -> None:
    """Raise a `ValueError` if a pool that is not JAX returned what no estimator can use.

    **Arguments:**

    - `pool`: for its name.
    - `window`: what its `advance` returned.
    - `lanes`: the number of members and of workers.
    - `length`: the number of steps that each worker was to take.
    """
    name = f"{type(pool).__name__}.advance"
    if not isinstance(window, Window):
        raise ValueError(
            f"{name} must return an nres.Window, got {type(window).__name__}: "
            "write nres.Window(state, loss, steps)."
        )
    loss, steps = np.asarray(window.loss), np.asarray(window.steps)
    if not lanes == loss.shape == steps.shape:
        raise ValueError(
            f"{name} must return losses and steps of shape {lanes} (members, workers), got "
            f"{loss.shape} and {steps.shape}."
        )
    if not np.issubdtype(loss.dtype, np.floating):
        raise ValueError(
            f"{name} must return floating-point losses, got dtype {loss.dtype}: "
            "convert them with astype(float)."
        )
    if not np.issubdtype(steps.dtype, np.integer):
        raise ValueError(f"{name} must return whole numbers of steps, got dtype {steps.dtype}.")
    if ((steps < 0) | (steps > length)).any():
        raise ValueError(
            f"{name} must return between 0 and {int(length.max(initial=0))} steps, as many as each "
            f"worker was to take at most; got from {steps.min()} to {steps.max()}."
        )


class Pool(abc.ABC):
    """A batch of unrolls that advances one window at a time.

    A *worker* is a group of unrolls, its *members*, that differ in their parameters alone: an
    antithetic pair has two. Keys, positions and resets are given per worker, so members share
    every random number and start their episodes together.

    To use a simulator that is not written in JAX, inherit from this class and implement `advance`
    with NumPy: parameters, keys and positions then arrive as NumPy arrays, and JAX traces no code
    of the pool. A pool that JAX can trace inherits from `nres.pools.TraceablePool` instead;
    `nres.JaxPool` is the one for an `nres.System`.

    The other members say what else a pool can do. Their defaults promise nothing.
    """

    horizon: int
    """T: the number of steps in an episode."""

    traceable: bool = False
    """True if JAX can trace `advance`, so that whole estimates are compiled."""

    can_fork: bool = False
    """True if states can be copied, so that `fork` works and `Window.state` is a value: kept or
    saved, it can be continued from at any time, as often as one likes. A pool without this is
    continued from its newest state alone."""

    initial_theta: ClassVar[Callable[..., PyTree] | None] = None
    """`initial_theta(key)` returns the parameters to start from; `None` if the pool has none."""

    metrics: ClassVar[Callable[..., Mapping[str, Any]] | None] = None
    """`metrics(theta, key)` measures progress: numbers by name, the first is the one to compare,
    and less is better. `None` stands for the mean loss of some whole episodes."""

    metrics_steps: int | None = None
    """The number of unroll steps in `metrics`, if that is known."""

    one_processor_options: ClassVar[Mapping[str, Any]] = {}
    """Arguments of the constructor for a pool that has one processor alone, as actors have."""

    @abc.abstractmethod
    def advance(
        self,
        state: Any,
        thetas: PyTree,
        keys: Any,
        start: Any,
        window: int,
        length: Any = None,
    ) -> Window:
        """Advance every member of every worker by one window.

        **Arguments:**

        - `state`: `Window.state` of an earlier call, not to be modified; `None` starts every
            worker afresh.
        - `thetas`: the parameters of each unroll: like one `theta`, with axes
            `(members, workers)` in front of every leaf.
        - `keys`: one random key per worker and episode, the same for all windows of the episode;
            a NumPy pool gets an array of `uint32`, of shape `(workers, 2)` for the usual keys.
            All randomness must come from these keys and the step.
        - `start`: steps already taken by each worker. A worker at 0 begins a new episode in
            this window: its members are initialised, each with its own parameters.
        - `window`: W, the largest number of steps to take; 0 only initialises.
        - `length`: the number of steps each worker takes, between 0 and `window`; `None` stands
            for `window` everywhere. A window never crosses the horizon.

        A member that ends early is absorbed: no further steps, and a constant loss (zero unless
        the problem says otherwise) for each remaining step of this and later windows, until its
        worker begins a new episode.
        """

    def advance_arrays(
        self,
        state: Any,
        thetas: PyTree,
        keys: Array,
        start: Int[Array, " workers"],
        window: int,
        length: Int[Array, " workers"] | None = None,
    ) -> Window:
        """Do what `advance` does, from JAX arrays to JAX arrays; estimators call this."""
        given = jnp.full_like(start, window) if length is None else length
        words = jax.random.key_data(keys)
        thetas, words, start, lengths = jax.device_get((thetas, words, start, given))
        result = self.advance(state, thetas, words, start, window, lengths)
        check_window(self, result, jax.tree.leaves(thetas)[0].shape[:2], np.asarray(lengths))
        return Window(result.state, jnp.asarray(result.loss), jnp.asarray(result.steps))

    def fork(self, state: Any, member: int) -> Any:
        """Let every member continue from the state of one of them (`TES` needs this)."""
        raise PoolError(f"{type(self).__name__} cannot copy states.")

    def check(self, theta: PyTree) -> None:
        """Raise a `ValueError` if `theta` cannot be unrolled, before anything is computed."""

    def programs(self, theta: PyTree) -> list[Any]:
        """The computations of a pool as jaxprs, to tell it from a changed one, if there are any."""
        return []

    def never_ends(self, states: PyTree) -> bool:
        """Tell if all unrolls whose states are in a tree are known to run to the horizon."""
        return False

    def close(self) -> None:
        """Release processes, threads and files."""


class TraceablePool(Pool):
    """A pool that JAX can trace: `advance` in two halves, which may be differentiated.

    `begin` and `run` take and return JAX arrays; `keys` are JAX random keys. A state is a pytree
    of arrays with axes `(members, workers)` in front.
    """

    traceable = True
    can_fork = True

    @abc.abstractmethod
    def begin(
        self, state: Any, thetas: PyTree, keys: Array, start: Int[Array, " workers"]
    ) -> PyTree:
        """Initialise the workers at step 0 and leave the others; `state` may be `None`."""

    @abc.abstractmethod
    def run(
        self,
        state: PyTree,
        thetas: PyTree,
        keys: Array,
        start: Int[Array, " workers"],
        window: int,
        length: Int[Array, " workers"] | None = None,
    ) -> Window:
        """Take the steps of a window, of which there is at least one."""

    def programs(self, theta: PyTree) -> list[Any]:
        thetas = jax.tree.map(lambda x: x[None, None], theta)
        keys, start = jax.random.split(jax.random.key(0), 1), jnp.zeros(1, jnp.int32)
        begin = functools.partial(self.begin, None)
        run = functools.partial(self.run, window=1)
        first, state = jax.make_jaxpr(begin, return_shape=True)(thetas, keys, start)
        return [first, jax.make_jaxpr(run)(state, thetas, keys, start)]

    def advance_arrays(
        self,
        state: Any,
        thetas: PyTree,
        keys: Array,
        start: Int[Array, " workers"],
        window: int,
        length: Int[Array, " workers"] | None = None,
    ) -> Window:
        state = self.begin(state, thetas, keys, start)
        if window == 0:  # a scan of no steps would still be compiled
            lanes = jax.tree.leaves(thetas)[0].shape[:2]
            return Window(state, jnp.zeros(lanes), jnp.zeros(lanes, jnp.int32))
        return self.run(state, thetas, keys, start, window, length)

    advance = advance_arrays

    def fork(self, state: PyTree, member: int) -> PyTree:
        return jax.tree.map(lambda x: jnp.broadcast_to(x[member : member + 1], x.shape), state)
