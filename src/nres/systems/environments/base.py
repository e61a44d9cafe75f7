"""`EnvironmentSystem`: a policy in an environment that JAX can trace."""

import abc
import dataclasses
import functools
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from nres.acting import Actor
from nres.checks import checked_horizons, positive_number
from nres.execution import run_episodes
from nres.policies import AnyPolicy, as_policy
from nres.pools.jax import JaxPool
from nres.system import System, Theta
from nres.tracing import Lifted, bake
from nres.workers import worker_keys

# The number of episodes that `metrics` averages, as for MuJoCo tasks outside JAX.
EPISODES = 20


@dataclasses.dataclass(frozen=True, eq=False)
class Made:
    """The arguments that made an environment; all are equal, because what is traced tells all."""

    env: Any
    policy: str | AnyPolicy
    options: dict[str, Any]
    """The arguments that only some environments have."""
    horizon: int | None
    test_horizon: int | None
    variance: float | None
    """The variance of a named policy's initial parameters."""
    normalise: bool
    """True to normalise observations."""
    shift: float
    """The number to subtract from every reward."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Made)

    def __hash__(self) -> int:
        return 0


class Episode(eqx.Module):
    """The state of an episode."""

    environment: list[Array]
    """The leaves of the environment's own state."""
    observation: Float[Array, " observations"]
    acting: dict[str, Array]
    """The arrays that the actor keeps: a memory, and the moments of observations."""


class EnvironmentSystem(System):
    """Base class of policies in environments that JAX can trace; the loss is the negative reward.

    Episodes that end early are absorbed until the horizon: the environment is never reset within
    an episode. Its numbers, for example the masses of a robot, become part of compiled functions,
    unless there are very many. Equal environments share one compilation. A subclass sets `env`'s
    functions with `_adapt`.
    """

    horizon: int = eqx.field(static=True)
    test_horizon: int = eqx.field(static=True)
    """The number of steps in the episodes that `metrics` measures and `film` draws."""
    actor: Actor = eqx.field(static=True)
    actions: int = eqx.field(static=True)
    discrete: bool = eqx.field(static=True)
    shift: float = eqx.field(static=True)
    """The number that is subtracted from the reward of every step in training."""
    bounds: tuple[Array, Array] | None
    """The limits to which actions are clipped; `None` not to clip them."""
    _reset: Lifted
    _step: Lifted
    _made: Made = eqx.field(static=True)

    @abc.abstractmethod
    def __init__(self, *arguments: Any, **options: Any): ...

    def _adapt(
        self,
        adapter: Any,
        made: Made,
        *,
        usual: int | None = None,
        limit: int | None = None,
    ) -> None:
        """Set all fields from an adapter.

        Args:
            adapter: An object with `reset(key)`, which returns a state and an observation;
                `step(state, action, key)`, which returns these, a reward and whether the episode
                ended; and `actions`, `discrete` and `bounds`.
            made: The arguments with which the system can be constructed.
            usual: The environment's own number of steps, if no horizon is given.
            limit: The number of steps after which the environment ends, if it does.
        """
        given = usual if made.horizon is None else made.horizon
        name = type(adapter.env).__name__
        self.horizon, self.test_horizon = checked_horizons(name, given, made.test_horizon, limit)
        key = jax.eval_shape(lambda: raw_key(jax.random.key(0)))

        def reset(key):
            state, observation = adapter.reset(key)
            return jax.tree.leaves(jax.tree.map(jnp.asarray, state)), _vector(observation)

        shapes, observation = jax.eval_shape(reset, key)
        structure = jax.tree.structure(jax.eval_shape(lambda k: adapter.reset(k)[0], key))

        def step(leaves, action, key):
            state = jax.tree.unflatten(structure, leaves)
            state, observation, reward, ended = adapter.step(state, action, key)
            after: list[Any] = jax.tree.leaves(state)
            found: Any = jax.tree.structure(state)
            if found != structure:
                raise ValueError(
                    f"{name} must not change the structure of its state in a step: it changed from "
                    f"{structure} to {found}."
                )
            # Steps may change weak types and precisions, which a scan refuses.
            after = [jnp.asarray(x, like.dtype) for x, like in zip(after, shapes, strict=True)]
            observation = _vector(observation).astype(dtype)
            return after, observation, jnp.asarray(reward, dtype), jnp.asarray(ended, bool)

        dtype = observation.dtype
        action = (
            jax.ShapeDtypeStruct((), jnp.int32)
            if adapter.discrete
            else jax.ShapeDtypeStruct(adapter.shape, dtype)
        )
        self._reset = bake(reset, key)
        self._step = bake(step, shapes, action, key)
        self.actions = adapter.actions
        self.discrete = adapter.discrete
        self.shift = positive_number("shift", made.shift, zero=True)
        self.bounds = adapter.bounds
        chosen = as_policy(made.policy, observation.size, adapter.actions, made.variance)
        self.actor = Actor(chosen, observation.size, made.normalise)
        self._shape = adapter.shape
        self._made = made

    _shape: tuple[int, ...] = eqx.field(static=True)

    def __reduce__(self) -> Any:
        # Traced functions cannot be pickled, but their environment can be constructed anew.
        given = vars(self._made) | self._made.options
        env, policy, _ = (given.pop(name) for name in ("env", "policy", "options"))
        return functools.partial(type(self), **given), (env, policy)

    def initial_theta(self, key: Any) -> Theta:
        """Return the policy's initial parameters."""
        return self.actor.initial_theta(key)

    def init(self, theta, key):
        # Constants of the environment are Python numbers here.
        environment, observation = jax.tree.map(jnp.asarray, self._reset(raw_key(key)))
        acting = self.actor.begin(_one_lane(theta), observation[None])
        return Episode(environment, observation, jax.tree.map(lambda x: x[0], acting))

    def step(self, state, theta, t, key):
        acting = jax.tree.map(lambda x: x[None], state.acting)
        output, acting = self.actor.act(_one_lane(theta), acting, state.observation[None])
        action = self.action(output[0])
        result = self._step(state.environment, action, raw_key(key))
        environment, observation, reward, ended = jax.tree.map(jnp.asarray, result)
        acting = jax.tree.map(lambda x: x[0], acting)
        # Without a shift, runs of earlier versions compute the same.
        loss = self.shift - reward if self.shift else -reward
        return Episode(environment, observation, acting), loss, ended

    def action(self, output: Float[Array, " actions"]) -> Array:
        """Return the action that an output of the policy means."""
        if output.size != self.actions:
            raise ValueError(
                f"theta gives {output.size} numbers per action, but {type(self).__name__} takes "
                f"{self.actions}."
            )
        if self.discrete:
            return jnp.argmax(output).astype(jnp.int32)
        action = output.reshape(self._shape)
        return action if self.bounds is None else jnp.clip(action, *self.bounds)

    def observed_between(self, theta, before, after):
        before, after = (jax.tree.map(lambda x: x[None], s.acting) for s in (before, after))
        observed = self.actor.observed(_one_lane(theta), before, after)
        return jax.tree.map(lambda x: x[0], observed)

    def metrics(self, theta: Theta, key: Any) -> dict[str, Array]:
        """Measure the loss per step and the return of 20 unperturbed episodes."""
        keys = worker_keys(jax.random.split(key)[0], EPISODES)
        losses, steps = run_episodes(JaxPool(self), theta, keys, None, self.test_horizon)
        total = self.shift * steps.astype(losses.dtype) - losses * self.test_horizon
        loss = -total.mean() / self.test_horizon
        return {"loss": loss, "return": total.mean(), "least_return": total.min()}

    @property
    def metrics_steps(self) -> int:  # type: ignore[override]
        """The maximal number of unroll steps that `metrics` takes."""
        return EPISODES * self.test_horizon


def raw_key(key: Key[Array, ""]) -> Array:
    """Return a key as plain words, of the kind that JAX's random functions take by default."""
    usual = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0)))
    words = jax.random.key_data(key)
    if (words.shape, words.dtype) == (usual.shape, usual.dtype):
        return words
    return jax.random.bits(key, usual.shape, usual.dtype)


def _one_lane(theta: PyTree) -> PyTree:
    return jax.tree.map(lambda x: x[None], theta)


def _vector(observation: PyTree) -> Float[Array, " size"]:
    """Return an observation of any shape as one vector."""
    if not isinstance(observation, jax.Array):
        observation = jax.tree.map(jnp.asarray, observation)
    leaves = jax.tree.leaves(observation)
    size = sum(math.prod(leaf.shape) for leaf in leaves)
    if not size:
        raise ValueError("the environment's observation is empty.")
    return jnp.concatenate([jnp.ravel(leaf).astype(float) for leaf in leaves])
