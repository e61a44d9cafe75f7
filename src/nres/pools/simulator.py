"""The common part of pools of simulators that are not written in JAX."""

from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from nres.acting import Actor
from nres.policies import AnyPolicy
from nres.pools.base import Pool
from nres.system import Theta
from nres.workers import worker_keys

EPISODES = 20


def seed_of(key: np.ndarray) -> int:
    """Return the seed of an episode, from the key of its worker and episode."""
    return int(key[-1])


def act(
    actor: Actor, thetas: PyTree, acting: dict[str, np.ndarray], observation: np.ndarray, ids: Any
) -> np.ndarray:
    """Return the actions of some lanes, and update what the actor keeps for them in place.

    Args:
        actor: The actor.
        thetas: The parameters of these lanes.
        acting: What the actor keeps, for all lanes.
        observation: The observations of all lanes.
        ids: The index of these lanes.
    """
    kept = {name: x[ids] for name, x in acting.items()}
    actions, kept = actor.act(thetas, kept, observation[ids])
    for name, x in kept.items():
        acting[name][ids] = x
    return actions


def begin_acting(
    actor: Actor, thetas: PyTree, acting: dict[str, np.ndarray], observation: np.ndarray, ids: Any
) -> None:
    """Let an episode begin in some lanes, with arguments as for `act`."""
    own = jax.tree.map(lambda x: x[ids], thetas)
    for name, x in actor.begin(own, observation[ids]).items():
        acting[name][ids] = x


def flat_lanes(tree: PyTree, dtype: Any = None) -> PyTree:
    """Merge the axes of members and workers into one axis of lanes, in this order."""
    return jax.tree.map(lambda x: np.asarray(x, dtype).reshape(-1, *x.shape[2:]), tree)


class PolicyPool(Pool):
    """Base class of pools that run a policy in a simulator.

    A state is a dictionary of arrays with axes `(members, workers)` in front. Its entry `acting`
    is a dictionary of what the actor keeps.
    """

    actor: Actor
    horizon: int
    test_horizon: int
    """The number of steps in the episodes that `metrics` measures and `film` draws."""
    observations: int
    actions: int
    shift: float
    """The number that is subtracted from the reward of every step in training."""

    @property
    def policy(self) -> AnyPolicy:
        """The policy that chooses the actions."""
        return self.actor.policy

    def initial_theta(self, key: Any) -> Theta:
        """Return the policy's initial parameters."""
        return self.actor.initial_theta(key)

    def metrics(self, theta: Theta, key: Any) -> dict[str, float]:
        """Measure the loss per step and the return of 20 unperturbed episodes."""
        keys = worker_keys(jax.random.split(key)[0], EPISODES)  # the same keys as `nres.evaluate`
        thetas = jax.tree.map(
            lambda x: np.broadcast_to(np.asarray(x), (1, EPISODES, *np.shape(x))), theta
        )
        words, start = np.asarray(jax.random.key_data(keys)), np.zeros(EPISODES, np.int32)
        window = self.advance(None, thetas, words, start, self.test_horizon)
        losses, steps = (np.asarray(x[0], np.float64) for x in (window.loss, window.steps))
        total = self.shift * steps - losses
        mean = float(total.mean())
        loss = -mean / self.test_horizon
        return {"loss": loss, "return": mean, "least_return": float(total.min())}

    @property
    def metrics_steps(self) -> int:  # type: ignore[override]
        """The maximal number of unroll steps that `metrics` takes."""
        return EPISODES * self.test_horizon

    def check(self, theta: PyTree) -> None:
        lanes = jax.tree.map(lambda x: np.asarray(x, np.float64)[None], theta)
        try:
            nothing = np.zeros((1, self.observations))
            actions, _ = self.actor.act(lanes, self.actor.begin(lanes, nothing), nothing)
        except (ValueError, TypeError, IndexError, KeyError, AttributeError) as error:
            raise ValueError(f"theta does not fit {self!r}: {error}") from error
        if actions.shape != (1, self.actions):
            raise ValueError(
                f"theta gives actions of shape {actions.shape[1:]}, but {self!r} takes "
                f"({self.actions},)."
            )

    def fork(self, state: dict[str, Any], member: int) -> dict[str, Any]:
        return jax.tree.map(
            lambda x: np.broadcast_to(x[member : member + 1], x.shape).copy(), state
        )
