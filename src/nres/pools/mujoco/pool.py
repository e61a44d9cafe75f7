"""`MujocoPool`: many simulations of a MuJoCo task, stepped on a native thread pool."""

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, ClassVar

import jax
import numpy as np
from jaxtyping import PyTree

from nres.acting import Actor
from nres.checks import checked_horizons, positive_number, whole_number
from nres.policies import AnyPolicy, as_policy
from nres.pools.base import Film, PoolError, Window
from nres.pools.mujoco.ant import Ant
from nres.pools.mujoco.half_cheetah import HalfCheetah
from nres.pools.mujoco.hopper import Hopper
from nres.pools.mujoco.humanoid import Humanoid
from nres.pools.mujoco.render import film_episode
from nres.pools.mujoco.swimmer import Swimmer
from nres.pools.mujoco.task import MujocoTask, require_mujoco
from nres.pools.mujoco.walker2d import Walker2d
from nres.pools.simulator import PolicyPool, act, begin_acting, flat_lanes, seed_of

TASKS: dict[str, Callable[[int], MujocoTask]] = {
    "swimmer": Swimmer,
    "halfcheetah": HalfCheetah,
    "hopper": Hopper,
    "walker2d": Walker2d,
    "ant": Ant,
    "humanoid": Humanoid,
}


class MujocoPool(PolicyPool):
    """Unrolls of a policy in a MuJoCo task; the loss of a step is the negative reward.

    A simulation is a row of numbers, so states can be copied, saved and continued exactly. Only
    lanes whose episode has not ended are stepped, and results do not depend on the number of
    threads. Actions are passed to the simulation unclipped: the control cost uses them as they
    are, and MuJoCo clamps them.

    Args:
        task: A name (swimmer, halfcheetah, hopper, walker2d, ant, humanoid) or a `MujocoTask`.
        policy: `"linear"`, `"mlp:64,64"`, `"gru:16"`, or any `nres.policies.Policy`.
        version: The version of gymnasium's environment to follow, 4 or 5.
        horizon: T, the number of steps in an episode.
        test_horizon: The number of steps in the episodes that `metrics` measures and `film` draws;
            by default, `horizon`. Shorter episodes in training try more perturbations per step.
        variance: The variance of a named policy's initial parameters.
        normalise: True to give the policy observations with mean 0 and variance 1. `theta` then
            has the entries `policy` and `observations`, the moments measured so far; an episode
            keeps those with which it began.
        shift: A number to subtract from the reward of every step in training, for example the bonus
            for not falling, so that a policy does not learn to stand still. `metrics` adds it
            again.
        threads: The number of threads; 0 uses all processors.

    Raises:
        ImportError: If gymnasium or mujoco is not installed.
        ValueError: If the task is unknown, or a number is out of bounds.

    Example:
        ```python
        pool = nres.pools.MujocoPool("swimmer", "linear")
        estimator = nres.NRES(pool, workers=30, window=100, sigma=0.3)
        theta = pool.initial_theta(jax.random.key(0))
        ```
    """

    one_processor_options: ClassVar[Mapping[str, Any]] = {"threads": 1}

    def __init__(
        self,
        task: str | MujocoTask,
        policy: str | AnyPolicy = "linear",
        *,
        version: int = 4,
        horizon: int = 1000,
        test_horizon: int | None = None,
        variance: float | None = None,
        normalise: bool = False,
        shift: float = 0.0,
        threads: int = 0,
    ):
        require_mujoco()
        if isinstance(task, str):
            if task.lower() not in TASKS:
                raise ValueError(f"task must be one of {', '.join(TASKS)}; got {task!r}.")
            task = TASKS[task.lower()](version)
        name = type(task).__name__
        self.horizon, self.test_horizon = checked_horizons(name, horizon, test_horizon)
        self.task = task
        self.model = task.model()
        self.shift = positive_number("shift", shift, zero=True)
        self.can_fork = True
        self.threads = whole_number("threads", threads, 0)
        self._batches: dict[int, SimpleNamespace] = {}
        self._data = require_mujoco().MjData(self.model)
        lane = self._lanes(1)
        self._reset(lane, np.array([0]), [0])
        observations = task.observe(lane, slice(None)).shape[1]
        policy = as_policy(given := policy, observations, self.model.nu, variance)
        self.actor = Actor(policy, observations, normalise)
        self.observations, self.actions = observations, self.model.nu
        self._name = (name, task.version, self.horizon, str(given), variance)

    def __repr__(self) -> str:
        name, version, horizon, policy, variance = self._name
        return (
            f"MujocoPool({name!r}, {policy!r}, version={version}, horizon={horizon}, "
            f"variance={variance}{', normalise=True' * self.actor.normalise}"
            f"{f', test_horizon={self.test_horizon}' * (self.test_horizon != horizon)}"
            f"{f', shift={self.shift:g}' if self.shift else ''})"
        )

    def __getstate__(self) -> dict[str, Any]:
        # A copy, in this process or another, makes its own simulations.
        return self.__dict__ | {"_batches": {}}

    def advance(
        self,
        state: dict[str, Any] | None,
        thetas: PyTree,
        keys: np.ndarray,
        start: np.ndarray,
        window: int,
        length: np.ndarray | None = None,
    ) -> Window:
        members, workers = jax.tree.leaves(thetas)[0].shape[:2]
        count = members * workers
        thetas = flat_lanes(thetas, np.float64)
        length = np.full(workers, window) if length is None else length
        f = self._lanes(count)
        if state is None:
            ended, broken = np.zeros(count, bool), np.zeros(count, bool)
            observation, position = np.zeros((count, self.observations)), np.zeros(count)
            acting = self.actor.begin(thetas, observation)
            begins = np.ones(workers, bool)
        else:
            flat = flat_lanes(state)
            f.rows[:] = flat["rows"]
            ended, broken = flat["ended"].copy(), flat["broken"].copy()
            observation, position = flat["observation"].copy(), flat["position"].copy()
            acting = {name: x.copy() for name, x in flat["acting"].items()}
            begins = (start == 0) & ((length > 0) | (window == 0))
        if begins.any():
            fresh = np.flatnonzero(np.tile(begins, members)).astype(np.int32)
            seeds = [seed_of(keys[lane % workers]) for lane in fresh]
            self._reset(f, fresh, seeds)
            ended[fresh], broken[fresh] = False, False
            observation[fresh] = self.task.observe(f, fresh)
            position[fresh] = self.task.position(f, fresh)
            begin_acting(self.actor, thetas, acting, observation, fresh)

        f.batch.warning[:] = 0
        steps_left = np.tile(length, members)
        loss, steps = np.zeros(count), np.zeros(count, np.int32)
        before = {name: x.copy() for name, x in acting.items()}
        self._steps(f, thetas, acting, ended, observation, position, steps_left, loss, steps)
        # MuJoCo resets a simulation whose numbers diverge, and counts a warning.
        broken |= _troubles(f) > 0
        loss[broken] = np.nan
        loss += self.shift * steps

        shape = (members, workers)
        state = {
            "rows": f.rows.copy(),
            "observation": observation,
            "position": position,
            "ended": ended,
            "broken": broken,
            "acting": acting,
        }
        result = (state, loss, steps, self.actor.observed(thetas, before, acting))
        return Window(*jax.tree.map(lambda x: x.reshape(*shape, *x.shape[1:]), result))

    def _steps(self, f, thetas, acting, ended, observation, position, steps_left, loss, steps):
        """Step the lanes whose episodes go on, in place."""
        task, dt = self.task, self.task.frame_skip * self.model.opt.timestep
        changes = set(np.unique(steps_left).tolist())  # the steps after which a lane is done
        ids: Any = None
        mujoco_error = require_mujoco().batch.SimulationError
        for i in range(int(steps_left.max(initial=0))):
            if ids is None or i in changes:
                active = ~ended & (i < steps_left)
                if not active.any():
                    break
                ids, chosen = _choose(active)
                own = thetas if chosen is None else jax.tree.map(lambda x, i=ids: x[i], thetas)
            action = act(self.actor, own, acting, observation, ids)
            f.ctrl[ids] = action
            try:
                f.batch.step(ids=chosen, nstep=task.frame_skip)
            except mujoco_error as error:
                raise PoolError(f"{self!r}: {error}") from error
            if task.contact_forces:
                self._contact_forces(f, np.arange(len(f.rows))[ids])
            after = task.position(f, ids)
            velocity = (after - position[ids]) / dt
            position[ids] = after
            observation[ids] = task.observe(f, ids)
            loss[ids] -= task.reward(f, ids, velocity, action)
            steps[ids] += 1
            healthy = task.healthy(f, ids)
            if healthy is not None and not healthy.all():
                ended[ids] = ~healthy
                self._end(f, ended, observation, position)
                ids = None

    def _end(self, f, ended, observation, position) -> None:
        """Handle lanes that have ended; here there is nothing to do, because they are absorbed."""

    def _lanes(self, count: int) -> SimpleNamespace:
        """Return a batch of `count` simulations, with its fields as arrays."""
        if count not in self._batches:
            batch = require_mujoco().batch.Batch(
                self.model,
                nsim=count,
                nthread=self.threads,
                # Contact forces are computed from data that a step leaves behind.
                persistent=self.task.contact_forces,
            )
            names = ("qpos", "qvel", "ctrl", *self.task.fields)
            fields = {name: batch.bind(name) for name in names}
            if self.task.contact_forces:
                fields["cfrc_ext"] = np.zeros((count, self.model.nbody, 6))
            self._batches[count] = SimpleNamespace(
                batch=batch, rows=batch.state, model=self.model, **fields
            )
        return self._batches[count]

    def film(
        self,
        theta: PyTree,
        seed: int,
        *,
        steps: int,
        every: int,
        size: tuple[int, int] = (320, 240),
    ) -> Film:
        """Draw one unperturbed episode.

        Args:
            theta: The parameters of the policy.
            seed: The seed of the initial state.
            steps: The maximal number of steps to show.
            every: The number of steps between two frames.
            size: The width and the height of a frame, in pixels.

        Raises:
            ImportError: If MuJoCo cannot draw on this machine.
            MemoryError: If the frames would need more memory than there is.
        """
        frames = film_episode(self, theta, seed, steps=steps, every=every, size=size)
        return Film(frames, every * self.task.frame_skip * self.model.opt.timestep)

    def _contact_forces(self, f: SimpleNamespace, lanes: np.ndarray) -> None:
        """Compute contact forces as gymnasium does after every step, lane by lane in Python."""
        mujoco = require_mujoco()
        for lane in lanes.tolist():
            data = f.batch.get_data(lane, self._data)
            mujoco.mj_rnePostConstraint(self.model, data)
            f.cfrc_ext[lane] = data.cfrc_ext

    def _reset(self, f: SimpleNamespace, lanes: np.ndarray, seeds: list[int]) -> None:
        """Start episodes; lanes with the same seed start from the same state."""
        f.batch.reset(ids=lanes, stage=int(require_mujoco().mjtStage.mjSTAGE_NONE))
        drawn: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        for lane, seed in zip(lanes, seeds, strict=True):
            if seed not in drawn:
                drawn[seed] = self.task.reset(self.model, np.random.default_rng(seed))
            f.qpos[lane], f.qvel[lane] = drawn[seed]
        f.batch.forward(ids=lanes)
        if self.task.contact_forces:
            f.cfrc_ext[lanes] = 0


def _troubles(f: SimpleNamespace) -> np.ndarray:
    """Count each simulation's warnings about bad positions, velocities, forces or controls."""
    kinds = require_mujoco().mjtWarning
    first, last = int(kinds.mjWARN_BADQPOS), int(kinds.mjWARN_BADCTRL)
    return f.batch.warning[:, first : last + 1, 1].sum(axis=1)


def _choose(active: np.ndarray) -> tuple[Any, np.ndarray | None]:
    """Return an index of the active lanes for NumPy (a slice if all are), and one for MuJoCo."""
    if active.all():
        return slice(None), None
    ids = np.flatnonzero(active).astype(np.int32)
    return ids, ids
