"""The registry: systems known by name, and the default settings of each method on them.

Numbers are those that Li et al. (NeurIPS 2023) tuned, with the label of their table.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax

from nres.pools.mujoco import MujocoPool
from nres.systems import Lorenz
from nres.systems.learned_optimizer import (
    LearnedOptimizerSystem,
    PerParameterMLP,
    Task,
    cifar10_task,
    fashion_mnist_task,
)


@dataclasses.dataclass(frozen=True)
class Preset:
    """Default settings of a method on a system."""

    lr: str
    """The learning rate, as `nres.Piecewise.parse` reads it."""
    workers: int
    window: int | None = None
    sigma: str | None = None
    period: int | None = None
    optimizer: str = "sgd"
    updates: int = 1000


@dataclasses.dataclass(frozen=True)
class KnownSystem:
    """A system with a name."""

    summary: str
    make: Callable[..., Any]
    presets: Mapping[str, Preset]
    """By method."""
    kind: type
    """The class that `make` returns."""
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Options that a run records and uses unless it is given others."""


def _lorenz(**settings: Any) -> Preset:
    online: dict[str, Any] = {"workers": 200, "window": 100, "sigma": "0.04", "updates": 2400}
    return Preset(**(online | settings))


def _lorenz_ad(**settings: Any) -> Preset:
    return _lorenz(sigma=None, **settings)


def _mujoco(task: str, **defaults: Any) -> Callable[..., MujocoPool]:
    def make(**options: Any) -> MujocoPool:
        return MujocoPool(task, **(defaults | options))

    return make


def _learned_on(task: Callable[..., Task]) -> Callable[..., LearnedOptimizerSystem]:
    def make(
        *,
        width: int = 32,
        depth: int = 2,
        horizon: int = 1000,
        sequence: str = "fixed",
        data_seed: int = 0,
        **options: Any,
    ) -> LearnedOptimizerSystem:
        return LearnedOptimizerSystem(
            task(**options),
            PerParameterMLP(width, depth),
            horizon=horizon,
            sequence=sequence,
            key=jax.random.key(data_seed),
        )

    return make


# A per-parameter network that trains one of these models; `width` and `depth` are the network's.
fashion_mnist_system = _learned_on(fashion_mnist_task)
cifar10_system = _learned_on(cifar10_task)


def _learned(**settings: Any) -> Preset:
    online: dict[str, Any] = {
        "workers": 100,
        "window": 1,
        "sigma": "0.01",
        "optimizer": "adam",
        "updates": 10_000,
    }
    return Preset(**(online | settings))


def _learned_ad(**settings: Any) -> Preset:
    return _learned(sigma=None, **settings)


def _learned_cifar(**settings: Any) -> Preset:
    return _learned(**({"workers": 10, "window": 100, "updates": 20_000} | settings))


def _swimmer(**settings: Any) -> Preset:
    online: dict[str, Any] = {"workers": 30, "window": 100, "sigma": "0.3", "updates": 100}
    return Preset(**(online | settings))


def _half_cheetah(**settings: Any) -> Preset:
    online: dict[str, Any] = {"workers": 300, "window": 20, "sigma": "0.004", "updates": 800}
    return Preset(**(online | settings))


SYSTEMS: dict[str, KnownSystem] = {
    "lorenz": KnownSystem(
        "recover the two parameters of a chaotic trajectory, T = 2000",
        Lorenz,
        # [tab:lorenz_hyperparameters]. Those that work on whole episodes make fewer updates.
        {
            "fulles": _lorenz(lr="3e-5", workers=10, window=None, updates=600),
            "tes": _lorenz(lr="3e-4"),
            "pes": _lorenz(lr="1e-5,1000:1e-6"),
            "gpes": _lorenz(lr="1e-5", period=500),
            "nres": _lorenz(lr="1e-5"),
            "bptt": _lorenz_ad(lr="1e-8", workers=1, window=None, updates=600),
            "tbptt": _lorenz_ad(lr="3e-4"),
            "dodge": _lorenz_ad(lr="1e-10"),
            "uoro": _lorenz_ad(lr="1e-13"),
        },
        Lorenz,
        # The paper's 10,000 initial states would cost more than the training.
        {"test_episodes": 100},
    ),
    # [tab:lopt_hyperparameters] for these two. The paper makes 240,000 updates on the first.
    "learned-optimizer": KnownSystem(
        "an optimizer that trains a perceptron on Fashion-MNIST, T = 1000",
        fashion_mnist_system,
        {
            "fulles": _learned(lr="3e-2", workers=10, window=None, updates=1000),
            "tes": _learned(lr="1e-3"),
            "pes": _learned(lr="3e-4"),
            "gpes": _learned(lr="3e-4", period=16),
            "nres": _learned(lr="3e-4"),
            "bptt": _learned_ad(lr="3e-4", workers=1, window=None, updates=1000),
            "tbptt": _learned_ad(lr="1e-2"),
            "dodge": _learned_ad(lr="1e-5"),
            "uoro": _learned_ad(lr="3e-5"),
        },
        LearnedOptimizerSystem,
    ),
    "learned-optimizer-cifar10": KnownSystem(
        "an optimizer that trains a convolutional network on CIFAR-10, T = 1000",
        cifar10_system,
        {
            "fulles": _learned_cifar(lr="1e-3", workers=1, window=None),
            "tes": _learned_cifar(lr="1e-3"),
            "pes": _learned_cifar(lr="3e-4"),
            "nres": _learned_cifar(lr="3e-4"),
        },
        LearnedOptimizerSystem,
    ),
    # [tab:rl_hyperparameters] for these two.
    "swimmer": KnownSystem(
        "swim forward with three links (MuJoCo Swimmer), T = 1000",
        _mujoco("swimmer"),
        {
            "fulles": _swimmer(lr="1", workers=3, window=None),
            "tes": _swimmer(lr="30"),
            "pes": _swimmer(lr="1"),
            "nres": _swimmer(lr="3"),
        },
        MujocoPool,
    ),
    "halfcheetah": KnownSystem(
        "run forward on two legs (MuJoCo HalfCheetah), T = 1000",
        _mujoco("halfcheetah", variance=0.03),
        {
            "fulles": _half_cheetah(lr="3e-5", workers=6, window=None),
            "tes": _half_cheetah(lr="3e-5"),
            "pes": _half_cheetah(lr="3e-6"),
            "nres": _half_cheetah(lr="3e-5"),
        },
        MujocoPool,
    ),
    # The others are not in the paper: give a sigma and a learning rate.
    **{
        task: KnownSystem(
            f"{what} (MuJoCo {name}), ends on a fall, T = 1000", _mujoco(task), {}, MujocoPool
        )
        for task, name, what in (
            ("hopper", "Hopper", "hop forward on one leg"),
            ("walker2d", "Walker2d", "walk forward on two legs, in a plane"),
            ("ant", "Ant", "walk forward on four legs"),
            ("humanoid", "Humanoid", "walk forward on two legs"),
        )
    },
}
