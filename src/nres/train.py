"""`train`: an estimator and an optimizer, made into updates."""

import contextlib
import dataclasses
import math
import operator
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, PyTree

from nres import hosts
from nres.estimators.base import Estimator, as_key, compute_estimate
from nres.estimators.values import Estimate, EstimatorState, Info, Steps, squared_norm
from nres.history import History, Log
from nres.pools.jax import JaxPool
from nres.system import Theta, as_theta

# Between two visits to Python, compiled code runs for about so long, and at most so many updates.
# Each visit costs: on a CPU, the memory for what is temporary is taken anew.
DISPATCH_SECONDS = 0.5
DISPATCH_UPDATES = 4096
# On an accelerator every iteration of a loop of unknown length waits for the host, so updates
# come in bundles of known length: up to this many, and about so many sequential steps.
BUNDLE = 32
BUNDLE_STEPS = 3200


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
class TrainResult:
    """What `train` returns. Passing `theta` and `state` to `train` again continues the run."""

    theta: Theta
    state: TrainState
    history: History
    interrupted: bool
    """Whether Ctrl-C was pressed, or the callback ended the run before its last update."""
    signalled: bool = False
    """Whether it was Ctrl-C."""


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
    - `callback`: called as `callback(progress)` about twice a second, with a `Progress`, and
        after the evaluation before the first update; the run ends early if it returns true.
    - `state`: the `state` of an earlier result, to continue that run.
    """
    theta, updates = as_theta(theta), operator.index(updates)
    if updates < 0:
        raise ValueError(f"updates must not be negative, got {updates}.")
    if eval_every is not None and eval_every < 1:
        raise ValueError(f"eval_every must be at least 1, got {eval_every}.")
    eval_every = eval_every or max(1, math.ceil(updates / 20))

    began = time.perf_counter()
    if state is None:
        if key is None:
            raise ValueError("train needs a key, or the state of an earlier run to continue.")
        estimator_state = estimator.init(theta, as_key(key))
        unlock = estimator_state.unlock_steps
        state = TrainState(estimator_state, optimizer.init(theta), 0, unlock, 0.0)
    compiled = isinstance(estimator.pool, JaxPool)
    last = state.update + updates
    chunks = _Chunks(estimator, eval_every if eval_fn is not None else None, last)
    # Compiled code reuses the memory of its arguments: work on copies, the caller's stay intact.
    carry = _copy((theta, state.optimizer, state.estimator))
    log = Log(estimator, state.estimator.unlock_steps, state.update, state.steps, state.seconds)
    if compiled:
        for bundle in chunks.bundles(state.update):  # no update yet: this only compiles
            carry, *_ = _compiled_updates((estimator, optimizer, jnp.asarray(0), bundle), carry)
        state = TrainState(carry[2], carry[1], *log.position())
    log.setup_time = time.perf_counter() - began

    size = 1
    with _interruptible() as interrupted:
        stop = False
        if eval_fn is not None and state.update == 0:
            first = log.evaluate(eval_fn, hosts.own(_copy(carry[0])), 0, 0.0)
            if callback is not None:
                callback(Progress(carry[0], state, last, log.nothing(), first))
        while state.update < last:
            # Every process has its own clock, and a signal reaches one of them.
            size, stop = hosts.agree(size, stop or interrupted())
            if stop:
                break
            began = time.perf_counter()
            if compiled:
                bundle, most = chunks.next(state.update)
                count = max(1, min(size, most) // bundle) * bundle
                arguments = (estimator, optimizer, jnp.asarray(count // bundle), bundle)
                carry, *rows = _compiled_updates(arguments, carry)
            else:
                count = 1
                carry, *rows = _host_update(estimator, optimizer, carry)
            floats, integers = (np.asarray(r)[:count] for r in rows)
            elapsed = time.perf_counter() - began
            size = int(min(DISPATCH_UPDATES, count * DISPATCH_SECONDS / max(elapsed, 1e-9)))

            columns = log.add(floats, integers, elapsed)
            theta = carry[0]
            state = TrainState(carry[2], carry[1], *log.position())
            evals = None
            if eval_fn is not None and state.update == chunks.stop(state.update - 1):
                evals = log.evaluate(eval_fn, hosts.own(_copy(theta)), state.update, state.seconds)
            if callback is not None:
                stop = bool(callback(Progress(theta, state, last, columns, evals)))
        signalled = interrupted()
    stopped = signalled or state.update < last
    return TrainResult(carry[0], state, log.history(), interrupted=stopped, signalled=signalled)


def _copy(tree: PyTree) -> PyTree:
    def copy(leaf):
        if isinstance(leaf, np.ndarray):
            return leaf.copy()
        return jnp.copy(leaf) if eqx.is_array(leaf) else leaf

    return jax.tree.map(copy, tree)


class _Chunks:
    """Which updates are made by one call of compiled code.

    Updates are bundled from evaluation to evaluation; what is left before one is made singly. How
    an update is made so depends on its number alone, not on where a run was continued.
    """

    def __init__(self, estimator: Estimator, eval_every: int | None, last: int):
        self.eval_every, self.last = eval_every, last
        largest = 1
        if jax.default_backend() != "cpu":
            largest = max(1, min(BUNDLE, BUNDLE_STEPS // estimator.window, eval_every or BUNDLE))
        divisors = [n for n in range(1, largest + 1) if (eval_every or n) % n == 0]
        self.bundle = divisors[-1] if 4 * divisors[-1] >= largest else largest

    def stop(self, update: int) -> int:
        """The first update after this one at which a call must end."""
        every = self.eval_every
        return self.last if every is None else min(self.last, (update // every + 1) * every)

    def next(self, update: int) -> tuple[int, int]:
        """The size of a bundle, and how many updates may be made with it."""
        done = update if self.eval_every is None else update % self.eval_every
        left = self.stop(update) - update
        to_next_bundle = -done % self.bundle
        if to_next_bundle == 0 and left >= self.bundle:
            return self.bundle, left // self.bundle * self.bundle
        return 1, min(left, to_next_bundle) or left

    def bundles(self, update: int) -> set[int]:
        """All sizes of bundles that will be used."""
        sizes: set[int] = set()
        while update < self.last and len(sizes) < 2:
            size, most = self.next(update)
            sizes.add(size)
            update += most
        return sizes


@eqx.filter_jit(donate="all-except-first")
def _compiled_updates(arguments, carry):
    estimator, optimizer, bundles, bundle = arguments

    def one_update(i, loop):
        carry, floats, integers = loop
        estimate = compute_estimate(estimator, carry[0], carry[2])
        theta, optimizer_state = apply_gradient(
            optimizer, carry[0], carry[1], estimate.grad, estimate.loss
        )
        carry = (theta, optimizer_state, estimate.state)
        more_floats, more_integers = _report(*_reported(estimate))
        return carry, floats.at[i].set(more_floats), integers.at[i].set(more_integers)

    def one_bundle(i, loop):
        body = lambda j, loop: one_update(i * bundle + j, loop)  # noqa: E731
        return jax.lax.fori_loop(0, bundle, body, loop)

    rows = jnp.zeros((DISPATCH_UPDATES, 2)), jnp.zeros((DISPATCH_UPDATES, 7), jnp.int32)
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


def apply_gradient(optimizer, theta, optimizer_state, grad, loss):
    """Parameters and optimizer state after one update."""
    # Some optimizers want to know the loss, too. Wrapped here, where it is traced: a wrapper made
    # for every run would be a new function, and compile anew.
    update = optax.with_extra_args_support(optimizer).update
    change, optimizer_state = update(grad, optimizer_state, theta, value=loss)
    return optax.apply_updates(theta, change), optimizer_state


_apply_compiled = eqx.filter_jit(apply_gradient)


def _reported(estimate: Estimate) -> tuple:
    return estimate.grad, estimate.loss, estimate.info, estimate.spent.unused


@eqx.filter_jit
def _report(grad: Theta, loss: Array, info: Info, unused: Array) -> tuple[Array, Array]:
    """The numbers that are kept of an update, in two rows: each costs a write to memory."""
    norm = jnp.sqrt(squared_norm(grad))
    start = info.window_start[jnp.maximum(info.first_nonfinite, 0)]
    floats = jnp.stack([loss.astype(float), norm.astype(float)])
    counts = [info.nonfinite, info.first_nonfinite, start, info.restarted, info.late]
    return floats, jnp.stack([*counts, *unused])


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
