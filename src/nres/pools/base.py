"""`Pool`: a batch of unrolls that advances one window at a time."""

import abc
import functools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int, PyTree

from nres.lengths import Lengths
from nres.noise.factors import dense, lanes_of


class PoolError(RuntimeError):
    """Error of a simulator that fails or returns invalid results, or of the place that runs it."""


class MaterialisedWarning(UserWarning):
    """Warning that an operation forms perturbed matrices, which takes memory and time."""


class Window(eqx.Module):
    """The result of one window of a pool. The leading axes are members and workers."""

    state: PyTree
    """Whatever the pool needs to continue. Estimators pass it to the next call, unread."""
    loss: Float[Array | np.ndarray, "members workers"]
    """The sum of the losses of the window, including absorbed steps."""
    steps: Int[Array | np.ndarray, "members workers"]
    """The number of steps really taken, without absorbed steps."""
    observed: tuple[PyTree, ...] | None = None
    """Observations of each unroll in the window, for every `nres.measured.Measured` part of
    `theta`; `None` if nothing is measured."""


def check_window(pool: Any, window: Any, lanes: tuple[int, int], length: np.ndarray) -> None:
    """Raise a `ValueError` if a pool outside JAX returned a window that estimators cannot use.

    Args:
        pool: The pool, for its name.
        window: The result of its `advance`.
        lanes: The number of members and of workers.
        length: The number of steps that each worker should take.
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
            f"{name} must return between 0 and {int(length.max(initial=0))} steps, at most as many "
            f"as `length` allows for each worker; got from {steps.min()} to {steps.max()}."
        )


class Film(NamedTuple):
    """Pictures of one episode."""

    frames: list[np.ndarray]
    """Red, green and blue bytes of each frame, of shape `(height, width, 3)`."""
    seconds: float
    """The simulated seconds between two frames."""


class Pool(abc.ABC):
    """A batch of unrolls that advances one window at a time.

    A *worker* is a group of unrolls, its *members*, that differ only in their parameters; an
    antithetic pair has two members. Keys, positions and resets are given per worker. The members
    of a worker therefore share all randomness and start their episodes together.

    To use a simulator that is not written in JAX, subclass this class and implement `advance` in
    NumPy. Parameters, keys and positions then arrive as NumPy arrays, and JAX traces no code of
    the pool. For a pool that JAX can trace, subclass `nres.pools.TraceablePool` instead. For an
    `nres.System`, use `nres.JaxPool`.

    The other attributes and methods declare optional abilities, which are off by default.

    Example:
        ```python
        class Decay(nres.Pool):
            horizon = 100

            def advance(self, state, thetas, keys, start, window, length=None):
                length = np.full(start.shape, window) if length is None else length
                state = np.ones(thetas.shape) if state is None else state
                state = np.where(start == 0, 1.0, state)
                loss = np.zeros(thetas.shape)
                for i in range(window):
                    going = i < length
                    state = np.where(going, state * np.exp(-thetas), state)
                    loss += np.where(going, (state - 0.5) ** 2, 0.0)
                return nres.Window(state, loss, np.broadcast_to(length, loss.shape))
        ```
    """

    horizon: int
    """T, the number of steps in an episode."""

    lengths: Lengths | None = None
    """The distribution of the lengths of episodes; `None` if all take `horizon` steps."""

    traceable: bool = False
    """True if JAX can trace `advance`, so that whole estimates are compiled."""

    can_fork: bool = False
    """True if states can be copied: `fork` works, and `Window.state` can be kept or saved and
    continued at any time, any number of times. Otherwise only the newest state can be
    continued."""

    lazy: ClassVar[bool] = False
    """True if the pool takes parameters in the forms of `nres.noise.factors`: perturbed matrices
    that are not formed, and arrays that all unrolls share."""

    initial_theta: ClassVar[Callable[..., PyTree] | None] = None
    """`initial_theta(key)` returns the parameters to start from; `None` if the pool has none."""

    metrics: ClassVar[Callable[..., Mapping[str, Any]] | None] = None
    """`metrics(theta, key)` returns numbers by name that measure progress. The first one ranks
    parameters; lower is better. `None` means the mean loss of some whole episodes."""

    metrics_steps: int | None = None
    """The number of unroll steps that `metrics` takes; `None` if unknown."""

    film: ClassVar[Callable[..., "Film"] | None] = None
    """`film(theta, seed, *, steps, every, size)` draws an episode at `theta`, one frame of
    (width, height) pixels every so many steps; `None` if the pool cannot be drawn."""

    one_processor_options: ClassVar[Mapping[str, Any]] = {}
    """Constructor arguments for a pool that may use only one processor, for example in an actor."""

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

        A member that ends early is absorbed: it takes no further steps, and each remaining step
        of this and later windows costs a constant loss (zero unless the problem defines another),
        until its worker begins a new episode.

        Args:
            state: The `Window.state` of an earlier call, which must not be modified; `None` begins
                a new episode for every worker.
            thetas: The parameters of each unroll, a pytree like `theta` with axes
                `(members, workers)` in front of every leaf.
            keys: One random key per worker and episode, the same for all windows of the episode.
                All randomness must derive from these keys and the step. A NumPy pool gets an array
                of `uint32`, of shape `(workers, 2)` for the usual keys.
            start: The number of steps that each worker has taken in its episode. A worker at 0
                begins a new episode in this window: its members are initialised, each with its own
                parameters.
            window: W, the maximal number of steps; 0 only initialises.
            length: The number of steps that each worker takes, between 0 and `window`; `None`
                means `window` for all. A window never crosses the horizon.

        Returns:
            The new state, and the summed loss and the number of steps of each unroll.
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
        """Call `advance` with JAX arrays and return JAX arrays. Estimators call this method."""
        thetas = dense(thetas)
        given = jnp.full_like(start, window) if length is None else length
        words = jax.random.key_data(keys)
        thetas, words, start, lengths = jax.device_get((thetas, words, start, given))
        result = self.advance(state, thetas, words, start, window, lengths)
        check_window(self, result, jax.tree.leaves(thetas)[0].shape[:2], np.asarray(lengths))
        observed = jax.tree.map(jnp.asarray, result.observed)
        return Window(result.state, jnp.asarray(result.loss), jnp.asarray(result.steps), observed)

    def fork(self, state: Any, member: int) -> Any:
        """Let every member continue from the state of one member, which `TES` needs.

        Args:
            state: A `Window.state` of this pool.
            member: The index of the member whose state is copied.

        Returns:
            The state after the copy.

        Raises:
            PoolError: If the pool cannot copy states.
        """
        raise PoolError(f"{type(self).__name__} cannot copy states.")

    def check(self, theta: PyTree) -> None:
        """Raise a `ValueError` if `theta` does not fit the pool, before anything is computed."""

    def programs(self, theta: PyTree) -> list[Any]:
        """Return the pool's computations as jaxprs, if any, to detect that its code changed."""
        return []

    def never_ends(self, states: PyTree) -> bool:
        """Return true if all unrolls in a tree of states are known to run to the horizon."""
        return False

    def close(self) -> None:
        """Release processes, threads and files."""


class TraceablePool(Pool):
    """A pool that JAX can trace: `advance` consists of `begin` and `run`.

    Both take and return JAX arrays and may be differentiated; `keys` are JAX random keys. A state
    is a pytree of arrays with axes `(members, workers)` in front.
    """

    traceable = True
    can_fork = True

    @abc.abstractmethod
    def begin(
        self, state: Any, thetas: PyTree, keys: Array, start: Int[Array, " workers"]
    ) -> PyTree:
        """Initialise the workers at step 0 and leave the others unchanged.

        Args:
            state: The current state; `None` if there is none yet.
            thetas: The parameters of each unroll, as for `advance`.
            keys: One random key per worker and episode.
            start: The number of steps that each worker has taken in its episode.

        Returns:
            The state before the window.
        """

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
        """Take the steps of a window. The arguments are those of `advance`, with `window >= 1`."""

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
        if not self.lazy:
            thetas = dense(thetas)
        state = self.begin(state, thetas, keys, start)
        if window == 0:  # JAX would compile even a scan of zero steps
            lanes = lanes_of(thetas)
            return Window(state, jnp.zeros(lanes), jnp.zeros(lanes, jnp.int32))
        return self.run(state, thetas, keys, start, window, length)

    advance = advance_arrays

    def fork(self, state: PyTree, member: int) -> PyTree:
        return jax.tree.map(lambda x: jnp.broadcast_to(x[member : member + 1], x.shape), state)
