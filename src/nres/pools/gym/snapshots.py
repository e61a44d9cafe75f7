"""Snapshots of gymnasium environments: their state as a row of numbers, without pickling."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

# The environments and wrappers whose attributes are known to hold nothing but numbers that matter.
# Others might keep something in a list or an object that shows only many steps later.
KNOWN = ("gymnasium.envs.classic_control.", "gymnasium.envs.mujoco.")
KNOWN_WRAPPERS = (
    *("TimeLimit", "OrderEnforcing", "PassiveEnvChecker", "TimeAwareObservation", "ClipAction"),
    *("RescaleAction", "ClipReward", "RescaleObservation", "FlattenObservation"),
    *("DtypeObservation", "ReshapeObservation", "FilterObservation"),
)
# A random generator's state as numbers: four words each for two large integers, and two more.
_WORDS, _GENERATOR = 4, 10
# The numbers of steps before a snapshot and after it, when it is tried out.
_STEPS = 5


class Attribute(NamedTuple):
    """An attribute that holds numbers and changes."""

    layer: int
    """The index of the wrapper that has it; the environment is the last."""
    name: str
    like: Any
    """An example of its value: a number, a tuple of numbers or an array."""


class Inner(NamedTuple):
    """A way to take what is not in attributes from an environment, and to put it back."""

    take: Callable[[Any], np.ndarray]
    put: Callable[[Any, np.ndarray], None]


@dataclasses.dataclass(frozen=True)
class Snapshots:
    """A way to take an environment's state as a row of numbers, and to put it back.

    The row holds the attributes that change, what `inner` takes, and the state of the random
    generator.
    """

    attributes: list[Attribute]
    inner: Inner | None

    def take(self, env: Any) -> np.ndarray:
        """Return the state as a row of numbers."""
        return np.concatenate([self._rest(env), _generator(env)])

    def put(self, env: Any, row: np.ndarray) -> None:
        """Put an environment that has been reset into a state."""
        size = self._rest(env).size
        layers, start = list(_layers(env)), 0
        for at in self.attributes:
            part = row[start : start + np.size(at.like)]
            start += part.size
            if isinstance(at.like, np.ndarray):
                value: Any = part.reshape(at.like.shape).astype(at.like.dtype)
            elif isinstance(at.like, tuple):
                value = tuple(map(float, part))
            else:
                value = type(at.like)(part[0])
            setattr(layers[at.layer], at.name, value)
        if self.inner is not None:
            self.inner.put(layers[-1], row[start:size])
        _set_generator(env, row[size:])

    def _rest(self, env: Any) -> np.ndarray:
        """Return all but the state of the random generator."""
        layers = list(_layers(env))
        parts = [np.ravel(getattr(layers[at.layer], at.name)) for at in self.attributes]
        parts += [] if self.inner is None else [self.inner.take(layers[-1])]
        return np.concatenate([np.empty(0), *parts]).astype(np.float64)


def snapshots_of(env: Any) -> Snapshots | None:
    """Return a way to take and put back the state of an environment; `None` if there is none.

    An environment's own `get_state` and `set_state` are taken as they are. For gymnasium's classic
    control and MuJoCo environments, the state consists of the attributes that change and of the
    MuJoCo simulation. Wrappers must be known ones, whose state are their attributes that change.
    Stepping twice from the same snapshot shows if that is all. The environment must not be in use:
    its episode is lost.
    """
    *wrappers, last = _layers(env)
    own = hasattr(last, "get_state") and hasattr(last, "set_state")
    if not all(_is_known(type(layer)) for layer in (wrappers if own else [*wrappers, last])):
        return None
    if own and not wrappers:
        return Snapshots([], OWN)
    env.action_space.seed(0)
    actions = [env.action_space.sample() for _ in range(2 * _STEPS)]
    seen = []
    for seed in (0, 1):
        env.reset(seed=seed)
        seen.append(_numbers(env))
        _walk(env, actions[:_STEPS])
        seen.append(_numbers(env))
    changing = [
        Attribute(*where, value)
        for where, value in seen[-1].items()
        if any(where in old and not np.array_equal(old[where], value) for old in seen)
        and not (own and where[0] == len(wrappers))
    ]
    inner = OWN if own else MUJOCO if hasattr(last, "do_simulation") else None
    snapshots = Snapshots(changing, inner)
    row = snapshots.take(env)
    first = _walk(env, actions[_STEPS:])
    env.reset(seed=2)
    snapshots.put(env, row)
    second = _walk(env, actions[_STEPS:])
    return snapshots if all(map(np.array_equal, first, second)) else None


def _is_known(kind: type) -> bool:
    if kind.__module__.startswith("gymnasium.wrappers."):
        return kind.__name__ in KNOWN_WRAPPERS
    return kind.__module__.startswith(KNOWN)


def _walk(env: Any, actions: list[Any]) -> list[np.ndarray]:
    """Take steps until an episode ends; return all numbers that the environment returns."""
    seen: list[np.ndarray] = []
    for action in actions:
        observation, reward, terminated, truncated, _ = env.step(action)
        seen += [np.asarray(value) for value in (observation, reward, terminated, truncated)]
        if terminated or truncated:
            break
    return seen


def _layers(env: Any) -> Iterator[Any]:
    """Yield the wrappers of an environment, and the environment itself."""
    while env is not env.unwrapped:
        yield env
        env = env.env
    yield env


def _numbers(env: Any) -> dict[tuple[int, str], Any]:
    """Return the attributes that hold numbers, in the environment and in its wrappers."""
    return {
        (layer, name): value.copy() if isinstance(value, np.ndarray) else value
        for layer, part in enumerate(_layers(env))
        for name, value in vars(part).items()
        if _holds_numbers(value)
    }


def _holds_numbers(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "biuf"
    values = value if isinstance(value, tuple) and value else (value,)
    return all(isinstance(x, int | float | np.number) for x in values)


def _generator(env: Any) -> np.ndarray:
    """Return the state of the random generator, or nothing if it is of an unusual kind."""
    generator: Any = getattr(env.unwrapped, "np_random", None)
    if not isinstance(getattr(generator, "bit_generator", None), np.random.PCG64):
        return np.empty(0)
    state = generator.bit_generator.state
    large = [state["state"]["state"], state["state"]["inc"]]
    words = [number >> (32 * i) & 0xFFFFFFFF for number in large for i in range(_WORDS)]
    return np.array([*words, state["has_uint32"], state["uinteger"]], np.float64)


def _set_generator(env: Any, row: np.ndarray) -> None:
    if row.size != _GENERATOR:
        return  # an unusual generator, or a state that an earlier version saved
    *words, has, last = map(int, row)
    large = [words[:_WORDS], words[_WORDS:]]
    state, increment = (sum(w << (32 * i) for i, w in enumerate(part)) for part in large)
    generator = env.unwrapped.np_random.bit_generator
    generator.state = generator.state | {
        "state": {"state": state, "inc": increment},
        "has_uint32": has,
        "uinteger": last,
    }


def _own(env: Any) -> np.ndarray:
    return np.ravel(env.get_state()).astype(np.float64)


def _set_own(env: Any, row: np.ndarray) -> None:
    env.set_state(row.reshape(np.shape(env.get_state())))


def _simulation(env: Any) -> np.ndarray:
    import mujoco

    row = np.empty(mujoco.mj_stateSize(env.model, mujoco.mjtState.mjSTATE_INTEGRATION))
    mujoco.mj_getState(env.model, env.data, row, mujoco.mjtState.mjSTATE_INTEGRATION)
    return row


def _set_simulation(env: Any, row: np.ndarray) -> None:
    import mujoco

    mujoco.mj_setState(env.model, env.data, row, mujoco.mjtState.mjSTATE_INTEGRATION)


OWN = Inner(_own, _set_own)
MUJOCO = Inner(_simulation, _set_simulation)
