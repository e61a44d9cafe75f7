"""Environments of gymnasium in lanes: one environment per lane, several lanes per process."""

import traceback
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from nres.acting import Actor
from nres.pools.gym.snapshots import Snapshots
from nres.pools.simulator import act, begin_acting

INSTALL = "GymPool needs gymnasium: pip install 'nres[mujoco]'."


class Failure(Exception):
    """An error and the lane in which it happened."""

    def __init__(self, lane: int, seed: int, step: int, what: str):
        super().__init__(lane, seed, step, what)
        self.lane, self.seed, self.step, self.what = lane, seed, step, what


class Lane:
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
        elif callable(env):
            self.env = env(**options)
        else:
            raise TypeError(
                "env must be the id of an environment, or a function that makes a new one, got "
                f"{env!r}."
            )
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


class Lanes:
    """Several environments in one process."""

    def __init__(
        self, make: Any, actor: Actor, count: int, clip: bool, snapshots: Snapshots | None
    ):
        self.actor = actor
        self.lanes = [Lane(make, clip) for _ in range(count)]
        if len({id(lane.env.unwrapped) for lane in self.lanes}) < count:
            raise ValueError(
                f"{make[0]!r} returns the same environment every time, but every lane needs its "
                "own: make a new one in each call."
            )
        self.snapshots = snapshots
        self.observation = np.zeros((count, self.lanes[0].observations))
        self.ended = np.zeros(count, bool)
        self.acting: dict[str, np.ndarray] = {}
        self._pending: Any = None

    def send(self, task: dict[str, Any]) -> None:
        self._pending = task

    def receive(self) -> Any:
        try:
            return self._advance(**self._pending)
        except Failure as failure:
            return failure
        except Exception as error:  # for example of the policy
            return Failure(0, 0, 0, traceback.format_exception_only(error)[-1].strip())

    def _restore(self, env: Any, row: np.ndarray) -> None:
        assert self.snapshots is not None
        env.reset()  # wrappers refuse to step before a reset
        self.snapshots.put(env, row)

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
                _guarded(i, seed, 0, self._restore, lane.env, state["snapshot"][i])
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
            take = self.snapshots.take
            rows = [_guarded(i, seed, 0, take, lane.env) for i, lane in enumerate(self.lanes)]
            answer["snapshot"] = np.stack(rows)
        return answer


def _ravel(space: Any, observation: Any) -> np.ndarray:
    return np.ravel(observation)


def _guarded(lane: int, seed: np.ndarray, step: int, function: Callable, *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except Exception as error:
        what = traceback.format_exception_only(error)[-1].strip()
        raise Failure(lane, int(seed[lane]), step, what) from error
