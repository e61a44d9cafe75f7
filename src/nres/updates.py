"""Updates: many in one call of compiled code, or one after another in Python."""

import functools
import time
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Int, PyTree

from nres import diagnostics, gpu, multihost
from nres.errors import first_line
from nres.estimators.base import Estimator
from nres.estimators.computing import compute_estimate, starting_points, steps_are_known
from nres.estimators.values import PARTS, Estimate, EstimatorState, Unlocking
from nres.execution import choose
from nres.jaxprs import count_operations, decides_in_loop
from nres.measured import joined, learned
from nres.system import Theta
from nres.tracing import Lifted, lift
from nres.workers import Steps, worker_keys

# Compiled code returns to Python after about this many seconds, and after at most this many
# updates. Each return has a cost: on a CPU, temporary memory is allocated again.
DISPATCH_SECONDS = 0.5
DISPATCH_UPDATES = 4096
# On an accelerator, every iteration of a loop of unknown length waits for the host. Updates are
# therefore grouped into bundles of known length: at most this many updates, and about this many
# sequential steps.
BUNDLE = 32
BUNDLE_STEPS = 3200


# The numbers that are recorded of every update. Diagnostics follow the floats, and the numbers that
# the placement reports the integers. All are in one row, because each row costs a write to memory:
# the bits of the floats, and then the integers.
_FLOATS = ("loss", "grad_norm")
_INTEGERS = (
    "nonfinite",
    "first_nonfinite",
    "first_nonfinite_start",
    "unused_total",
    "unused_sequential",
)

Rows = dict[str, np.ndarray]
"""The record of some updates: one column for each recorded number, with axes (updates, seeds) if
there are several seeds."""
Position = tuple[Theta, PyTree, EstimatorState]
"""Parameters, optimizer state and estimator state; with an axis of seeds in front if there are
several."""


class Chunks:
    """The grouping of updates into calls of compiled code.

    Updates are bundled between two evaluations; the remainder before an evaluation runs one by
    one. The grouping of an update depends only on its number, not on where a run was resumed.
    """

    def __init__(self, estimator: Estimator, eval_every: int | None, last: int):
        self.eval_every, self.last = eval_every, last
        largest = 1
        if jax.default_backend() != "cpu":
            largest = max(1, min(BUNDLE, BUNDLE_STEPS // estimator.window, eval_every or BUNDLE))
        divisors = [n for n in range(1, largest + 1) if (eval_every or n) % n == 0]
        self.bundle = divisors[-1] if 4 * divisors[-1] >= largest else largest

    def stop(self, update: int) -> int:
        """Return the first update after this one at which a call must end."""
        every = self.eval_every
        return self.last if every is None else min(self.last, (update // every + 1) * every)

    def next(self, update: int) -> tuple[int, int]:
        """Return the size of the next bundle, and the number of updates to make in such bundles."""
        done = update if self.eval_every is None else update % self.eval_every
        left = self.stop(update) - update
        to_next_bundle = -done % self.bundle
        if to_next_bundle == 0 and left >= self.bundle:
            return self.bundle, left // self.bundle * self.bundle
        return 1, min(left, to_next_bundle) or left

    def bundles(self, update: int) -> set[int]:
        """Return all bundle sizes that the rest of the run uses."""
        sizes: set[int] = set()
        while update < self.last and len(sizes) < 2:
            size, most = self.next(update)
            sizes.add(size)
            update += most
        return sizes


class CompiledUpdates:
    """Many updates, or rounds that unlock the workers, in one call of compiled code.

    Updates and unlocking rounds are one program, which is compiled once: both mostly consist of
    the same window. Several seeds are one program, too, vectorised over the seeds.

    Args:
        estimator: The estimator.
        update: The optimizer's update, from `lift_update`.
        chunks: The grouping of updates into calls.
        seeds: The number of seeds; `None` for one run without an axis of seeds.
    """

    def __init__(
        self, estimator: Estimator, update: Lifted, chunks: Chunks, seeds: int | None = None
    ):
        self.estimator, self.update, self.chunks, self.seeds = estimator, update, chunks, seeds
        self.run = _PLAIN
        # While updating, no worker waits.
        shape = (estimator.workers,) if seeds is None else (seeds, estimator.workers)
        self.updating = (False, np.int32(0), np.zeros(shape, np.int32))

    def start(
        self, theta: Theta, optimizer_state: PyTree, key: Array, phase: Callable[[str], Any]
    ) -> tuple[Position, Steps | list[Steps]]:
        """Compile, run the workers to their starting points, and return the steps that took.

        With several seeds, `theta` and `optimizer_state` are those of one, and the steps are a
        list. The key of seed i is `jax.random.fold_in(key, i)`.
        """
        if self.seeds is None:
            state, offset = starting_points(self.estimator, theta, key)
        else:
            keys = worker_keys(key, self.seeds)
            begin = (self.estimator, theta, optimizer_state, keys)
            theta, optimizer_state, state, offset = _starting_points_of_seeds(*begin)
        position = self.compile((theta, optimizer_state, state), 0)
        steps = np.zeros((2, *offset.shape[:-1]), np.int64)
        if self.estimator.windows > 1:
            phase("unlocking")
            position, steps = self._unlock(np.asarray(offset), position)
        if self.seeds is None:
            return position, Steps(*steps.tolist())
        return position, [Steps(*pair) for pair in steps.T.tolist()]

    def compile(self, position: Position, update: int) -> Position:
        """Compile everything that a run from this update on needs."""
        *learner, state = position
        # As updates return them: another layout would be another program.
        arrays, rest = eqx.partition(learner, lambda x: isinstance(x, jax.Array | np.ndarray))
        position = (*eqx.combine(self.estimator.placement.replicate(arrays), rest), state)
        if gpu.has_nvidia() and gpu.knows_options():  # CPUs ignore the options
            count = _operations_of_graph(self._arguments(0, self.chunks.bundle), position)
            self.run = _IN_ONE_GRAPH if count <= gpu.MOST_OPERATIONS else _CONCURRENT
        for bundle in self.chunks.bundles(update):
            position, _ = self.run(self._arguments(0, bundle), position)  # 0 updates
        return position

    def advance(
        self, position: Position, update: int, size: int, stopped: np.ndarray | None = None
    ) -> tuple[Position, Rows]:
        """Make about `size` updates, and at least one.

        Args:
            position: The position, whose memory is used for the result.
            update: The number of updates made so far.
            size: The number of updates to make.
            stopped: The seeds whose parameters stay as they are; `None` for one run.
        """
        bundle, most = self.chunks.next(update)
        bundles = max(1, min(size, most) // bundle)
        arguments = self._arguments(bundles, bundle, stopped=stopped)
        position, record = self.run(arguments, position)
        return position, named_rows(self.estimator, bundles * bundle, record)

    def _arguments(
        self, bundles: int, bundle: int, unlocking: Any = None, stopped: np.ndarray | None = None
    ) -> tuple:
        given = None
        if self.estimator.windows > 1:
            given = self.estimator.placement.replicate(unlocking or self.updating)
        if self.seeds is not None:
            stopped = np.zeros(self.seeds, bool) if stopped is None else stopped
            stopped = self.estimator.placement.replicate(stopped)
        return self.estimator, self.update, jnp.asarray(bundles), bundle, given, stopped

    def _unlock(self, offset: np.ndarray, position: Position) -> tuple[Position, np.ndarray]:
        """Run each worker `offset` windows to its starting point; return the steps that took.

        The steps are an array of total and sequential steps, with an axis of seeds at its end if
        there are several.
        """
        estimator, most = self.estimator, int(offset.max())
        sizes = sorted(self.chunks.bundles(0)) or [1]
        bundle = max([size for size in sizes if size <= most] or sizes[:1])
        # Workers start late and arrive together, so the first rounds may be empty.
        rounds = -(-most // bundle) * bundle
        bound = estimator.most_steps
        steps, done, size = np.zeros((2, *offset.shape[:-1]), np.int64), 0, 1
        while done < rounds:
            began = time.perf_counter()
            count = max(1, min(size, rounds - done, DISPATCH_UPDATES) // bundle)
            unlocking = (True, np.int32(done), (rounds - offset).astype(np.int32))
            arguments = self._arguments(count, bundle, unlocking)
            position, record = self.run(arguments, position)
            count *= bundle
            rows = named_rows(estimator, count, record)
            # In almost empty rounds this number is large and needs all 32 bits, without a sign.
            unused = [
                rows[name].astype(np.uint32).sum(axis=0, dtype=np.int64)
                for name in ("unused_total", "unused_sequential")
            ]
            steps += np.stack([count * b - u for b, u in zip(bound, unused, strict=True)])
            done += count
            size = next_size(count, time.perf_counter() - began)
            size, _ = multihost.agree_on(size, False)  # the clocks of the processes differ
        if steps_are_known(estimator, position[2]):
            total, longest = offset.sum(axis=-1, dtype=np.int64), offset.max(axis=-1)
            steps = estimator.window * np.stack([estimator.members * total, longest])
        return position, steps


class LoopedUpdates:
    """Updates one after another, for a pool or a placement that JAX cannot trace."""

    def __init__(self, estimator: Estimator, update: Lifted):
        self.estimator, self.update = estimator, update

    def start(
        self, theta: Theta, optimizer_state: PyTree, key: Array, phase: Callable[[str], Any]
    ) -> tuple[Position, Steps]:
        phase("unlocking")
        state, steps = self.estimator.unlock(theta, key)
        return (theta, optimizer_state, state), steps

    def compile(self, position: Position, update: int) -> Position:
        return position

    def advance(
        self, position: Position, update: int, size: int, stopped: np.ndarray | None = None
    ) -> tuple[Position, Rows]:
        theta, optimizer_state, state = position
        estimate = compute_estimate(self.estimator, theta, state)
        # Compiled code gets only what the update reads: a simulator's state stays outside.
        grad, loss = estimate.grad, estimate.loss.astype(float)
        theta, optimizer_state = _apply(self.update, grad, optimizer_state, learned(theta), loss)
        theta = joined(theta, estimate.measured)
        record = _report(*_reported(estimate))[None]
        return (theta, optimizer_state, estimate.state), named_rows(self.estimator, 1, record)


def updates_of(
    estimator: Estimator, update: Lifted, chunks: Chunks, seeds: int | None = None
) -> CompiledUpdates | LoopedUpdates:
    """Choose between compiled and looped updates; several seeds need compiled ones."""
    compiled = functools.partial(CompiledUpdates, chunks=chunks, seeds=seeds)
    kind: Any = choose(estimator, compiled, LoopedUpdates)
    return kind(estimator, update)


def next_size(count: int, elapsed: float) -> int:
    """Choose the number of updates of the next call from the count and seconds of the last."""
    return int(min(DISPATCH_UPDATES, count * DISPATCH_SECONDS / max(elapsed, 1e-9)))


@eqx.filter_jit
def _starting_points_of_seeds(estimator, theta, optimizer_state, keys):
    """Return the position of every seed at its start, and its `starting_points`."""

    def one_seed(key):
        return theta, optimizer_state, *starting_points(estimator, theta, key)

    return jax.vmap(one_seed)(keys)


def _many_updates(arguments, position):
    estimator, update, bundles, bundle, unlocking, stopped = arguments
    run = functools.partial(_run_updates, estimator, update, bundles, bundle)
    if stopped is None:
        return run(unlocking, None, position)
    # Seeds differ in their positions, and in the rounds for which their workers wait.
    axes = (None if unlocking is None else (None, None, 0), 0, 0)
    return jax.vmap(run, in_axes=axes, out_axes=(0, 1))(unlocking, stopped, position)


def _compiled(options: Mapping[str, Any] | None) -> Callable:
    jit: Any = eqx.filter_jit  # its signature leaves out the options of `jax.jit`
    return jit(_many_updates, donate="all-except-first", compiler_options=options)


_PLAIN, _CONCURRENT, _IN_ONE_GRAPH = map(_compiled, (None, gpu.CONCURRENT, gpu.ONE_GRAPH))


@eqx.filter_jit
def _operations_of_graph(arguments, position):
    """Count the operations in one bundle; the largest integer if it cannot be one graph.

    Compiled, so that equal programs are traced only once.
    """
    jaxpr = jax.make_jaxpr(functools.partial(_many_updates, arguments))(position)
    most = int(np.iinfo(np.int32).max)
    # Nothing can be decided inside a graph that stands for the iterations of a loop.
    count = most if decides_in_loop(jaxpr) else count_operations(jaxpr)
    return jnp.asarray(min(count, most), jnp.int32)


def _run_updates(estimator, update, bundles, bundle, unlocking, stopped, position):
    def one_update(i, loop):
        (theta, optimizer_state, state), record = loop
        now, frozen = None, stopped
        if unlocking is not None:
            on, first, delay = unlocking
            counts = not steps_are_known(estimator, state)
            now = Unlocking(on, first + i >= delay, counts)
            frozen = on if stopped is None else on | stopped
        estimate = compute_estimate(estimator, theta, state, now)
        loss = estimate.loss.astype(float)
        after = update(estimate.grad, optimizer_state, learned(theta), loss)
        after = (joined(after[0], estimate.measured), *after[1:])
        if frozen is not None:
            keep = lambda old, new: jnp.where(frozen, old, new)  # noqa: E731
            after = jax.tree.map(keep, (theta, optimizer_state), after)
        # Not `record.at[i].set(...)`, which would first check the index, in a kernel of its own.
        row = _report(*_reported(estimate))
        record = jax.lax.dynamic_update_index_in_dim(record, row, i, 0)
        return (*after, estimate.state), record

    def one_bundle(i, loop):
        body = lambda j, loop: one_update(i * bundle + j, loop)  # noqa: E731
        return jax.lax.fori_loop(0, bundle, body, loop)

    words = jnp.result_type(float).itemsize // 4
    columns = words * len(float_names(estimator)) + len(integer_names(estimator))
    record = jnp.zeros((DISPATCH_UPDATES, columns), jnp.int32)
    return jax.lax.fori_loop(0, bundles, one_bundle, (position, record))


def lift_update(optimizer: optax.GradientTransformation, theta: Theta) -> Lifted:
    """Trace one update of an optimizer: (gradient, state, `theta`, loss) to (`theta`, state).

    Equal optimizers, and optimizers that differ only in their numbers, share one compilation.

    Raises:
        ValueError: If the optimizer cannot update `theta`. The check computes nothing.
    """

    def update(grad, state, theta, loss):
        # Some optimizers also need the loss.
        extended = optax.with_extra_args_support(optimizer)
        change, state = extended.update(grad, state, theta, value=loss)
        return optax.apply_updates(theta, change), state

    theta = learned(theta)
    try:
        state = jax.eval_shape(optimizer.init, theta)
        return lift(update, theta, state, theta, jax.ShapeDtypeStruct((), jnp.result_type(float)))
    except Exception as error:
        raise ValueError(
            f"the optimizer cannot update theta: {type(error).__name__}: {first_line(error)}"
        ) from error


@eqx.filter_jit
def _apply(update: Lifted, grad, optimizer_state, theta, loss):
    return update(grad, optimizer_state, theta, loss)


def _reported(estimate: Estimate) -> tuple:
    return estimate.loss, estimate.info, estimate.spent.unused, estimate.report


@eqx.filter_jit
def _report(loss, info, unused, report) -> Int[Array, " columns"]:
    """Return the recorded numbers of an update, in the order of `named_rows`."""
    start = info.window_start[jnp.maximum(info.first_nonfinite, 0)]
    norm = jnp.sqrt(info.square)
    numbers = (loss, norm, *(getattr(info, name) for name in diagnostics.PER_UPDATE))
    floats = jnp.stack([x.astype(float) for x in numbers])
    floats = jnp.concatenate([floats, info.phase_power.astype(float)])
    integers = [info.nonfinite, info.first_nonfinite, start, *unused]
    integers += [] if report is None else [*report]
    bits = jax.lax.bitcast_convert_type(floats, jnp.int32).ravel()
    return jnp.concatenate([bits, jnp.stack(integers).astype(jnp.int32)])


def float_names(estimator: Estimator) -> tuple[str, ...]:
    """Return the names of the recorded floating-point numbers, in their order."""
    return (*_FLOATS, *diagnostics.columns(min(PARTS, estimator.windows)))


def integer_names(estimator: Estimator) -> tuple[str, ...]:
    """Return the names of the recorded integers, in their order."""
    return (*_INTEGERS, *estimator.placement.reports)


def named_rows(estimator: Estimator, count: int, record: Any) -> Rows:
    """Return the recorded numbers of the first `count` updates, by name."""
    rows, names = np.asarray(record)[:count], float_names(estimator)
    bits, integers = np.split(rows, [rows.shape[-1] - len(integer_names(estimator))], axis=-1)
    floats = np.ascontiguousarray(bits).view(jnp.result_type(float))
    columns = dict(zip(names, np.moveaxis(floats, -1, 0), strict=True))
    return columns | dict(zip(integer_names(estimator), np.moveaxis(integers, -1, 0), strict=True))
