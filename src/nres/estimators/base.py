"""What every estimator shares: workers, unlocking, averaging, step counts, non-finite values."""

import abc
import dataclasses
import functools
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Int, Key, PyTree

from nres.checks import array_bytes, check_memory, memory, whole_number
from nres.estimators.averaging import average
from nres.estimators.blocks import Carry, over_blocks
from nres.estimators.mesh import begin_on, on_all, run_on
from nres.estimators.values import (
    Contributions,
    Estimate,
    EstimatorState,
    Steps,
    Workers,
    worker_keys,
)
from nres.pools.base import Pool
from nres.pools.jax import JaxPool, never_ends
from nres.system import Theta, as_theta, check_finite, parameter_count

# Keys, positions, losses and norms of one worker; one simulation, at the very least.
_WORKER_BYTES, _SIMULATION_BYTES = 64, 1000


class NonFiniteError(FloatingPointError):
    """A worker's contribution was not finite and the policy is `"raise"`."""


class Estimator(eqx.Module):
    """How a gradient comes out of windows of unrolls.

    A subclass says what is carried (`_begin`) and what one window contributes (`_run`).
    """

    pool: eqx.AbstractVar[Pool]
    horizon: eqx.AbstractVar[int]
    window: eqx.AbstractVar[int]
    workers: eqx.AbstractVar[int]
    members: eqx.AbstractVar[int]
    nonfinite: eqx.AbstractVar[str]

    @abc.abstractmethod
    def _begin(self, theta: Theta, workers: Workers) -> Carry | None:
        """What is carried before the first window."""

    @abc.abstractmethod
    def _run(
        self,
        theta: Theta,
        update: Int[Array, ""],
        workers: Workers,
        carry: Carry | None,
        length: Int[Array, "workers"] | None,
    ) -> tuple[Carry | None, Contributions]:
        """One window of some of the workers; `length` as for `Pool.advance`."""

    def _window(
        self,
        theta: Theta,
        workers: Workers,
        carry: Carry | None,
        update: Int[Array, ""],
        length: Int[Array, "workers"] | None,
    ) -> tuple[Carry | None, Contributions]:
        if not isinstance(self.pool, JaxPool):
            return self._run(theta, update, workers, carry, length)
        if (mesh := self.pool.mesh) is None:
            return _in_blocks((self, theta, update), workers, carry, length)
        return run_on(mesh, _in_blocks, (self, theta, update), workers, carry, length)

    @property
    def windows(self) -> int:
        """How many windows an episode has; the last is shorter where W does not divide T."""
        return -(-self.horizon // self.window)

    def with_workers(self, workers: int) -> "Estimator":
        """The same estimator with another number of workers."""
        workers, _ = check_settings(self.pool, workers, self.window, self.nonfinite)
        other = object.__new__(type(self))
        for field in dataclasses.fields(self):
            value = workers if field.name == "workers" else getattr(self, field.name)
            object.__setattr__(other, field.name, value)
        return other

    def init(self, theta: PyTree, key: Any, *, update: int = 0) -> EstimatorState:
        """Workers at independent, uniformly distributed windows of their first episode.

        Worker i is really unrolled to its starting point at `theta`, with its own noise, as in
        algorithm [alg:oes_training_algorithm] of the paper; `state.unlock_steps` says what that
        cost.

        **Arguments:**

        - `theta`: the parameters, a pytree of floating-point arrays.
        - `key`: a JAX random key, from which everything random in the run derives.
        - `update`: the number of updates made before, where a schedule of sigma goes on.
        """
        theta = self.check(theta)
        init = _init_compiled if isinstance(self.pool, JaxPool) else _init
        return init(self, theta, as_key(key), jnp.asarray(update, jnp.int32))

    def check(self, theta: PyTree) -> Theta:
        """Return `theta` as arrays; refuse what cannot be unrolled, or not in this memory."""
        theta = as_theta(theta)
        check_finite(theta)
        self.pool.check(theta)
        self._check_memory(theta)
        return theta

    def _check_memory(self, theta: Theta) -> None:
        """Refuse so many workers that what they carry does not fit into memory."""
        needed, what = self.workers * _WORKER_BYTES, f"{self.workers:,} workers"
        if not isinstance(pool := self.pool, JaxPool):
            check_memory(needed + self.workers * self.members * _SIMULATION_BYTES, what)
            return
        key = jax.random.key(0)
        lane = array_bytes(theta) + array_bytes(jax.eval_shape(pool.system.init, theta, key))
        # A bound on everything, tangents included. To know better takes longer.
        if 3 * self.workers * self.members * lane < (memory() or math.inf):
            return
        begin = functools.partial(blank_state, self)
        carried = array_bytes(jax.eval_shape(begin, theta, key))
        mesh = mesh_of(pool)
        devices = 1 if mesh is None else mesh.size
        check_memory((needed + carried) // devices, what)

    def estimate(self, theta: PyTree, state: EstimatorState) -> Estimate:
        """One gradient estimate at `theta`: every worker runs one window.

        May be called in a function that is itself compiled.
        """
        theta = as_theta(theta)
        compute = _compute_compiled if isinstance(self.pool, JaxPool) else compute_estimate
        estimate = compute(self, theta, state)
        if self.nonfinite == "raise":
            estimate = _raise_if_nonfinite(estimate)
        return estimate


def blank_state(estimator: Estimator, theta: Theta, key: Key[Array, ""]) -> EstimatorState:
    """Every worker at the beginning of its first episode, before they are brought apart."""
    count = estimator.workers
    zeros, zero = jnp.zeros(count, jnp.int32), jnp.zeros((), jnp.int32)
    workers = Workers(worker_keys(key, count), zeros, zeros)
    if (mesh := mesh_of(estimator.pool)) is not None:
        begin = lambda given, workers: given[0]._begin(given[1], workers)  # noqa: E731
        carry = begin_on(mesh, begin, (estimator, theta), workers)
    else:
        carry = estimator._begin(theta, workers)
    return EstimatorState(workers, carry, zero, zeros, zero, _signature(estimator, theta))


def _in_blocks(
    given: tuple[Estimator, Theta, Int[Array, ""]],
    workers: Workers,
    carry: Carry | None,
    length: Int[Array, "workers"] | None,
) -> tuple[Carry | None, Contributions]:
    """One window of all workers that a device has."""
    estimator, theta, update = given
    run = functools.partial(estimator._run, theta, update)
    size = parameter_count(theta)
    return over_blocks(run, workers, carry, length, workers.start.shape[0], size)


class Unlocking(eqx.Module):
    """A round that brings workers to their starting points: its estimate is to be discarded."""

    on: Bool[Array, ""]
    """True in such a round, false in an update."""
    moving: Bool[Array, "workers"]
    """The workers that run a window; all of them in an update."""
    counts: bool = eqx.field(static=True, default=True)
    """If true, the steps of the others are left out of the count. That costs a sum over all
    unrolls in every update, and need not be where the count is known beforehand."""


def starting_points(
    estimator: Estimator, theta: Theta, key: Key[Array, ""]
) -> tuple[EstimatorState, Int[Array, "workers"]]:
    """Every worker at step 0, and the number of windows it is from there to its starting point."""
    state = blank_state(estimator, theta, key)
    keys = state.workers.key
    # A number that no episode within reach has.
    offset_keys = jax.vmap(jax.random.fold_in, in_axes=(0, None))(keys, jnp.uint32(2**32 - 1))
    offset = jax.vmap(lambda k: jax.random.randint(k, (), 0, estimator.windows, jnp.int32))(
        offset_keys
    )
    return state, on_all(mesh_of(estimator.pool), offset)


def steps_are_known(estimator: Estimator, state: EstimatorState) -> bool:
    """Tell if every worker takes exactly W steps in every window."""
    divides = estimator.horizon % estimator.window == 0
    return isinstance(estimator.pool, JaxPool) and divides and never_ends(state.carry)


def _init(
    estimator: Estimator, theta: Theta, key: Key[Array, ""], update: Int[Array, ""]
) -> EstimatorState:
    state, offset = starting_points(estimator, theta, key)
    state = eqx.tree_at(lambda s: s.update, state, update)
    rounds = offset.max()

    def one_round(i, loop):
        state, total, sequential = loop
        # Workers start late and arrive together, so the waiting ones are all at step 0: whatever
        # a pool does with them meanwhile is undone when their episode begins.
        unlocking = Unlocking(jnp.ones((), bool), i >= rounds - offset)
        estimate = compute_estimate(estimator, theta, state, unlocking)
        spent = estimate.spent
        longest = spent.bound.sequential - spent.unused[1]
        return estimate.state, total + estimate.info.steps, sequential + longest

    loop = (state, state.unlocked_total, state.unlocked_sequential)
    if isinstance(estimator.pool, JaxPool):
        loop = jax.lax.fori_loop(0, rounds, one_round, loop)
    else:
        for i in range(int(rounds)):
            loop = one_round(i, loop)
    state, total, sequential = loop
    total = on_all(mesh_of(estimator.pool), total)
    return unlocked(state, total, sequential)


def unlocked(
    state: EstimatorState, total: Int[Array, "workers"], sequential: Int[Array, ""]
) -> EstimatorState:
    """The state with the number of steps that brought its workers to their starting points."""
    return EstimatorState(
        state.workers, state.carry, state.update, total, sequential, state.signature
    )


def compute_estimate(
    estimator: Estimator, theta: Theta, state: EstimatorState, unlocking: Unlocking | None = None
) -> Estimate:
    """`Estimator.estimate` without its own compilation and without the non-finite policy.

    With `unlocking` it may be a round that only some of the workers take part in, and that is
    not counted as an update.
    """
    if state.signature != (signature := _signature(estimator, theta)):
        raise ValueError(
            "theta or estimator differs from the one the state was made for by `init`: "
            f"{_describe(signature)} instead of {_describe(state.signature)}."
        )
    length, made = _length(state.workers, estimator.window, estimator.horizon), jnp.int32(1)
    if unlocking is not None:
        length = jnp.where(unlocking.moving, length, 0)
        made = jnp.where(unlocking.on, 0, made)
    carry, contributions = estimator._window(
        theta, state.workers, state.carry, state.update, _as_given(length, estimator)
    )
    if unlocking is not None and unlocking.counts:
        steps = jnp.where(unlocking.moving, contributions.steps, 0)
        contributions = eqx.tree_at(lambda c: c.steps, contributions, steps)
    bound = Steps(estimator.members * estimator.workers * estimator.window, estimator.window)
    grad, loss, spent, info = average(contributions, state.workers.start, bound, theta)
    if contributions.late is not None:
        length = jnp.where(contributions.late, 0, length)  # they are still where they were
    state = EstimatorState(
        state.workers.advance(length, estimator.horizon),
        carry,
        state.update + made,
        state.unlocked_total,
        state.unlocked_sequential,
        state.signature,
    )
    return Estimate(grad, loss, state, spent, info)


_init_compiled = eqx.filter_jit(_init)
starting_points_compiled = eqx.filter_jit(starting_points)
_compute_compiled = eqx.filter_jit(compute_estimate)


def check_settings(pool: Pool, workers: int, window: int, nonfinite: str) -> tuple[int, int]:
    """Refuse what no estimator can do; return the numbers of workers and of steps in a window."""
    workers, window = whole_number("workers", workers), whole_number("window", window)
    if window > pool.horizon:
        raise ValueError(
            f"window must be at most the horizon, got window={window} and horizon={pool.horizon}."
        )
    mesh = mesh_of(pool)
    devices = 1 if mesh is None else mesh.size
    if workers % devices:
        below = workers // devices * devices
        near = f"{below} or {below + devices}" if below else f"{devices}"
        raise ValueError(
            f"{devices} devices must have equally many workers, and {workers} is no multiple of "
            f"that: take {near}."
        )
    if nonfinite not in ("skip", "raise"):
        raise ValueError(f'nonfinite must be "skip" or "raise", got {nonfinite!r}.')
    return workers, window


def check_period(period: int, window: int) -> None:
    """Refuse a period after which no window starts."""
    if whole_number("period", period, 0) < 1 or period % window:
        raise ValueError(
            f"period must be a multiple of the window, got period={period} and window={window}."
        )


def nonfinite_message(count: int, worker: int, start: int, update: int) -> str:
    """Where something stopped being finite, in words."""
    return (
        f"{count} worker(s) gave a non-finite loss or gradient in update {update}; the first is "
        f"worker {worker}, in the window from step {start} of its episode. Smaller steps "
        "(learning rate, sigma) or a bounded loss may help."
    )


def _raise_if_nonfinite(estimate: Estimate) -> Estimate:
    info = estimate.info
    if isinstance(info.nonfinite, jax.core.Tracer):
        message = "a worker gave a non-finite loss or gradient"
        grad = eqx.error_if(estimate.grad, info.nonfinite > 0, message)
        return eqx.tree_at(lambda e: e.grad, estimate, grad)
    if count := int(info.nonfinite):
        worker = int(info.first_nonfinite)
        start = int(info.window_start[worker])
        update = int(estimate.state.update)
        raise NonFiniteError(nonfinite_message(count, worker, start, update))
    return estimate


def mesh_of(pool: Pool) -> Mesh | None:
    """The devices that a pool shares its workers among, if there are several."""
    return pool.mesh if isinstance(pool, JaxPool) else None


def _length(workers: Workers, window: int, horizon: int) -> Int[Array, "workers"]:
    """A window never crosses the end of an episode."""
    return jnp.minimum(window, horizon - workers.start)


def _as_given(length: Int[Array, "workers"], estimator: Estimator) -> Any:
    """Lengths as the pool wants them: compiled code does without where all are the same."""
    if isinstance(estimator.pool, JaxPool) and estimator.horizon % estimator.window == 0:
        return None
    return length


def _signature(estimator: Estimator, theta: Theta) -> Any:
    """What must not change between `init` and `estimate`."""
    leaves, structure = jax.tree.flatten(theta)
    names = ("workers", "window", "period", "horizon")
    settings = tuple((name, getattr(estimator, name)) for name in names if hasattr(estimator, name))
    kind = (type(estimator).__name__, estimator.members, settings)
    return kind, structure, tuple((leaf.shape, str(leaf.dtype)) for leaf in leaves)


def _describe(signature: Any) -> str:
    (name, _, settings), structure, leaves = signature
    options = ", ".join(f"{option}={value}" for option, value in settings)
    arrays = ", ".join(f"{dtype}{list(shape)}" for shape, dtype in leaves)
    return f"{name}({options}) with {structure} of {arrays}"


def as_key(key: Any) -> Key[Array, ""]:
    """A JAX random key, old style or new, as a new-style one."""
    if isinstance(key, jax.Array | np.ndarray):
        key = jnp.asarray(key)
        if jnp.issubdtype(key.dtype, jnp.uint32) and key.ndim == 1:
            key = jax.random.wrap_key_data(key)
        if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) and key.ndim == 0:
            return key
    raise TypeError(f"key must be one JAX random key, such as jax.random.key(0); got {key!r}.")
