"""`BraxEnvironment`: environments of Brax, and of MuJoCo Playground, which has its interface."""

import abc
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nres.checks import check_frames
from nres.errors import first_line
from nres.policies import AnyPolicy
from nres.pools.base import Film, PoolError
from nres.pools.mujoco.render import HELP
from nres.system import Theta
from nres.systems.environments.base import EnvironmentSystem, Made, raw_key

INSTALL = "Brax environments need brax: pip install 'nres[brax]'."
PLAYGROUND_INSTALL = "MuJoCo Playground needs playground: pip install 'nres[playground]'."
# The entry of a dictionary of observations that a policy sees, as in MuJoCo Playground.
SEEN = "state"
# The camera that follows the robot, in models that have one.
CAMERA = "track"
# What the names of wrappers contain that reset environments, count steps or make batches.
WRAPPERS = ("AutoReset", "Vmap", "EpisodeWrapper", "EvalWrapper", "DomainRandom")


class _Drawable(EnvironmentSystem):
    """An environment that MuJoCo can draw."""

    @abc.abstractmethod
    def _environment(self) -> Any:
        """Return the environment, as it was given or by its name."""

    def film(
        self,
        theta: Theta,
        seed: int,
        *,
        steps: int,
        every: int,
        size: tuple[int, int] = (320, 240),
    ) -> Film:
        """Draw one unperturbed episode, with arguments as for `nres.pools.MujocoPool.film`."""
        width, height = size
        steps = min(steps, self.test_horizon)
        check_frames(-(-steps // every), size)
        env, key = self._environment(), jax.random.key(seed)
        # Brax draws the states of its physics, and MuJoCo Playground those of the environment.
        model = getattr(env.sys if hasattr(env, "sys") else env, "mj_model", None)
        if model is None:
            raise PoolError(f"{type(env).__name__} has no MuJoCo model, so it cannot be drawn.")
        structure = jax.tree.structure(jax.eval_shape(env.reset, raw_key(key)))
        episode, step = self.init(theta, key), jax.jit(lambda *given: self.step(*given))
        states = []
        for t in range(steps):
            if t % every == 0:
                states.append(jax.tree.unflatten(structure, episode.environment))
            episode, _, ended = step(episode, theta, jnp.int32(t), jax.random.fold_in(key, t + 1))
            if ended:
                break
        try:
            shown = [s.pipeline_state for s in states] if hasattr(env, "sys") else states
            camera = CAMERA if CAMERA in (model.camera(i).name for i in range(model.ncam)) else None
            frames = env.render(shown, height=height, width=width, camera=camera)
        except Exception as error:  # the type depends on what is missing
            name = type(env).__name__
            raise PoolError(f"{name} cannot be drawn: {first_line(error)}. {HELP}") from error
        return Film([np.asarray(frame) for frame in frames], every * float(env.dt))


class BraxEnvironment(_Drawable):
    """Unrolls of a policy in an environment with Brax's interface; the loss is minus the reward.

    The interface is `reset(key)` and `step(state, action)`, which return a state with `obs`,
    `reward` and `done`, and `action_size`. Actions are clipped to [-1, 1], as is usual in Brax.

    Args:
        env: The name of a Brax environment, for example `"ant"`, or an environment. Wrappers that
            batch or reset environments by themselves are refused.
        policy: `"linear"`, `"mlp:64,64"`, `"gru:16"`, or any `nres.policies.Policy`.
        horizon: T, the number of steps in an episode.
        test_horizon: The number of steps in the episodes that `metrics` measures, as for
            `nres.pools.MujocoPool`.
        variance: The variance of a named policy's initial parameters.
        normalise: True to give the policy observations with mean 0 and variance 1, as for
            `nres.pools.MujocoPool`.
        shift: A number to subtract from the reward of every step in training, for example the bonus
            for not falling, as for `nres.pools.MujocoPool`.
        options: Keyword arguments of a named environment, for example `backend="mjx"`.

    Raises:
        ImportError: If Brax is not installed.
        ValueError: If there is no such environment, or a wrapper is refused.

    Example:
        ```python
        system = nres.systems.BraxEnvironment("inverted_pendulum", horizon=200)
        estimator = nres.NRES(system, workers=100, window=20, sigma=0.1)
        ```
    """

    def __init__(
        self,
        env: Any,
        policy: str | AnyPolicy = "linear",
        *,
        horizon: int = 1000,
        test_horizon: int | None = None,
        variance: float | None = None,
        normalise: bool = False,
        shift: float = 0.0,
        **options: Any,
    ):
        made = Made(env, policy, options, horizon, test_horizon, variance, normalise, shift)
        if isinstance(env, str):
            env = _make(env, options)
        elif options:
            raise TypeError(f"{', '.join(options)}: options are for environments given by name.")
        self._adapt(_Adapter(env), made)

    def _environment(self) -> Any:
        made = self._made
        return _make(made.env, made.options) if isinstance(made.env, str) else made.env


class PlaygroundEnvironment(_Drawable):
    """Unrolls of a policy in an environment of MuJoCo Playground, by its name.

    The physics runs in JAX (MJX); Playground's other implementation, Warp, takes no nested batches
    and is refused. The other arguments are those of `BraxEnvironment`.

    Args:
        env: The name of an environment, for example `"CheetahRun"`.
        policy: `"linear"`, `"mlp:64,64"`, `"gru:16"`, or any `nres.policies.Policy`.
        horizon: T, the number of steps in an episode; by default, the environment's own.
        options: Entries of the environment's configuration to override.

    Raises:
        ImportError: If MuJoCo Playground is not installed.
        ValueError: If there is no such environment.

    Example:
        ```python
        system = nres.systems.PlaygroundEnvironment("CheetahRun", normalise=True)
        ```
    """

    def __init__(
        self,
        env: str,
        policy: str | AnyPolicy = "linear",
        *,
        horizon: int | None = None,
        test_horizon: int | None = None,
        variance: float | None = None,
        normalise: bool = False,
        shift: float = 0.0,
        **options: Any,
    ):
        registry = _playground()
        if options.get("impl", "jax") != "jax":
            raise ValueError(
                f"impl={options['impl']!r}: only the implementation in JAX, impl='jax', can run "
                "the members and workers of an estimator as one batch."
            )
        if env not in registry.ALL_ENVS:
            raise ValueError(
                f"MuJoCo Playground has no environment {env!r}. There are "
                f"{', '.join(sorted(registry.ALL_ENVS))}."
            )
        made = Made(env, policy, options, horizon, test_horizon, variance, normalise, shift)
        config = registry.get_default_config(env)
        usual = int(options.get("episode_length", config.episode_length))
        self._adapt(_Adapter(_load(env, options)), made, usual=usual)

    def _environment(self) -> Any:
        return _load(self._made.env, self._made.options)


def _playground() -> Any:
    try:
        from mujoco_playground import registry
    except ImportError as error:
        raise ImportError(f"{PLAYGROUND_INSTALL} ({error})") from error
    return registry


def _load(name: str, options: dict[str, Any]) -> Any:
    registry = _playground()
    jax_physics = {"impl": "jax"} if "impl" in registry.get_default_config(name) else {}
    return registry.load(name, config_overrides={**options, **jax_physics})


def _make(name: str, options: dict[str, Any]) -> Any:
    try:
        from brax import envs
    except ImportError as error:
        raise ImportError(f"{INSTALL} ({error})") from error
    try:
        return envs.get_environment(name, **options)
    except KeyError as error:
        raise ValueError(
            f"Brax has no environment {name!r}. There are {', '.join(sorted(envs._envs))}."
        ) from error


class _Adapter:
    """The functions of an environment with Brax's interface."""

    discrete = False

    def __init__(self, env: Any):
        for name in ("reset", "step", "action_size"):
            if not hasattr(env, name):
                raise ValueError(f"{type(env).__name__} has no `{name}`, as Brax environments do.")
        _refuse_wrappers(env)
        self.env, self.actions = env, int(env.action_size)
        self.shape = (self.actions,)
        self.bounds = (-jnp.ones(self.shape), jnp.ones(self.shape))

    def reset(self, key):
        state = self.env.reset(key)
        return state, _seen(state.obs)

    def step(self, state, action, key):
        state = self.env.step(state, action)
        return state, _seen(state.obs), state.reward, state.done > 0.5


def _refuse_wrappers(env: Any) -> None:
    """Raise a `ValueError` if a wrapper resets environments, counts steps or makes batches."""
    inner = env
    while inner is not None:
        name = type(inner).__name__
        if any(word in name for word in WRAPPERS):
            raise ValueError(
                f"{name} resets, batches or randomises environments by itself, which estimators "
                "do: give the environment without it, for example from "
                "`brax.envs.get_environment`."
            )
        inner = inner.__dict__.get("env")


def _seen(observation: Any) -> Any:
    """Return the part of an observation that a policy sees."""
    if isinstance(observation, dict) or hasattr(observation, "keys"):
        if SEEN not in observation:
            raise ValueError(
                f"the observation is a dictionary without {SEEN!r}: {', '.join(observation)}."
            )
        return observation[SEEN]
    return observation
