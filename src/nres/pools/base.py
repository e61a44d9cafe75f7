"""`Pool`: where a batch of unrolls runs, one window at a time."""

from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int, PyTree


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
    ended: Bool[Array | np.ndarray, "members workers"]
    """Whether the trajectory has ended early, in this window or an earlier one."""


def check_window(pool: Any, window: Any, lanes: tuple[int, int], length: np.ndarray) -> None:
    """Raise a `ValueError` where a pool that is not JAX returned what no estimator can use.

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
            "write nres.Window(state, loss, steps, ended)."
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


@runtime_checkable
class Pool(Protocol):
    """A batch of unrolls that advances one window at a time.

    A *worker* is a group of unrolls, its *members*, that differ in their parameters alone: an
    antithetic pair has two. Keys, positions and resets are given per worker, so members share
    every random number and start their episodes together.

    To use a simulator that is not written in JAX, implement this class with NumPy: then
    parameters, keys and positions arrive as NumPy arrays, and no code of the pool is traced.
    `nres.JaxPool` implements it for a `nres.System`.
    """

    horizon: int
    """T: the number of steps in an episode."""

    can_fork: bool
    """Whether states can be copied, so that `fork` works and `Window.state` is a value: kept or
    saved, it can be continued from at any time, as often as one likes. A simulator that cannot
    be copied says so here, and is continued from its newest state alone."""

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
        - `keys`: one random key a worker and episode, the same for all windows of the episode;
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
        ...

    def fork(self, state: Any, member: int) -> Any:
        """Let every member continue from the state of one of them (`TES` needs this).

        A pool that cannot has the method, too, and raises.
        """
        ...

    def check(self, theta: PyTree) -> None:
        """Raise a `ValueError` if `theta` cannot be unrolled, before anything is computed."""
        ...
