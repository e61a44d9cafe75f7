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
from nres.checks import checked_horizons, positive_number, true_or_false, whole_number
from nres.policies import AnyPolicy, as_policy
from nres.pools.base import Film, PoolError, Window
from nres.pools.gym.lanes import Failure, Lane, Lanes
from nres.pools.gym.render import film_episode
from nres.pools.gym.snapshots import snapshots_of
from nres.pools.simulator import PolicyPool, flat_lanes, seed_of
from nres.system import Theta

_SERIALS = itertools.count(int.from_bytes(os.urandom(6)))  # unique among all processes


class GymPool(PolicyPool):
    """Unrolls of a policy in a gymnasium environment; the loss is the negative reward.

    Every lane has its own environment, which is reset only when its worker begins an episode, with
    a seed that belongs to that worker and episode. A terminated or truncated episode is absorbed
    until its worker begins the next. An environment that fails, or returns numbers that are not
    finite, ends the run with an error. States can be copied and saved if the environment has
    `get_state()`, which returns an array of numbers, and `set_state(array)`, or if the numbers in
    its attributes, its random generator and its MuJoCo simulation are all of its state, which is
    tried out. That holds for gymnasium's classic control and for its planar robots. Otherwise `TES`
    and resuming a run raise an error.

    Args:
        env: The id of an environment, or a function that makes one from `options`.
        policy: `"linear"`, `"mlp:64,64"`, `"gru:16"`, or any `nres.policies.Policy`. For discrete
            actions, the one with the largest output is taken.
        horizon: T, the number of steps in an episode; by default, the environment's limit.
        test_horizon: The number of steps in the episodes that `metrics` measures, as for
            `MujocoPool`.
        variance: The variance of a named policy's initial parameters.
        normalise: True to give the policy observations with mean 0 and variance 1, as for
            `MujocoPool`.
        shift: A number to subtract from the reward of every step in training, for example the bonus
            for not falling, as for `MujocoPool`.
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
        policy: str | AnyPolicy = "linear",
        *,
        horizon: int | None = None,
        test_horizon: int | None = None,
        variance: float | None = None,
        normalise: bool = False,
        shift: float = 0.0,
        clip: bool = False,
        processes: int = 0,
        **options: Any,
    ):
        processes = whole_number("processes", processes, 0, 4096)
        self._make = (env, options)
        probe = Lane(self._make, clip)
        self.name = env if isinstance(env, str) else type(probe.env.unwrapped).__name__
        spec = probe.env.spec
        limit = spec.max_episode_steps if spec is not None else None
        given = limit if horizon is None else horizon
        self.horizon, self.test_horizon = checked_horizons(self.name, given, test_horizon, limit)
        self._snapshots = snapshots_of(probe.env)
        self.can_fork = self._snapshots is not None
        self.clip = true_or_false("clip", clip)
        self.shift = positive_number("shift", shift, zero=True)
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
            f"{f'test_horizon={self.test_horizon}, ' * (self.test_horizon != self.horizon)}"
            f"{f'shift={self.shift:g}, ' if self.shift else ''}options={self._make[1]})"
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

    def film(
        self,
        theta: PyTree,
        seed: int,
        *,
        steps: int,
        every: int,
        size: tuple[int, int] = (320, 240),
    ) -> Film:
        """Draw one unperturbed episode, with arguments as for `MujocoPool.film`."""
        acting = self._make, self.clip, self.actor
        steps = min(steps, self.test_horizon)
        return film_episode(*acting, theta, seed, steps=steps, every=every, size=size)

    def close(self) -> None:
        """End the processes and close the environments."""
        for host in self._hosts:
            host.close()
        self._hosts, self._serial = [], -1

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
                "an older or saved one. If this pool was used for something else meanwhile, such "
                "as nres.evaluate, that ended its episodes: use pool.metrics, or a second pool."
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
            if isinstance(answer, Failure):
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
        return Window(whole, loss + self.shift * steps, steps, observed)

    def _serve(self, count: int) -> bool:
        """Provide environments for `count` lanes; return true if they existed before."""
        if count == self._count and self._hosts:
            return True
        self.close()
        self._count = count
        hosts = min(self.processes, count) or 1
        shares = [len(share) for share in np.array_split(np.arange(count), hosts)]
        kind = _Process if self.processes else Lanes
        options = self.clip, self._snapshots
        self._hosts = [kind(self._make, self.actor, size, *options) for size in shares]
        return False


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
        lanes = Lanes(*arguments)
    except Exception as error:
        pipe.recv()
        pipe.send(Failure(0, 0, 0, traceback.format_exception_only(error)[-1].strip()))
        return
    while True:
        try:
            task = pipe.recv()
        except EOFError:
            break
        lanes.send(task)
        pipe.send(lanes.receive())
    lanes.close()
