"""`Together`: several systems with the same parameters, whose losses are averaged."""

from collections.abc import Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
from jaxtyping import Array, Key

from nres.evaluation import evaluate
from nres.system import System, Theta, horizon_of

# The number of episodes that stand for the metrics of a system without any.
EPISODES = 20


class Together(System):
    r"""Several systems that have the same parameters: the loss is the mean of their losses.

    Use it for tasks of different shapes, for example models of different sizes that one learned
    optimizer trains: tasks of one shape are better mixed within one system. A worker runs one
    trajectory of every system, all with the same noise.

    Args:
        systems: The systems. They must have the same horizon, or the same distribution of lengths,
            must not end early, and must not measure parts of `theta`.

    Raises:
        ValueError: If there are none, their horizons differ, or one measures parts of `theta`.

    Example:
        ```python
        tasks = learned_optimizer.convolutional_task(), learned_optimizer.autoencoder_task()
        system = nres.systems.Together(
            [learned_optimizer.LearnedOptimizerSystem(task, optimizer) for task in tasks]
        )
        ```
    """

    systems: tuple[System, ...]
    horizon: int = eqx.field(static=True)
    lengths: Any = eqx.field(static=True)

    def __init__(self, systems: Sequence[System]):
        self.systems = tuple(systems)
        if not self.systems:
            raise ValueError("Together needs at least one system.")
        for system in self.systems:
            if system.observed_between is not None:
                raise ValueError(f"{type(system).__name__} measures parts of theta: run it alone.")
        horizons = {(horizon_of(system), system.lengths) for system in self.systems}
        if len(horizons) > 1:
            raise ValueError(
                f"the systems must have one horizon, got {sorted(map(str, horizons))}."
            )
        self.horizon, self.lengths = horizons.pop()

    def initial_theta(self, key: Key[Array, ""]) -> Theta:
        """Return the initial parameters of the first system."""
        first = self.systems[0]
        if first.initial_theta is None:
            raise ValueError(f"{type(first).__name__} has no initial parameters.")
        return first.initial_theta(key)

    def init(self, theta, key):
        return tuple(
            system.init(theta, jax.random.fold_in(key, i)) for i, system in enumerate(self.systems)
        )

    def step(self, state, theta, t, key):
        states: list[Any] = []
        total: Any = 0.0
        for i, (system, old) in enumerate(zip(self.systems, state, strict=True)):
            result = system.step(old, theta, t, jax.random.fold_in(key, i))
            if len(result) > 2:
                raise ValueError(f"{type(system).__name__} ends early, which Together does not do.")
            states.append(result[0])
            total = result[1] + total
        return tuple(states), total / len(self.systems)

    def metrics(self, theta: Theta, key: Key[Array, ""]) -> Mapping[str, Any]:
        """Compute the mean of each metric over the systems, and each system's own.

        A system without metrics contributes the mean loss of some episodes.

        Args:
            theta: The parameters.
            key: A JAX random key.
        """
        found: list[Mapping[str, Any]] = []
        for i, system in enumerate(self.systems):
            own = jax.random.fold_in(key, i)
            if system.metrics is None:
                found.append({"loss": evaluate(system, theta, own, episodes=EPISODES).loss})
            else:
                found.append(system.metrics(theta, own))
        shared = [name for name in found[0] if all(name in each for each in found)]
        means = {name: sum(each[name] for each in found) / len(found) for name in shared}
        each = {f"{name}_{i}": value for i, own in enumerate(found) for name, value in own.items()}
        return {**means, **each}

    @property
    def metrics_steps(self) -> int | None:  # type: ignore[override]
        """The number of unroll steps in `metrics`, or `None` if a system does not tell."""
        steps = [system.metrics_steps for system in self.systems]
        return sum(filter(None, steps)) if all(steps) else None
