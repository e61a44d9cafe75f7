"""The loop over updates: one run, or several seeds together."""

import contextlib
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
from nres.estimators.base import Estimator
from nres.log import Log
from nres.measured import learned
from nres.progress import Callback, Progress, Reporter, TrainState
from nres.results import SeedsResult, TrainResult
from nres.seeds import SeedsLog
from nres.system import Theta
from nres.tracing import Lifted
from nres.updates import Chunks, next_size, updates_of
from nres.workers import Steps


def run_updates(
    estimator: Estimator,
    optimizer: optax.GradientTransformation,
    update: Lifted,
    theta: Theta,
    updates: int,
    key: Array | None,
    state: TrainState | None = None,
    *,
    seeds: int | None = None,
    seed: int | None = None,
    eval_fn: Callable[[Theta], Any] | None,
    eval_every: int,
    callbacks: Sequence[Callback],
    progress: bool | Reporter,
) -> TrainResult | SeedsResult:
    """Train with checked arguments: one run, `seeds` of them together, or the run of one `seed`."""
    title = f"{type(estimator).__name__}, {updates:,} updates"
    title += "" if seeds is None else f", {seeds} seeds"
    title += "" if seed is None else f", seed {seed}"
    with _reporting(progress, title) as reporter:
        phase = reporter.phase if reporter is not None else lambda name: None

        began = time.perf_counter()
        phase("compiling")
        first = 0 if state is None else state.update
        last = first + updates
        if state is None:
            theta = estimator.check(theta, seeds or 1)
        chunks = Chunks(estimator, eval_every if eval_fn is not None else None, last)
        updater = updates_of(estimator, update, chunks, seeds)
        log: Log | SeedsLog
        # Compiled code reuses the memory of its arguments, so work on copies.
        if state is None:
            assert key is not None
            theta, optimizer_state = _copy((theta, optimizer.init(learned(theta))))
            position, unlocking = updater.start(theta, optimizer_state, key, phase)
            if isinstance(unlocking, list):
                log = SeedsLog(estimator, unlocking)
            else:
                log = Log(estimator, unlocking, 0, unlocking, 0.0, seed)
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
        with _interruptible() as is_signalled:
            stop = False
            if eval_fn is not None and state.update == 0:
                nothing = log.nothing()
                stop = tell(Progress(position[0], state, last, nothing, evaluate(position[0])))
            while state.update < last and not log.diverged:
                # The clocks of the processes differ, and a signal reaches only one of them.
                size, stop = multihost.agree_on(size, stop or is_signalled())
                if stop:
                    break
                began = time.perf_counter()
                lost = log.diverged_seeds if isinstance(log, SeedsLog) else None
                position, rows = updater.advance(position, state.update, size, lost)
                elapsed = time.perf_counter() - began
                size = next_size(len(rows["loss"]), elapsed)
                columns = log.add(rows, elapsed)
                state = _state(position, log)
                evals = None
                due = state.update == chunks.stop(state.update - 1) or log.diverged
                if eval_fn is not None and due:
                    evals = evaluate(position[0])
                stop = tell(Progress(position[0], state, last, columns, evals))
            signalled = is_signalled()
        interrupted = signalled or (state.update < last and not log.diverged)
        if isinstance(log, SeedsLog):
            return SeedsResult(position[0], log.history(), interrupted, log.diverged_seeds)
        return TrainResult(
            position[0],
            state,
            log.history(),
            interrupted=interrupted,
            signalled=signalled,
            diverged=log.diverged,
        )


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


def _state(position: tuple, log: Log | SeedsLog) -> TrainState:
    _, optimizer_state, estimator_state = position
    return TrainState(estimator_state, optimizer_state, *log.position())


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
