"""`train`: minimise a loss with an estimator and an optax optimizer."""

import contextlib
import dataclasses
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, PyTree

from nres import multihost
from nres.checks import as_key, whole_number
from nres.estimators.base import Estimator
from nres.history import History, Log
from nres.progress import Progress, Reporter, TrainState
from nres.system import Theta, as_theta
from nres.updates import Chunks, lift_update, next_size, updates_of
from nres.workers import Steps

Callback = Callable[[Progress], Any]


@dataclasses.dataclass(frozen=True, repr=False)
class TrainResult:
    """The result of `train`. Pass its `theta` and `state` to `train` again to resume the run."""

    theta: Theta
    """The parameters after the last update."""
    state: TrainState
    """The state of the run, for `train(..., state=result.state)`."""
    history: History
    """The record of the updates of this call."""
    interrupted: bool
    """True if Ctrl-C was pressed, or if the callback ended the run before its last update."""
    signalled: bool = False
    """True if Ctrl-C was pressed."""
    diverged: bool = False
    """True if training stopped because no worker gave a finite contribution for two episodes."""

    def __repr__(self) -> str:
        ended = " diverged," if self.diverged else " interrupted," if self.interrupted else ""
        return (
            f"TrainResult({self.state.update:,} updates,{ended} {self.history.summary()}; "
            "see .theta, .state, .history)"
        )

    def _repr_html_(self) -> str:
        return self.history._repr_html_()


def train(
    estimator: Estimator,
    optimizer: optax.GradientTransformation,
    theta: PyTree,
    *,
    updates: int,
    key: Array | None = None,
    eval_fn: Callable[[Theta], Any] | None = None,
    eval_every: int | None = None,
    callback: Callback | Sequence[Callback] | None = None,
    progress: bool | Reporter = False,
    state: TrainState | None = None,
) -> TrainResult:
    """Minimise the loss with an optax optimizer and an estimator's gradients.

    With a JAX system, many updates run in one compiled call; with any other pool, Python loops
    over the updates. Ctrl-C ends the run after the current updates, and `train` returns the
    result so far. Training also stops, with a `NonFiniteWarning`, if no worker gives a finite loss
    or gradient for two episodes (`result.diverged`).

    Args:
        estimator: Any estimator of `nres`.
        optimizer: Any optax optimizer.
        theta: The parameters to start from, a pytree of floating-point arrays. They are not
            modified.
        updates: The number of updates to make.
        key: A JAX random key; required unless `state` is given.
        eval_fn: A function of `theta` that returns a number or a dictionary of numbers. It is
            called before the first update, every `eval_every` updates, and after the last update.
        eval_every: The number of updates between evaluations; a twentieth of `updates` by default.
        callback: A function that is called with a `Progress` about twice per second, and after the
            evaluation before the first update; or a list of such functions, for example from
            `nres.callbacks`. The run ends early if one of them returns true.
        progress: True to display the phase, the updates, the loss and the time left; or a
            `Reporter` of your own.
        state: The `state` of an earlier result, to resume that run.

    Returns:
        The final parameters, the state to resume from, and the history of the run.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If the optimizer does not fit `theta`, or the state does not fit the optimizer.
        NonFiniteError: If a worker's loss or gradient is not finite and the estimator was created
            with `nonfinite="raise"`.

    Example:
        ```python
        system = nres.systems.Lorenz()
        estimator = nres.NRES(system, workers=200, window=100, sigma=0.04)
        result = nres.train(
            estimator, optax.sgd(1e-5), system.initial_theta(), updates=1000, key=jax.random.key(0)
        )
        result.theta, result.history.loss
        ```
    """
    callbacks = callback_list(callback)
    _check_parts(estimator, optimizer, eval_fn, callbacks, progress, state)
    theta, updates = as_theta(theta), whole_number("updates", updates, 0)
    update = lift_update(optimizer, theta)
    if state is not None:
        _check_optimizer_state(optimizer, theta, state)
    if eval_every is not None:
        eval_every = whole_number("eval_every", eval_every)
    eval_every = eval_every or max(1, math.ceil(updates / 20))
    if state is None and key is None:
        raise ValueError("train needs a key, or the state of an earlier run to resume.")
    key = None if key is None else as_key(key)
    title = f"{type(estimator).__name__}, {updates:,} updates"
    with _reporting(progress, title) as reporter:
        phase = reporter.phase if reporter is not None else lambda name: None

        began = time.perf_counter()
        phase("compiling")
        first = 0 if state is None else state.update
        last = first + updates
        chunks = Chunks(estimator, eval_every if eval_fn is not None else None, last)
        updater = updates_of(estimator, update, chunks)
        # Compiled code reuses the memory of its arguments, so work on copies.
        if state is None:
            assert key is not None
            theta = _copy(estimator.check(theta))
            position, unlocking = updater.start(theta, _copy(optimizer.init(theta)), key, phase)
            log = Log(estimator, unlocking, 0, unlocking, 0.0)
        else:
            position = updater.compile(_copy((theta, state.optimizer, state.estimator)), first)
            log = Log(estimator, Steps(0, 0), first, state.steps, state.seconds)
        state = _state(position, log)
        log.setup_time = time.perf_counter() - began

        size = 1

        def evaluate(theta: Theta) -> dict[str, float]:
            phase("evaluating")
            evals = log.evaluate(eval_fn, multihost.to_local(_copy(theta)))
            phase("updating")
            return evals

        def tell(progress: Progress) -> bool:
            answers = [bool(function(progress)) for function in callbacks]  # all are called
            if reporter is not None:
                reporter(progress)
            return any(answers)

        phase("updating")
        with _interruptible() as interrupted:
            stop = False
            if eval_fn is not None and state.update == 0:
                nothing = log.nothing()
                stop = tell(Progress(position[0], state, last, nothing, evaluate(position[0])))
            while state.update < last and not log.diverged:
                # The clocks of the processes differ, and a signal reaches only one of them.
                size, stop = multihost.agree_on(size, stop or interrupted())
                if stop:
                    break
                began = time.perf_counter()
                position, rows = updater.advance(position, state.update, size)
                elapsed = time.perf_counter() - began
                size = next_size(len(rows["loss"]), elapsed)
                columns = log.add(rows, elapsed)
                state = _state(position, log)
                evals = None
                due = state.update == chunks.stop(state.update - 1) or log.diverged
                if eval_fn is not None and due:
                    evals = evaluate(position[0])
                stop = tell(Progress(position[0], state, last, columns, evals))
            signalled = interrupted()
        stopped = signalled or (state.update < last and not log.diverged)
        return TrainResult(
            position[0],
            state,
            log.history(),
            interrupted=stopped,
            signalled=signalled,
            diverged=log.diverged,
        )


def callback_list(callback: Any) -> list[Any]:
    """Return the callbacks as a list: `None`, one function, or several."""
    if callback is None:
        return []
    return list(callback) if isinstance(callback, Sequence) else [callback]


@contextlib.contextmanager
def _reporting(progress: bool | Reporter, title: str) -> Iterator[Reporter | None]:
    if not isinstance(progress, bool):
        yield progress
    elif not progress:
        yield None
    else:
        from nres.display import Display  # here, because rich is slow to import

        with Display(title) as display:
            yield display


def _state(position: tuple, log: Log) -> TrainState:
    _, optimizer_state, estimator_state = position
    return TrainState(estimator_state, optimizer_state, *log.position())


def _check_optimizer_state(optimizer: Any, theta: Theta, state: TrainState) -> None:
    """Raise a `ValueError` if the state belongs to another optimizer."""
    trees = (state.optimizer, jax.eval_shape(optimizer.init, theta))
    given, own = (
        (str(jax.tree.structure(tree)), [jnp.shape(leaf) for leaf in jax.tree.leaves(tree)])
        for tree in trees
    )
    if given != own:
        raise ValueError(
            "state belongs to another optimizer or to other parameters: its optimizer state is "
            f"{given[0]}, but this optimizer's is {own[0]}."
        )


def _check_parts(
    estimator: Any, optimizer: Any, eval_fn: Any, callbacks: list, progress: Any, state: Any
) -> None:
    """Raise a `TypeError` for an argument of the wrong type, and suggest the right one."""
    if not isinstance(estimator, Estimator):
        raise TypeError(
            f"estimator must be an estimator of nres, for example nres.NRES(system, ...); got "
            f"{type(estimator).__name__}."
        )
    if not (callable(getattr(optimizer, "init", None)) and hasattr(optimizer, "update")):
        name = getattr(optimizer, "__name__", None)
        meant = f"optax.{name}(1e-3)" if callable(optimizer) and name else "optax.sgd(1e-3)"
        raise TypeError(
            f"optimizer must be an optax optimizer, got {name or repr(optimizer)}: write {meant}."
        )
    if state is not None and not isinstance(state, TrainState):
        raise TypeError(
            f"state must be the `state` of an earlier result, got {type(state).__name__}."
        )
    if not isinstance(progress, bool | Reporter):
        raise TypeError(f"progress must be True, False or an nres.Reporter, got {progress!r}.")
    for name, function in [("eval_fn", eval_fn), *(("callback", each) for each in callbacks)]:
        if not (callable(function) or (name == "eval_fn" and function is None)):
            raise TypeError(f"{name} must be a function, got {type(function).__name__}.")


def _copy(tree: PyTree) -> PyTree:
    def copy(leaf):
        if isinstance(leaf, np.ndarray):
            return leaf.copy()
        return jnp.copy(leaf) if eqx.is_array(leaf) else leaf

    return jax.tree.map(copy, tree)


@contextlib.contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """Let the first Ctrl-C request an orderly end; the second interrupts as usual."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False  # signals reach only the main thread
        return
    asked = False
    before = signal.getsignal(signal.SIGINT) or signal.SIG_DFL

    def ask(signum, frame):
        nonlocal asked
        asked = True
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, ask)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, before)
