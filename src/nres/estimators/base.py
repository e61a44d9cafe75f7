"""`Estimator`: the part that all methods share, from unlocking to averaging."""

import abc
import dataclasses
import functools
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from nres import execution
from nres.checks import array_bytes, as_key, check_fits, check_memory, memory, whole_number
from nres.estimators.computing import blank_state, compiled_estimate, unlock
from nres.estimators.nonfinite import raise_if_nonfinite
from nres.estimators.values import Estimate, EstimatorState
from nres.execution import ends_of, state_shapes
from nres.measured import all_learned
from nres.noise import Adaptation
from nres.placement import Local, Placement
from nres.pools.base import Pool, Window
from nres.pools.jax import as_pool
from nres.system import System, Theta, as_theta, check_finite, horizon_of, parameter_count
from nres.workers import EVEN, INDEPENDENT, Carry, Contributions, Response, Steps, Workers

# The bytes of one worker's key, position, loss and norm; a lower bound for one simulation.
_WORKER_BYTES, _SIMULATION_BYTES = 64, 1000
# The default placement.
LOCAL = Local()


class Estimator(eqx.Module):
    """Base class of gradient estimators, which turn windows of unrolls into gradients.

    A subclass implements `members`, `begin` (the values that workers carry) and `run` (the
    contributions of one window). The constructor's arguments are fields of the same names.

    Args:
        pool: An `nres.System`, or any `nres.Pool`.
        workers: N, the number of workers.
        nonfinite: The policy for a worker whose loss or gradient is not finite. `"skip"` averages
            over the other workers and counts the ones left out in `estimate.info.nonfinite`;
            `"raise"` raises `nres.NonFiniteError`.
        placement: The devices or processes that run the workers, an `nres.placement.Placement`.
    """

    pool: Pool
    workers: int = eqx.field(static=True)
    nonfinite: str = eqx.field(static=True)
    placement: Placement = eqx.field(static=True)

    window: eqx.AbstractVar[int]
    """W, the number of steps that each worker takes for one estimate."""
    # The windows of an episode at which workers start: `"even"` or `"independent"`. Without an
    # annotation this is not a field: subclasses may add one.
    phases = EVEN
    # True if estimates update the measured parts of `theta`; subclasses set it.
    measures = False

    def __init__(
        self,
        pool: System | Pool,
        *,
        workers: int,
        nonfinite: str = "skip",
        placement: Placement = LOCAL,
    ):
        self.pool = as_pool(pool)
        self.workers = whole_number("workers", workers)
        self.nonfinite = nonfinite
        self.placement = placement

    @property
    @abc.abstractmethod
    def members(self) -> int:
        """The number of unrolls per worker."""

    @abc.abstractmethod
    def begin(self, theta: Theta, workers: Workers) -> Carry | None:
        """Return what workers carry before their first window; `None` if they carry nothing."""

    @abc.abstractmethod
    def run(
        self,
        theta: Theta,
        workers: Workers,
        carry: Carry | None,
        length: Int[Array, " workers"] | None,
    ) -> tuple[Carry | None, Response]:
        """Run one window of some of the workers.

        Args:
            theta: The parameters.
            workers: The positions of these workers.
            carry: Their carry, from `begin` or from the last window.
            length: The number of steps that each worker takes; `None` means W for all.

        Returns:
            The carry of the workers after the window, and the contribution of each.
        """

    def __hash__(self) -> int:
        # Equinox would hash the arrays and fail; with this, `jax.jit(estimator.estimate)` works.
        return hash(jax.tree.structure(self))

    def __check_init__(self) -> None:
        check_fits(self.window, horizon_of(self.pool))
        if self.nonfinite not in ("skip", "raise"):
            raise ValueError(f'nonfinite must be "skip" or "raise", got {self.nonfinite!r}.')
        if self.phases not in (EVEN, INDEPENDENT):
            raise ValueError(f'phases must be "even" or "independent", got {self.phases!r}.')
        if not isinstance(self.placement, Placement):
            raise TypeError(
                "placement must be an nres.placement.Placement, for example "
                f"nres.placement.Local(); got {type(self.placement).__name__}."
            )
        self.placement.check(self)

    @property
    def horizon(self) -> int:
        """T, the number of steps in an episode."""
        return self.pool.horizon

    @property
    def windows(self) -> int:
        """The number of windows in an episode; the last is shorter if W does not divide T."""
        return -(-self.horizon // self.window)

    @property
    def scale(self) -> float:
        """n/T, the weight of a window's losses, where n is the number of windows per episode.

        If episodes differ in length, it is the mean of n divided by the mean of T.
        """
        lengths = self.pool.lengths
        if lengths is None:
            return self.windows / self.horizon
        return lengths.windows(self.window) / lengths.mean()

    def shares(self, first: Int[np.ndarray, " bounds"]) -> Float[np.ndarray, " parts"]:
        """Return the share of workers in each part of an episode, in the long run.

        Args:
            first: The first window of each part, and the number of windows.
        """
        lengths = self.pool.lengths
        if lengths is None:
            return np.diff(first) / self.windows
        return np.diff(lengths.before(self.window)[first])

    def episode_ends(self, workers: Workers) -> int | Int[Array, " workers"]:
        """Return the length of each worker's episode."""
        return ends_of(self.pool, workers.episode_keys(), workers.episode == 0, self.window)

    @property
    def most_steps(self) -> Steps:
        """The maximal number of unroll steps of one estimate."""
        return Steps(self.members * self.workers * self.window, self.window)

    @property
    def traceable(self) -> bool:
        """True if JAX can trace a whole estimate."""
        return self.placement.can_trace(self.pool)

    def block_size(self, theta: Theta) -> int:
        """Return the number of workers that run at the same time on one device."""
        return execution.block_size(parameter_count(theta))

    def group_size(self, theta: Theta) -> int:
        """Return the number of workers whose noises are drawn jointly."""
        return 1

    def noise_numbers(self, workers: Workers) -> Int[Array, " workers"] | None:
        """Return the index of the noise that alone determines each worker's contribution.

        It is `None` if several noises do, or none.
        """
        return None

    def linear_gain(self, theta: Theta) -> float | None:
        r"""Return $E\lVert g_i \rVert^2 / \lVert g \rVert^2$ of a loss that is linear in the noise.

        It is `None` if this ratio depends on the loss.
        """
        return None

    @property
    def vectorisable(self) -> bool:
        """True if JAX can run several seeds in one program."""
        return self.traceable and self.placement.vectorises

    def shaped(self, contributions: Contributions) -> Contributions:
        """Return the contributions of all workers as the estimator scales them."""
        return contributions

    def at(self, update: Int[Array, ""]) -> "Estimator":
        """Return the estimator with its schedules evaluated at an update."""
        return self

    def begin_adaptation(self) -> Adaptation | None:
        """Return the sigma before the first estimate, if it adapts; `None` if it does not."""
        return None

    def adapted(self, adaptation: Adaptation | None) -> "Estimator":
        """Return the estimator with the present value of a sigma that adapts."""
        return self

    def adapt(
        self,
        adaptation: Adaptation | None,
        start: Int[Array, " workers"],
        contributions: Contributions,
    ) -> Adaptation | None:
        """Return what `adaptation` becomes after a window that began at `start`."""
        return adaptation

    def rescaled(self, start: Int[Array, " workers"], scale: Any) -> "Estimator":
        """Return the estimator that regenerates the noise of workers at `start`.

        Args:
            start: The step of the episode at which each worker is.
            scale: The scale of each worker's noise in its last window.
        """
        return self

    def unroll(
        self,
        state: Any,
        thetas: PyTree,
        workers: Workers,
        window: int,
        length: Int[Array, " workers"] | None = None,
    ) -> Window:
        """Advance the workers by one window of this estimator's pool, of any kind.

        Args:
            state: The `state` of the last window; `None` begins a new episode for every worker.
            thetas: A pytree like `theta` with axes `(members, workers)` in front of every leaf.
            workers: The positions of the workers.
            window: The maximal number of steps; 0 only initialises.
            length: The number of steps of each worker, as for `run`.
        """
        keys, start = workers.episode_keys(), workers.start
        return self.pool.advance_arrays(state, thetas, keys, start, window, length)

    def with_workers(self, workers: int) -> "Estimator":
        """Return the same estimator with another number of workers."""
        return dataclasses.replace(self, workers=workers)

    def init(self, theta: PyTree, key: Any, *, update: int = 0) -> EstimatorState:
        """Unlock the workers: place them at windows of an episode, as `phases` says.

        Each worker is unrolled from step 0 to its starting point at `theta`, with its own noise, as
        in the algorithm *Training using Online Evolution Strategies* of Li et al., NeurIPS 2023.

        Args:
            theta: The parameters, a pytree of floating-point arrays.
            key: A JAX random key, which determines all randomness of the run.
            update: The number of updates already made, at which a schedule of sigma continues.

        Returns:
            The state for the first call of `estimate`.
        """
        return self._unlocked(theta, key, update)[0]

    def unlock(self, theta: PyTree, key: Any, *, update: int = 0) -> tuple[EstimatorState, Steps]:
        """Do what `init` does, and also return the number of unroll steps that it took."""
        state, total, sequential = self._unlocked(theta, key, update)
        total = int(np.asarray(total).sum(dtype=np.int64))
        return state, Steps(total, int(sequential))

    def _unlocked(self, theta: PyTree, key: Any, update: int) -> tuple[EstimatorState, Any, Any]:
        theta = self.check(theta)
        return unlock(self, theta, as_key(key), jnp.asarray(update, jnp.int32))

    def check(self, theta: PyTree, seeds: int = 1) -> Theta:
        """Return `theta` as arrays; raise an error if it does not fit the pool or the memory.

        Args:
            theta: The parameters.
            seeds: The number of seeds that are in memory at the same time.
        """
        theta = as_theta(theta)
        check_finite(theta)
        if not self.measures:
            all_learned(type(self).__name__, theta, "an evolution strategy, for example NRES")
        self.pool.check(theta)
        self._check_memory(theta, seeds)
        return theta

    def _check_memory(self, theta: Theta, seeds: int) -> None:
        """Raise a `MemoryError` if the workers' carry does not fit into memory."""
        needed, what = self.workers * _WORKER_BYTES, f"{self.workers:,} workers"
        if seeds > 1:
            what = f"{seeds:,} seeds of {what}"
        if not self.traceable:
            check_memory(needed + self.workers * self.members * _SIMULATION_BYTES, what)
            return
        lane = array_bytes(theta) + array_bytes(state_shapes(self.pool, theta))
        # An upper bound that includes tangents; the exact size takes longer to compute.
        if 3 * seeds * self.workers * self.members * lane < (memory() or math.inf):
            return
        begin = functools.partial(blank_state, self)
        carried = array_bytes(jax.eval_shape(begin, theta, jax.random.key(0)))
        check_memory(seeds * (needed + carried) // self.placement.multiple, what)

    def estimate(self, theta: PyTree, state: EstimatorState) -> Estimate:
        """Compute one gradient estimate at `theta`, from one window of every worker.

        The call may be part of a function that you compile with `jax.jit`.

        Args:
            theta: The parameters, of the same structure and shapes as for `init`.
            state: The state from `init` or from the last estimate.

        Returns:
            The gradient, the loss, the next state, step counts and diagnostics.
        """
        estimate = compiled_estimate(self, as_theta(theta), state)
        if self.nonfinite == "raise":
            estimate = raise_if_nonfinite(estimate)
        return estimate
