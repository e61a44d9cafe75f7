"""`GymPool`: any gymnasium environment, in this process or in several."""

import copy
import itertools
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from nres.acting import Actor
from nres.checks import whole_number
from nres.policies import Policy, as_policy
from nres.pools.base import PoolError, Window
from nres.pools.simulator import PolicyPool, act, begin_acting, flat_lanes, seed_of
from nres.system import Theta

INSTALL = "GymPool needs gymnasium: pip install 'nres[mujoco]'."
_SERIALS = itertools.count(int.from_bytes(os.urandom(6)))  # unique among all processes
# Gymnasium's MuJoCo environments whose state consists only of positions and velocities.
_PHYSICS_IS_ALL = ("Swimmer", "HalfCheetah", "Hopper", "Walker2d", "InvertedPendulum")


class GymPool(PolicyPool):
    """Unrolls of a policy in a gymnasium environment; the loss is the negative reward.

    Every lane has its own environment, which is reset only when its worker begins an episode, with
    a seed that belongs to that worker and episode. A terminated or truncated episode is absorbed
    until its worker begins the next. States can be copied and saved if the environment has
    `get_state()`, which returns an array of numbers, and `set_state(array)`, or if it is one of
    gymnasium's planar MuJoCo tasks. Otherwise `TES` and resuming a run raise an error.

    Args:
        env: The id of an environment, or a function that makes one from `options`.
        policy: `"linear"`, `"mlp:64,64"`, `"gru:16"`, or any `nres.policies.Policy`. For discrete
            actions, the one with the largest output is taken.
        horizon: T, the number of steps in an episode; by default, the environment's limit.
        variance: The variance of a named policy's initial parameters.
        normalise: True to give the policy observations with mean 0 and variance 1, as for
            `MujocoPool`.
        clip: True to clip actions to the bounds of the action space.
        processes: The number of extra processes, each of which runs whole windows of its share of
            the lanes; 0 runs all in this one. Environment and policy must then be picklable.
        options: Keyword arguments of the environment.

    Example:
        ```python
        pool = nres.pools.GymPool("CartPole-v1", "mlp:16")
        estimator = nres.NRES(pool, workers=20, window=50, sigma=0.1)
        ```
    """

    def __init__(
        self,
        env: str | Callable[..., Any],
        policy: str | Policy = "linear",
        *,
        horizon: int | None = None,
        variance: float | None = None,
        normalise: bool = False,
        clip: bool = False,
        processes: int = 0,
        **options: Any,
    ):
        processes = whole_number("processes", processes, 0, 4096)
        horizon = None if horizon is None else whole_number("horizon", horizon)
        self._make = (env, options)
        probe = _Lane(self._make, clip)
        self.name = env if isinstance(env, str) else type(probe.env.unwrapped).__name__
        spec = probe.env.spec
        limit = spec.max_episode_steps if spec is not None else None
        horizon = horizon or limit
        if horizon is None:
            raise ValueError(f"{self.name} has no limit of its own: give a horizon.")
        if limit is not None and horizon > limit:
            raise ValueError(f"{self.name} ends after {limit} steps; horizon={horizon} is longer.")
        self.horizon = int(horizon)
        self.can_fork = probe.snapshots
        self.clip = clip
        self.observations, self.actions = probe.observations, probe.actions
        chosen = as_policy(policy, self.observations, self.actions, variance)
        self.actor = Actor(chosen, self.observations, normalise)
        self._policy_name = (str(policy), variance)
        self.processes = processes
        self._hosts: list[Any] = []
        self._count, self._serial = 0, -1
        probe.env.close()

    def __repr__(self) -> str:
        policy, variance = self._policy_name
        return (
            f"GymPool({self.name!r}, {policy!r}, horizon={self.horizon}, variance={variance}, "
            f"clip={self.clip}{', normalise=True' * self.actor.normalise}, "
            f"options={self._make[1]})"
        )

    def __getstate__(self) -> dict[str, Any]:
        # A copy, in this process or another, makes its own environments.
        return self.__dict__ | {"_hosts": [], "_count": 0, "_serial": -1}

    def metrics(self, theta: Theta, key: Any) -> dict[str, float]:
        """Measure the loss and the return of 20 unperturbed episodes."""
        # In separate environments: those used for training may not be able to go back.
        pool = copy.copy(self)
        try:
            return PolicyPool.metrics(pool, theta, key)
        finally:
            pool.close()

    def fork(self, state: dict[str, Any], member: int) -> dict[str, Any]:
        forked = super().fork(state, member)
        return forked | {"serial": np.zeros_like(state["serial"])}  # matches no environment

    def close(self) -> None:
        """End the processes and close the environments."""
        for host in self._hosts:
            host.close()
        self._hosts = []

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
        length = np.full(workers, window) if length is None else length
        begins = np.ones(workers, bool) if state is None else start == 0
        if window > 0 and state is not None:
            begins = begins & (length > 0)
        newest = state is not None and (state["serial"] == self._serial).all()
        if state is not None and not newest and not self.can_fork:
            raise PoolError(
                f"{self.name} offers no snapshots, so only its newest state can be continued, not "
                "an older or saved one."
            )
        lanes = {
            "theta": flat_lanes(thetas, np.float64),
            "seed": np.tile([seed_of(key) for key in keys], members),
            "begins": np.tile(begins, members),
            "length": np.tile(length, members),
        }
        newest = self._serve(count) and newest
        # Environments that are already in this state need not be restored.
        lanes["state"] = None if state is None or newest else flat_lanes(state)
        self._serial = -1  # until all have answered, the environments are in no known state
        shares = np.array_split(np.arange(count), len(self._hosts))
        try:
            for host, share in zip(self._hosts, shares, strict=True):
                host.send(jax.tree.map(lambda x, s=share: x[s], lanes))
            answers = [host.receive() for host in self._hosts]
        except BaseException:
            self.close()  # answers that nobody read may be left
            raise
        for answer, share in zip(answers, shares, strict=True):
            if isinstance(answer, _Failure):
                lane = int(share[answer.lane])
                raise PoolError(
                    f"{self.name}, lane {lane} (worker {lane % workers}, member "
                    f"{lane // workers}, seed {answer.seed}, step {answer.step} of the window): "
                    f"{answer.what}"
                )
        whole = jax.tree.map(
            lambda *x: np.concatenate(x).reshape(members, workers, *x[0].shape[1:]), *answers
        )
        loss, steps, observed = whole.pop("loss"), whole.pop("steps"), whole.pop("observed")
        self._serial = next(_SERIALS)
        whole["serial"] = np.full((members, workers), self._serial)
        return Window(whole, loss, steps, observed)

    def _serve(self, count: int) -> bool:
        """Provide environments for `count` lanes; return true if they existed before."""
        if count == self._count and self._hosts:
            return True
        self.close()
        self._count = count
        hosts = min(self.processes, count) or 1
        shares = [len(share) for share in np.array_split(np.arange(count), hosts)]
        kind = _Process if self.processes else _Lanes
        self._hosts = [kind(self._make, self.actor, size, self.clip) for size in shares]
        return False


class _Failure(Exception):
    """An error and the lane in which it happened."""

    def __init__(self, lane: int, seed: int, step: int, what: str):
        super().__init__(lane, seed, step, what)
        self.lane, self.seed, self.step, self.what = lane, seed, step, what


class _Lane:
    """One environment, with observations and actions as vectors."""

    def __init__(self, make: tuple[Any, dict[str, Any]], clip: bool):
        try:
            import gymnasium
        except ImportError as error:
            raise ImportError(INSTALL) from error
        env, options = make
        self.env: Any
        if isinstance(env, str):
            try:
                self.env = gymnasium.make(env, disable_env_checker=True, **options)
            except (gymnasium.error.Error, ModuleNotFoundError) as error:
                raise ValueError(f"gymnasium cannot make {env!r}: {error}") from error
        else:
            self.env = env(**options)
        spaces = gymnasium.spaces
        self.space = self.env.observation_space
        # The general function takes longer than a step of many environments.
        self._flatten = _ravel if isinstance(self.space, spaces.Box) else spaces.flatten
        self.observations = spaces.flatdim(self.space)
        action = self.env.action_space
        self.discrete = isinstance(action, spaces.Discrete)
        if not self.discrete and not isinstance(action, spaces.Box):
            raise ValueError(f"actions must be Box or Discrete, but {env} has {action}.")
        self.actions = int(action.n) if self.discrete else int(np.prod(action.shape))
        self.clip = clip and not self.discrete
        inner = self.env.unwrapped
        self.mujoco = type(inner).__name__.removesuffix("Env") in _PHYSICS_IS_ALL and hasattr(
            inner, "do_simulation"
        )
        self.snapshots = self.mujoco or (
            hasattr(inner, "get_state") and hasattr(inner, "set_state")
        )

    def reset(self, seed: int) -> np.ndarray:
        return self._vector(self.env.reset(seed=seed)[0])

    def step(self, output: np.ndarray) -> tuple[np.ndarray, float, bool]:
        space = self.env.action_space
        if self.discrete:
            action: Any = int(np.argmax(output)) + int(space.start)
        else:
            action = output.reshape(space.shape)
            if self.clip:
                action = np.clip(action, space.low, space.high)
        observation, reward, terminated, truncated, _ = self.env.step(action)
        vector = self._vector(observation)
        if not np.isfinite(reward):
            raise ValueError(f"the reward is {reward}")
        return vector, float(reward), bool(terminated or truncated)

    def _vector(self, observation: Any) -> np.ndarray:
        vector = np.asarray(self._flatten(self.space, observation), np.float64)
        if vector.shape != (self.observations,):
            raise ValueError(
                f"the observation has {vector.size} numbers, but its space has {self.observations}"
            )
        if not np.isfinite(vector).all():
            raise ValueError(f"the observation is not finite: {vector}")
        return vector

    def snapshot(self) -> np.ndarray:
        if not self.mujoco:
            return np.asarray(self.env.unwrapped.get_state(), np.float64)
        import mujoco

        inner = self.env.unwrapped
        row = np.empty(mujoco.mj_stateSize(inner.model, mujoco.mjtState.mjSTATE_INTEGRATION))
        mujoco.mj_getState(inner.model, inner.data, row, mujoco.mjtState.mjSTATE_INTEGRATION)
        return row

    def restore(self, row: np.ndarray) -> None:
        self.env.reset()  # wrappers refuse to step before a reset
        if not self.mujoco:
            self.env.unwrapped.set_state(row)
            return
        import mujoco

        inner = self.env.unwrapped
        mujoco.mj_setState(inner.model, inner.data, row, mujoco.mjtState.mjSTATE_INTEGRATION)


class _Lanes:
    """Several environments in one process."""

    def __init__(self, make: Any, actor: Actor, count: int, clip: bool):
        self.actor = actor
        self.lanes = [_Lane(make, clip) for _ in range(count)]
        self.snapshots = self.lanes[0].snapshots
        self.observation = np.zeros((count, self.lanes[0].observations))
        self.ended = np.zeros(count, bool)
        self.acting: dict[str, np.ndarray] = {}
        self._pending: Any = None

    def send(self, task: dict[str, Any]) -> None:
        self._pending = task

    def receive(self) -> Any:
        try:
            return self._advance(**self._pending)
        except _Failure as failure:
            return failure
        except Exception as error:  # for example of the policy
            return _Failure(0, 0, 0, traceback.format_exception_only(error)[-1].strip())

    def close(self) -> None:
        for lane in self.lanes:
            lane.env.close()

    def _advance(self, theta, seed, begins, length, state):
        if state is not None:
            self.observation[:], self.ended[:] = state["observation"], state["ended"]
            self.acting = {name: x.copy() for name, x in state["acting"].items()}
        elif not self.acting:
            self.acting = self.actor.begin(theta, self.observation)
        for i, lane in enumerate(self.lanes):
            if begins[i]:
                self.observation[i] = _guarded(i, seed, 0, lane.reset, int(seed[i]))
                self.ended[i] = False
            elif state is not None:
                _guarded(i, seed, 0, lane.restore, state["snapshot"][i])
        begin_acting(self.actor, theta, self.acting, self.observation, np.flatnonzero(begins))
        before = {name: x.copy() for name, x in self.acting.items()}
        loss, steps = np.zeros(len(self.lanes)), np.zeros(len(self.lanes), np.int32)
        active = np.flatnonzero((length > 0) & ~self.ended)
        own = jax.tree.map(lambda x: x[active], theta)
        for t in range(int(length.max(initial=0))):
            going = (t < length[active]) & ~self.ended[active]
            if not going.all():
                active = active[going]
                own = jax.tree.map(lambda x, g=going: x[g], own)
            if not active.size:
                break
            outputs = act(self.actor, own, self.acting, self.observation, active)
            for i, output in zip(active.tolist(), outputs, strict=True):
                step = self.lanes[i].step
                observation, reward, ended = _guarded(i, seed, t, step, output)
                self.observation[i], self.ended[i] = observation, ended
                loss[i] -= reward
                steps[i] += 1
        observed = self.actor.observed(theta, before, self.acting)
        answer = {"loss": loss, "steps": steps, "ended": self.ended.copy(), "observed": observed}
        if self.snapshots:
            answer["observation"] = self.observation.copy()
            answer["acting"] = {name: x.copy() for name, x in self.acting.items()}
            rows = [_guarded(i, seed, 0, lane.snapshot) for i, lane in enumerate(self.lanes)]
            answer["snapshot"] = np.stack(rows)
        return answer


def _ravel(space: Any, observation: Any) -> np.ndarray:
    return np.ravel(observation)


def _guarded(lane: int, seed: np.ndarray, step: int, function: Callable, *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except Exception as error:
        what = traceback.format_exception_only(error)[-1].strip()
        raise _Failure(lane, int(seed[lane]), step, what) from error


class _Process:
    """Several environments in a process of their own."""

    def __init__(self, *arguments: Any):
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=_serve, args=(other, arguments), daemon=True)
        self.process.start()
        other.close()

    def send(self, task: dict[str, Any]) -> None:
        try:
            self.pipe.send(task)
        except OSError as error:
            raise PoolError("a process with environments has died.") from error

    def receive(self) -> Any:
        try:
            return self.pipe.recv()
        except (EOFError, OSError) as error:
            self.process.join(1)
            raise PoolError(
                f"a process with environments has died, with exit code {self.process.exitcode}."
            ) from error

    def close(self) -> None:
        self.pipe.close()
        self.process.join(5)
        if self.process.is_alive():
            self.process.kill()


def _serve(pipe: Any, arguments: tuple) -> None:
    # Ctrl-C reaches every process of a terminal, but the main process decides when to end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        lanes = _Lanes(*arguments)
    except Exception as error:
        pipe.recv()
        pipe.send(_Failure(0, 0, 0, traceback.format_exception_only(error)[-1].strip()))
        return
    while True:
        try:
            task = pipe.recv()
        except EOFError:
            break
        lanes.send(task)
        pipe.send(lanes.receive())
    lanes.close()
