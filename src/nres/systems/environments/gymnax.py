"""`GymnaxEnvironment`: environments of gymnax."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from nres.policies import AnyPolicy
from nres.systems.environments.base import EnvironmentSystem, Made

INSTALL = "gymnax environments need gymnax: pip install 'nres[gymnax]'."


class GymnaxEnvironment(EnvironmentSystem):
    """Unrolls of a policy in an environment with gymnax's interface; the loss is minus the reward.

    The environment's `reset_env` and `step_env` are called, which do not reset finished episodes.

    Args:
        env: The name of an environment, for example `"CartPole-v1"`, or an environment.
        policy: `"linear"`, `"mlp:64,64"`, `"gru:16"`, or any `nres.policies.Policy`. For discrete
            actions, the one with the largest output is taken; others are clipped to their bounds.
        horizon: T, the number of steps in an episode; by default, the environment's limit.
        test_horizon: The number of steps in the episodes that `metrics` measures, as for
            `nres.pools.MujocoPool`.
        variance: The variance of a named policy's initial parameters.
        normalise: True to give the policy observations with mean 0 and variance 1, as for
            `nres.pools.MujocoPool`.
        shift: A number to subtract from the reward of every step in training, for example the bonus
            for not falling, as for `nres.pools.MujocoPool`.
        params: The parameters of the environment; by default its own.
        options: Keyword arguments of a named environment.

    Raises:
        ImportError: If gymnax is not installed.
        ValueError: If there is no such environment, or its limit is shorter than the horizon.

    Example:
        ```python
        system = nres.systems.GymnaxEnvironment("CartPole-v1", "mlp:16", horizon=200)
        estimator = nres.NRES(system, workers=100, window=20, sigma=0.1)
        ```
    """

    def __init__(
        self,
        env: Any,
        policy: str | AnyPolicy = "linear",
        *,
        horizon: int | None = None,
        test_horizon: int | None = None,
        variance: float | None = None,
        normalise: bool = False,
        shift: float = 0.0,
        params: Any = None,
        **options: Any,
    ):
        own = {**options, "params": params}
        made = Made(env, policy, own, horizon, test_horizon, variance, normalise, shift)
        if isinstance(env, str):
            env = _make(env, options)
        elif options:
            raise TypeError(f"{', '.join(options)}: options are for environments given by name.")
        _check(env)
        adapter = _Adapter(env, env.default_params if params is None else params)
        limit = getattr(adapter.params, "max_steps_in_episode", None)
        self._adapt(adapter, made, usual=limit, limit=limit)


def _make(name: str, options: dict[str, Any]) -> Any:
    try:
        import gymnax
    except ImportError as error:
        raise ImportError(f"{INSTALL} ({error})") from error
    try:
        return gymnax.make(name, **options)[0]
    except (ValueError, KeyError) as error:
        raise ValueError(
            f"gymnax has no environment {name!r}. There are {', '.join(gymnax.registered_envs)}."
        ) from error


def _check(env: Any) -> None:
    """Refuse what is no environment, and wrappers whose changes would be passed over."""
    if not hasattr(env, "step_env"):
        raise TypeError(
            "env must be the name of a gymnax environment or an object with gymnax's reset_env "
            f"and step_env, got {type(env).__name__}; `gymnax.make` returns a pair, of which the "
            "first entry is the environment."
        )
    layer = env
    while (inner := vars(layer).get("_env")) is not None:
        kind = type(layer)
        for changed in ("reset", "step"):
            if changed in vars(kind) and f"{changed}_env" not in vars(kind):
                raise ValueError(
                    f"{kind.__name__} changes {changed}, which is not called here, because it "
                    f"begins new episodes by itself: give the environment without it, or define "
                    f"{changed}_env in a wrapper of your own."
                )
        layer = inner


class _Adapter:
    """The functions of an environment with gymnax's interface."""

    def __init__(self, env: Any, params: Any):
        self.env, self.params = env, params
        space = env.action_space(params)
        self.discrete = hasattr(space, "n")
        self.shape = () if self.discrete else tuple(space.shape)
        self.actions = int(space.n) if self.discrete else int(np.prod(self.shape))
        self.bounds = None
        if not self.discrete:
            limits = (jnp.asarray(x, float) for x in (space.low, space.high))
            low, high = (jnp.broadcast_to(x, self.shape) for x in limits)
            self.bounds = (low, high)

    def reset(self, key):
        observation, state = self.env.reset_env(key, self.params)
        return state, observation

    def step(self, state, action, key):
        observation, state, reward, ended, _ = self.env.step_env(key, state, action, self.params)
        return state, observation, reward, ended
