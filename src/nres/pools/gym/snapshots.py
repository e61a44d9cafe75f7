"""Snapshots of gymnasium environments: their state as a row of numbers, without pickling."""

import abc
import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

# The numbers of steps before a snapshot and after it, when it is tried out.
_STEPS = 5
_WORD = 2**32


class Snapshots(abc.ABC):
    """A way to take an environment's state as a row of numbers, and to put it back."""

    @abc.abstractmethod
    def take(self, env: Any) -> np.ndarray:
        """Return the state as a row of numbers."""

    @abc.abstractmethod
    def put(self, env: Any, row: np.ndarray) -> None:
        """Put an environment that has been reset into a state."""


class Own(Snapshots):
    """Snapshots by the environment's own `get_state` and `set_state`."""

    def take(self, env):
        return np.asarray(env.unwrapped.get_state(), np.float64)

    def put(self, env, row):
        env.unwrapped.set_state(row)


@dataclasses.dataclass(frozen=True)
class Found(Snapshots):
    """Snapshots of attributes that hold numbers."""

    attributes: list["Attribute"]

    def take(self, env):
        return _take(env, self.attributes)

    def put(self, env, row):
        _put(env, self.attributes, row)


def snapshots_of(env: Any) -> Snapshots | None:
    """Return how to take and put back the state of an environment; `None` if nothing works.

    An environment's own `get_state` and `set_state` are taken as they are. Otherwise the numbers in
    the attributes of the environment and its wrappers are used, its random generator, and the
    state of its MuJoCo simulation. Whether that is all is found out by stepping an environment
    twice from the same snapshot. The environment must not be in use: its episode is lost.
    """
    inner = env.unwrapped
    if hasattr(inner, "get_state") and hasattr(inner, "set_state"):
        return Own()
    try:
        env.reset(seed=0)
        env.action_space.seed(0)
        actions = [env.action_space.sample() for _ in range(2 * _STEPS)]
        _walk(env, actions[:_STEPS])
        snapshots = Found(_attributes(env))
        row = snapshots.take(env)
        first = _walk(env, actions[_STEPS:])
        env.reset(seed=1)
        snapshots.put(env, row)
        second = _walk(env, actions[_STEPS:])
    except Exception:  # an environment may refuse anything; it can still run without snapshots
        return None
    return snapshots if all(map(np.array_equal, first, second)) else None


def _walk(env: Any, actions: list[Any]) -> list[np.ndarray]:
    """Take steps until an episode ends; return all numbers that the environment returns."""
    seen: list[np.ndarray] = []
    for action in actions:
        observation, reward, terminated, truncated, _ = env.step(action)
        values = observation.values() if isinstance(observation, dict) else [observation]
        seen += [np.asarray(value) for value in (*values, reward, terminated, truncated)]
        if terminated or truncated:
            break
    return seen


def _layers(env: Any) -> Iterator[Any]:
    """Yield the wrappers of an environment, and the environment itself."""
    while True:
        yield env
        if env is env.unwrapped:
            return
        env = env.env


class Attribute(NamedTuple):
    """An attribute that holds numbers."""

    layer: int
    name: str
    kind: str
    """`number`, `array`, `tuple`, `generator` or `mujoco`."""
    size: int
    like: Any
    """An example of its value."""


def _attributes(env: Any) -> list[Attribute]:
    """List the attributes that hold numbers, in the environment and in its wrappers."""
    found = []
    for layer, part in enumerate(_layers(env)):
        for name, value in vars(part).items():
            if value is None or isinstance(value, bool | int | float | np.number | np.bool_):
                found.append(Attribute(layer, name, "number", 1, value))
            elif isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
                found.append(Attribute(layer, name, "array", value.size, value.copy()))
            elif isinstance(value, tuple) and value and _are_numbers(value):
                found.append(Attribute(layer, name, "tuple", len(value), value))
            elif isinstance(value, np.random.Generator):
                size = _words(value).size
                found.append(Attribute(layer, name, "generator", size, None))
        if hasattr(part, "do_simulation") and "data" in vars(part):
            row = _simulation(part)
            found.append(Attribute(layer, "data", "mujoco", row.size, None))
    return found


def _are_numbers(values: tuple) -> bool:
    return all(isinstance(value, int | float | np.number) for value in values)


def _take(env: Any, attributes: list[Attribute]) -> np.ndarray:
    layers, parts = list(_layers(env)), []
    for at in attributes:
        value = getattr(layers[at.layer], at.name)
        if at.kind == "number":
            parts.append(np.array([np.nan if value is None else value], np.float64))
        elif at.kind == "generator":
            parts.append(_words(value))
        elif at.kind == "mujoco":
            parts.append(_simulation(layers[at.layer]))
        else:
            parts.append(np.ravel(np.asarray(value, np.float64)))
        if parts[-1].size != at.size:
            raise ValueError(f"{at.name} changed its size, so it cannot be part of a snapshot.")
    return np.concatenate(parts)


def _put(env: Any, attributes: list[Attribute], row: np.ndarray) -> None:
    layers, start = list(_layers(env)), 0
    for at in attributes:
        part, numbers = layers[at.layer], row[start : start + at.size]
        start += at.size
        if at.kind == "generator":
            setattr(part, at.name, _generator(numbers))
        elif at.kind == "mujoco":
            _set_simulation(part, numbers)
        elif at.kind == "array":
            setattr(part, at.name, numbers.reshape(at.like.shape).astype(at.like.dtype))
        elif at.kind == "tuple":
            values = zip(numbers, at.like, strict=True)
            setattr(part, at.name, tuple(type(like)(number) for number, like in values))
        else:
            setattr(part, at.name, _number(numbers[0], at.like))


def _number(number: np.float64, like: Any) -> Any:
    """Return a number of the same type as before; one that was `None` may be of any type."""
    if np.isnan(number):
        return None if not isinstance(like, float) else float(number)
    if like is None:
        return int(number) if number == int(number) else float(number)
    return type(like)(number)


def _words(generator: np.random.Generator) -> np.ndarray:
    """Return the state of a generator as whole numbers below 2^32, which are exact as floats."""
    state = generator.bit_generator.state
    if state["bit_generator"] != "PCG64":
        raise ValueError("only the state of NumPy's usual generator is known.")
    numbers = [state["state"]["state"], state["state"]["inc"]]
    words = [number >> 32 * i & (_WORD - 1) for number in numbers for i in range(4)]
    return np.array([*words, state["has_uint32"], state["uinteger"]], np.float64)


def _generator(row: np.ndarray) -> np.random.Generator:
    """Return a generator of the same class as gymnasium's, in a state that `_words` returned."""
    from gymnasium.utils import seeding  # only environments of gymnasium have one

    generator = seeding.RandomNumberGenerator(np.random.PCG64(0))
    words = [int(word) for word in row]
    number, increment = (
        sum(word << 32 * i for i, word in enumerate(words[j : j + 4])) for j in (0, 4)
    )
    generator.bit_generator.state = {
        "bit_generator": "PCG64",
        "state": {"state": number, "inc": increment},
        "has_uint32": words[8],
        "uinteger": words[9],
    }
    return generator


def _simulation(env: Any) -> np.ndarray:
    import mujoco

    row = np.empty(mujoco.mj_stateSize(env.model, mujoco.mjtState.mjSTATE_INTEGRATION))
    mujoco.mj_getState(env.model, env.data, row, mujoco.mjtState.mjSTATE_INTEGRATION)
    return row


def _set_simulation(env: Any, row: np.ndarray) -> None:
    import mujoco

    mujoco.mj_setState(env.model, env.data, row, mujoco.mjtState.mjSTATE_INTEGRATION)
