"""`train`: an estimator and an optimizer, made into updates."""

import contextlib
import dataclasses
import math
import operator
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, PyTree

from nres.estimators.base import (
    Estimator,
    NonFiniteError,
    as_key,
    compute_estimate,
    nonfinite_message,
)
from nres.estimators.values import Estimate, EstimatorState, Info, Steps, squared_norm
from nres.pools.jax import JaxPool
from nres.system import Theta, as_theta

# Between two visits to Python, compiled code runs for about so long, and at most so many updates.
DISPATCH_SECONDS = 0.25
DISPATCH_UPDATES = 4096
# On an accelerator every iteration of a loop of unknown length waits for the host, so updates
# come in bundles of known length: up to this many.
BUNDLE = 32

_COLUMNS = (
    "update",
    "total_steps",
    "sequential_steps",
    "seconds",
    "loss",
    "grad_norm",
    "nonfinite",
)


class NonFiniteWarning(RuntimeWarning):
    """Workers whose loss or gradient was not finite were left out of an update."""


class TrainState(eqx.Module):
    """Everything needed, together with `theta`, to go on exactly where a run stopped."""

    estimator: EstimatorState
    optimizer: PyTree
    update: int
    """Updates made so far."""
    steps: Steps
    """Unroll steps spent so far, unlocking included."""
    seconds: float
    """Wall-clock spent on updates so far."""


@dataclasses.dataclass(frozen=True)
class History:
    """What happened, update by update: row i tells of update `update[i]`, counted from 1."""

    update: np.ndarray
    total_steps: np.ndarray
    """Unroll steps so far, those that unlocked the workers included."""
    sequential_steps: np.ndarray
    seconds: np.ndarray
    """Wall-clock spent on updates so far: without compilation, unlocking and evaluation."""
    loss: np.ndarray
    """The mean loss of the perturbed unrolls, per step."""
    grad_norm: np.ndarray
    nonfinite: np.ndarray
    """Workers left out because their contribution was not finite."""
    eval_update: np.ndarray
    """The updates after which `eval_fn` was called; 0 is before the first."""
    eval_seconds: np.ndarray
    """`seconds` at these updates."""
    evals: dict[str, np.ndarray]
    """What `eval_fn` returned, by name; a bare number is called `"eval"`."""
    unlock_steps: Steps
    setup_time: float
    """Seconds spent on compilation and on unlocking the workers."""
    eval_time: float
    """Seconds spent in `eval_fn`."""


@dataclasses.dataclass(frozen=True)
class TrainResult:
    """What `train` returns. Passing `theta` and `state` to `train` again continues the run."""

    theta: Theta
    state: TrainState
    history: History
    interrupted: bool
    """Whether Ctrl-C or the callback ended the run before its last update."""


@dataclasses.dataclass(frozen=True)
class Progress:
    """What a callback sees. Its arrays are valid during the call: copy what is to be kept."""

    theta: Theta
    state: TrainState
    updates: int
    """The update at which the run will end."""
    rows: dict[str, np.ndarray]
    """The columns of `History` for the updates since the last call."""
    evals: dict[str, float] | None
    """What `eval_fn` returned, if it was called after the last of these updates."""


def train(
    estimator: Estimator,
    optimizer: optax.GradientTransformation,
    theta: PyTree,
    *,
    updates: int,
    key: Array | None = None,
    eval_fn: Callable[[Theta], Any] | None = None,
    eval_every: int | None = None,
    callback: Callable[[Progress], Any] | None = None,
    state: TrainState | None = None,
) -> TrainResult:
    """Minimise the loss by updates of an optimizer with an estimator's gradients.

    With a JAX system many updates run in one compiled call; with any other pool the loop is
    Python's. Ctrl-C ends the run after the updates under way and returns what was done so far.

    ```python
    system = nres.systems.Lorenz()
    estimator = nres.NRES(system, workers=200, window=100, sigma=0.04)
    result = nres.train(
        estimator, optax.sgd(1e-5), system.initial_theta(), updates=1000, key=jax.random.key(0)
    )
    result.theta, result.history.loss
    ```

    **Arguments:**

    - `estimator`: any estimator of `nres`.
    - `optimizer`: any optax optimizer.
    - `theta`: the parameters to start from. They are not modified.
    - `updates`: how many updates to make.
    - `key`: a JAX random key; not needed with `state`.
    - `eval_fn`: called as `eval_fn(theta)` before the first update, every `eval_every` updates
        (a twentieth of `updates` by default) and after the last; returns a number or a
        dictionary of numbers.
    - `callback`: called as `callback(progress)` a few times a second, with a `Progress`; the run
        ends early if it returns true.
    - `state`: the `state` of an earlier result, to continue that run.
    """
    theta, updates = as_theta(theta), operator.index(updates)
    if updates < 0:
        raise ValueError(f"updates must not be negative, got {updates}.")
    if eval_every is not None and eval_every < 1:
        raise ValueError(f"eval_every must be at least 1, got {eval_every}.")
    if eval_fn is None:
        eval_every = max(1, updates)
    eval_every = eval_every or max(1, math.ceil(updates / 20))

    began = time.perf_counter()
    if state is None:
        if key is None:
            raise ValueError("train needs a key, or the state of an earlier run to continue.")
        estimator_state = estimator.init(theta, as_key(key))
        unlock = estimator_state.unlock_steps
        state = TrainState(estimator_state, optimizer.init(theta), 0, unlock, 0.0)
    compiled = isinstance(estimator.pool, JaxPool)
    bundle = _bundle(math.gcd(updates, eval_every, state.update)) if compiled else 1
    # Compiled code reuses the memory of its arguments: work on copies, the caller's stay intact.
    carry = _copy((theta, state.optimizer, state.estimator))
    log = _Log(estimator, state)
    if compiled:
        arguments = (estimator, optimizer, jnp.asarray(0), bundle)
        carry, *_ = _compiled_updates(arguments, carry)  # no update yet: this only compiles
        state = TrainState(carry[2], carry[1], *log.position())
    log.setup_time = time.perf_counter() - began

    last = state.update + updates
    size = bundle
    with _interruptible() as interrupted:
        if eval_fn is not None and state.update == 0:
            log.evaluate(eval_fn, carry[0], 0, 0.0)
        while state.update < last and not interrupted():
            until_eval = eval_every - state.update % eval_every
            count = min(size, last - state.update, until_eval)
            began = time.perf_counter()
            if compiled:
                arguments = (estimator, optimizer, jnp.asarray(count // bundle), bundle)
                carry, *rows = _compiled_updates(arguments, carry)
            else:
                carry, *rows = _host_update(estimator, optimizer, carry)
            floats, integers = (np.asarray(r)[:count] for r in rows)
            elapsed = time.perf_counter() - began
            if compiled:
                target = min(DISPATCH_UPDATES, count * DISPATCH_SECONDS / max(elapsed, 1e-9))
                size = max(1, int(target) // bundle) * bundle

            columns = log.add(floats, integers, elapsed)
            theta = carry[0]
            state = TrainState(carry[2], carry[1], *log.position())
            evals = None
            if eval_fn is not None and (state.update == last or count == until_eval):
                evals = log.evaluate(eval_fn, theta, state.update, state.seconds)
            if callback is not None and callback(Progress(theta, state, last, columns, evals)):
                break
        stopped = interrupted() or state.update < last
    return TrainResult(carry[0], state, log.history(), interrupted=stopped)


def _copy(tree: PyTree) -> PyTree:
    def copy(leaf):
        if isinstance(leaf, np.ndarray):
            return leaf.copy()
        return jnp.copy(leaf) if eqx.is_array(leaf) else leaf

    return jax.tree.map(copy, tree)


def _bundle(divisor: int) -> int:
    """Into how many updates one iteration of the compiled loop is bundled."""
    if jax.default_backend() == "cpu":
        return 1
    return max(size for size in range(1, BUNDLE + 1) if divisor % size == 0)


@eqx.filter_jit(donate="all-except-first")
def _compiled_updates(arguments, carry):
    estimator, optimizer, bundles, bundle = arguments

    def one_update(i, loop):
        carry, floats, integers = loop
        estimate = compute_estimate(estimator, carry[0], carry[2])
        theta, optimizer_state = _apply(optimizer, carry[0], carry[1], estimate.grad, estimate.loss)
        carry = (theta, optimizer_state, estimate.state)
        more_floats, more_integers = _report(*_reported(estimate))
        return carry, floats.at[i].set(more_floats), integers.at[i].set(more_integers)

    def one_bundle(i, loop):
        body = lambda j, loop: one_update(i * bundle + j, loop)  # noqa: E731
        return jax.lax.fori_loop(0, bundle, body, loop)

    rows = jnp.zeros((DISPATCH_UPDATES, 2)), jnp.zeros((DISPATCH_UPDATES, 5), jnp.int32)
    return jax.lax.fori_loop(0, bundles, one_bundle, (carry, *rows))


def _host_update(estimator, optimizer, carry):
    estimate = compute_estimate(estimator, carry[0], carry[2])
    # Only what the update reads is handed to compiled code: a simulator's state stays outside.
    theta, optimizer_state, _ = carry
    theta, optimizer_state = _apply_compiled(
        optimizer, theta, optimizer_state, estimate.grad, estimate.loss
    )
    floats, integers = _report(*_reported(estimate))
    return (theta, optimizer_state, estimate.state), floats[None], integers[None]


def _apply(optimizer, theta, optimizer_state, grad, loss):
    # Some optimizers want to know the loss, too. Wrapped here, where it is traced: a wrapper made
    # for every run would be a new function, and compile anew.
    update = optax.with_extra_args_support(optimizer).update
    change, optimizer_state = update(grad, optimizer_state, theta, value=loss)
    return optax.apply_updates(theta, change), optimizer_state


_apply_compiled = eqx.filter_jit(_apply)


def _reported(estimate: Estimate) -> tuple:
    return estimate.grad, estimate.loss, estimate.info, estimate.spent.unused


@eqx.filter_jit
def _report(grad: Theta, loss: Array, info: Info, unused: Array) -> tuple[Array, Array]:
    """The numbers that are kept of an update, in two rows: each costs a write to memory."""
    norm = jnp.sqrt(squared_norm(grad))
    start = info.window_start[jnp.maximum(info.first_nonfinite, 0)]
    floats = jnp.stack([loss.astype(float), norm.astype(float)])
    return floats, jnp.stack([info.nonfinite, info.first_nonfinite, start, *unused])


class _Log:
    """Turns what updates report into a `History`."""

    def __init__(self, estimator: Estimator, state: TrainState):
        lanes = estimator.members * estimator.workers
        self.bound = Steps(lanes * estimator.window, estimator.window)
        self.policy = estimator.nonfinite
        self.unlock_steps = state.estimator.unlock_steps
        self.update, self.steps, self.seconds = state.update, state.steps, state.seconds
        self.setup_time = self.eval_time = 0.0
        self.parts: list[dict[str, np.ndarray]] = []
        self.eval_rows: list[tuple[int, float, dict[str, float]]] = []
        self.warned = False

    def position(self) -> tuple[int, Steps, float]:
        return self.update, self.steps, self.seconds

    def add(
        self, floats: np.ndarray, integers: np.ndarray, elapsed: float
    ) -> dict[str, np.ndarray]:
        nonfinite, worker, start, *unused = integers.T
        self._report_nonfinite(nonfinite, worker, start)
        number = np.arange(1, len(floats) + 1)
        total, sequential = (
            before + np.cumsum(bound - part.astype(np.int64))
            for before, bound, part in zip(self.steps, self.bound, unused, strict=True)
        )
        part = {
            "update": self.update + number,
            "total_steps": total,
            "sequential_steps": sequential,
            "seconds": self.seconds + elapsed * number / len(number),
            "loss": floats[:, 0],
            "grad_norm": floats[:, 1],
            "nonfinite": nonfinite,
        }
        self.parts.append(part)
        self.update += len(number)
        self.steps = Steps(int(total[-1]), int(sequential[-1]))
        self.seconds += elapsed
        return part

    def _report_nonfinite(self, nonfinite, worker, start) -> None:
        if not nonfinite.any() or self.warned:
            return
        row = int(np.argmax(nonfinite > 0))
        update = self.update + row + 1
        message = nonfinite_message(int(nonfinite[row]), int(worker[row]), int(start[row]), update)
        if self.policy == "raise":
            raise NonFiniteError(message)
        warnings.warn(
            message + " They are left out; `history.nonfinite` counts them.",
            NonFiniteWarning,
            stacklevel=4,
        )
        self.warned = True

    def evaluate(self, eval_fn, theta: Theta, update: int, seconds: float) -> dict[str, float]:
        began = time.perf_counter()
        result = jax.device_get(eval_fn(_copy(theta)))
        values = result if isinstance(result, dict) else {"eval": result}
        evals = {name: float(value) for name, value in values.items()}
        self.eval_time += time.perf_counter() - began
        self.eval_rows.append((update, seconds, evals))
        return evals

    def history(self) -> History:
        columns = {
            name: np.concatenate([part[name] for part in self.parts]) if self.parts else np.zeros(0)
            for name in _COLUMNS
        }
        names = dict.fromkeys(name for row in self.eval_rows for name in row[2])
        return History(
            **columns,
            eval_update=np.array([row[0] for row in self.eval_rows], np.int64),
            eval_seconds=np.array([row[1] for row in self.eval_rows]),
            evals={
                name: np.array([row[2].get(name, math.nan) for row in self.eval_rows])
                for name in names
            },
            unlock_steps=self.unlock_steps,
            setup_time=self.setup_time,
            eval_time=self.eval_time,
        )


@contextlib.contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """Let the first Ctrl-C ask for an orderly end; the second interrupts as usual."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False  # signals reach the main thread alone
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
