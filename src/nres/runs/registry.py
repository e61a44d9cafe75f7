"""The registry: systems known by name, and the preset settings of each method on them.

Unless a comment says otherwise, the numbers are the hyperparameters that Li et al. (NeurIPS 2023)
tuned, and the seeds are those of their initial parameters.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax

from nres.checks import positive_number
from nres.lengths import LogUniform
from nres.pools.mujoco import MujocoPool
from nres.runs.starts import model_start, optimizer_start, policy_start
from nres.systems import BraxEnvironment, InfluenceBalancing, Lorenz, ToySchedule, TrainingRun
from nres.systems.hyperparameters import RidgePenalty, many_hyperparameters, rate_and_decay
from nres.systems.learned_optimizer import (
    Celo2,
    LearnedOptimizerSystem,
    PerParameterMLP,
    Task,
    cifar10_task,
    fashion_mnist_task,
    small_images_task,
)
from nres.systems.recurrent import RecurrentNetwork, characters, echo


@dataclasses.dataclass(frozen=True)
class Preset:
    """Preset: default settings of a method on a system."""

    lr: str
    """The learning rate, as `nres.Piecewise.parse` reads it."""
    workers: int
    window: int | None = None
    sigma: str | None = None
    period: int | None = None
    shaping: str | None = None
    optimizer: str = "sgd"
    updates: int = 1000


@dataclasses.dataclass(frozen=True)
class KnownSystem:
    """A system that the command line knows by name."""

    summary: str
    make: Callable[..., Any]
    presets: Mapping[str, Preset]
    """The presets, by method."""
    kind: type
    """The class that `make` returns."""
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Arguments of `make` that a run uses, and records, unless the user gives others."""
    start_seed: int | None = None
    """The seed of the initial parameters that all runs share, unless the user gives another."""
    start: Callable[[Any, int], Any] | None = None
    """Draws the initial parameters from a system and a start seed; by default the system does."""


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
        model_seed: int | None = None,
        **options: Any,
    ) -> LearnedOptimizerSystem:
        system = LearnedOptimizerSystem(
            task(**options),
            PerParameterMLP(width, depth),
            horizon=horizon,
            sequence=sequence,
            key=jax.random.key(data_seed),
        )
        if model_seed is None or system.start is None:
            return system
        start = model_start(system.task, model_seed)
        return eqx.tree_at(lambda s: s.start, system, start)

    return make


# A per-parameter network learns to train one of these models; `width` and `depth` are its size.
# `model_seed` draws the initial model of a fixed sequence as the paper does. The order of its
# batches is not known, so `data_seed` draws another.
fashion_mnist_system = _learned_on(fashion_mnist_task)
cifar10_system = _learned_on(cifar10_task)


def celo2_system(
    *,
    base: bool = False,
    horizon: int = 2000,
    largest_scale: float = 1000.0,
    test_episodes: int = 64,
    **options: Any,
) -> LearnedOptimizerSystem:
    """Make the distribution of tasks on which Celo2 is trained.

    Episodes take from a twentieth of `horizon` to `horizon` steps. `largest_scale` is the largest
    c, and 1 over it the smallest. `options` are those of the task.
    """
    return LearnedOptimizerSystem(
        small_images_task(evaluated_on="train", **options),
        Celo2(base=base),
        horizon=LogUniform(max(1, horizon // 20), horizon),
        sequence="random",
        scales=(1 / positive_number("largest_scale", largest_scale), largest_scale),
        outer="before",
        cap=1.5 * math.log(10),
        test_episodes=test_episodes,
    )


def _celo2(**settings: Any) -> Preset:
    online: dict[str, Any] = {"lr": "5e-5", "workers": 32, "window": 50, "sigma": "0.01"}
    return Preset(**(online | {"optimizer": "adamw", "updates": 100_000} | settings))


def _learned(**settings: Any) -> Preset:
    online: dict[str, Any] = {
        "workers": 100,
        "window": 1,
        "sigma": "0.01",
        "optimizer": "adam_root",
        "updates": 10_000,
    }
    return Preset(**(online | settings))


def _learned_ad(**settings: Any) -> Preset:
    return _learned(sigma=None, **settings)


def _learned_cifar(**settings: Any) -> Preset:
    return _learned(**({"workers": 10, "window": 100, "updates": 20_000} | settings))


def _balancing(**settings: Any) -> Preset:
    online: dict[str, Any] = {"lr": "1e-4", "workers": 500, "window": 1, "sigma": "0.1"}
    return Preset(**(online | {"updates": 3000} | settings))


def _toy(**settings: Any) -> Preset:
    online: dict[str, Any] = {"lr": "1e-2", "workers": 50, "window": 10, "sigma": "0.3"}
    return Preset(**(online | {"optimizer": "adam", "updates": 5000} | settings))


def _tuned(**settings: Any) -> Preset:
    online: dict[str, Any] = {"lr": "1e-2", "workers": 10, "window": 10, "sigma": "0.1"}
    return Preset(**(online | {"optimizer": "adam", "updates": 5000} | settings))


def _ridge(**settings: Any) -> Preset:
    online: dict[str, Any] = {"lr": "3e-3", "workers": 2, "window": 1, "sigma": "0.01"}
    return Preset(**(online | {"optimizer": "adam", "updates": 50_000} | settings))


def _swimmer(**settings: Any) -> Preset:
    online: dict[str, Any] = {"workers": 30, "window": 100, "sigma": "0.3", "updates": 100}
    return Preset(**(online | settings))


def _half_cheetah(**settings: Any) -> Preset:
    online: dict[str, Any] = {"workers": 300, "window": 20, "sigma": "0.004", "updates": 800}
    return Preset(**(online | settings))


def _walking(updates: int) -> dict[str, Preset]:
    """Return presets of NRES and FullES that take as many steps per update."""
    both: dict[str, Any] = {"lr": "5e-3", "sigma": "0.05", "shaping": "scaled", "updates": updates}
    return {
        "fulles": Preset(workers=20, **both),
        "nres": Preset(workers=1000, window=20, **both),
    }


def _echo(**settings: Any) -> Preset:
    online: dict[str, Any] = {"lr": "1e-2", "workers": 300, "window": 4, "sigma": "0.03"}
    return Preset(**(online | {"optimizer": "adam", "updates": 5000} | settings))


def _characters(**settings: Any) -> Preset:
    return _echo(**({"workers": 1000, "window": 10, "updates": 10_000} | settings))


SYSTEMS: dict[str, KnownSystem] = {
    "lorenz": KnownSystem(
        "recover two parameters of a chaotic path, T = 2000",
        Lorenz,
        # Methods that unroll whole episodes make fewer updates.
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
        # With the paper's 10,000 initial states, evaluation would cost more than training.
        {"test_episodes": 100},
    ),
    # The paper makes 240,000 updates on Fashion-MNIST.
    "learned-optimizer": KnownSystem(
        "learn to train an MLP on Fashion-MNIST, T = 1000",
        fashion_mnist_system,
        {
            "fulles": _learned(lr="3e-2", workers=10, window=None, updates=1000),
            "tes": _learned(lr="1e-3"),
            "pes": _learned(lr="3e-4"),
            "gpes": _learned(lr="3e-4", period=16),
            "nres": _learned(lr="3e-4"),
            "bptt": _learned_ad(lr="3e-4", workers=1, window=None, updates=1000),
            # The paper's table says Adam, but its runs used gradient descent.
            "tbptt": _learned_ad(lr="1e-2", optimizer="sgd"),
            "dodge": _learned_ad(lr="1e-5"),
            "uoro": _learned_ad(lr="3e-5"),
        },
        LearnedOptimizerSystem,
        {"model_seed": 88},
        start_seed=2,
        start=optimizer_start,
    ),
    "learned-optimizer-cifar10": KnownSystem(
        "learn to train a CNN on CIFAR-10, T = 1000",
        cifar10_system,
        {
            "fulles": _learned_cifar(lr="1e-3", workers=1, window=None),
            "tes": _learned_cifar(lr="1e-3"),
            "pes": _learned_cifar(lr="3e-4"),
            "nres": _learned_cifar(lr="3e-4"),
        },
        LearnedOptimizerSystem,
        {"model_seed": 66},
        start_seed=5,
        start=optimizer_start,
    ),
    # The recipe of Moudgil et al. (2026), who use PES and four data sets.
    "celo2": KnownSystem(
        "learn the optimizer Celo2, T = 100 to 2000",
        celo2_system,
        {
            "pes": _celo2(),
            "gpes": _celo2(period=500),
            "nres": _celo2(),
        },
        LearnedOptimizerSystem,
    ),
    "swimmer": KnownSystem(
        "swim with three links (MuJoCo), T = 1000",
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
        "run on two legs in a plane (MuJoCo), T = 1000",
        _mujoco("halfcheetah", variance=0.03),
        {
            "fulles": _half_cheetah(lr="3e-5", workers=6, window=None),
            "tes": _half_cheetah(lr="3e-5"),
            "pes": _half_cheetah(lr="3e-6"),
            "nres": _half_cheetah(lr="3e-5"),
        },
        MujocoPool,
        start_seed=1,
        start=policy_start,
    ),
    # Pilot runs of NRES chose these.
    "echo": KnownSystem(
        "remember bits for 8 steps with a GRU, T = 200",
        echo,
        {
            **{name: _echo() for name in ("nres", "pes", "tes")},
            **{name: _echo(sigma=None) for name in ("tbptt", "uoro")},
            "rtrl": _echo(sigma=None, workers=3),
        },
        RecurrentNetwork,
    ),
    "characters": KnownSystem(
        "predict characters with a GRU, T = 1000",
        characters,
        {
            **{name: _characters() for name in ("nres", "pes", "tes")},
            **{name: _characters(sigma=None) for name in ("tbptt", "uoro")},
        },
        RecurrentNetwork,
    ),
    # The settings of Vicol et al. (ICML 2021), with pairs as workers.
    "influence-balancing": KnownSystem(
        "find a parameter with a late effect, T = 1000",
        InfluenceBalancing,
        {
            **{name: _balancing() for name in ("nres", "pes", "tes")},
            "gpes": _balancing(period=100),
            **{name: _balancing(sigma=None, workers=1) for name in ("tbptt", "rtrl")},
            "uoro": _balancing(sigma=None, workers=1, lr="1e-5"),
        },
        InfluenceBalancing,
    ),
    "toy-schedule": KnownSystem(
        "learn a schedule on a toy function, T = 100",
        ToySchedule,
        {
            **{name: _toy() for name in ("nres", "pes")},
            "tes": _toy(sigma="1"),
            **{name: _toy(sigma=None, workers=1) for name in ("tbptt", "uoro", "rtrl")},
        },
        ToySchedule,
    ),
    "rate-and-decay": KnownSystem(
        "tune a learning rate and its decay, T = 5000",
        rate_and_decay,
        {
            **{name: _tuned() for name in ("nres", "pes", "tes")},
            **{name: _tuned(sigma=None) for name in ("tbptt", "rtrl")},
        },
        TrainingRun,
    ),
    "many-hyperparameters": KnownSystem(
        "tune 29 hyperparameters of an MLP, T = 1000",
        many_hyperparameters,
        {name: _tuned(workers=5, sigma="0.3", updates=6000) for name in ("nres", "pes", "tes")},
        TrainingRun,
    ),
    "ridge-penalty": KnownSystem(
        "tune the penalty of a regression, T = 100,000",
        RidgePenalty,
        {
            **{name: _ridge() for name in ("nres", "pes", "tes")},
            "rtrl": _ridge(sigma=None, workers=1),
        },
        RidgePenalty,
    ),
    # Pilot runs of NRES chose these. `shift` is the bonus for not falling.
    "brax:ant": KnownSystem(
        "walk on four legs (Brax), T = 1000",
        functools.partial(BraxEnvironment, "ant"),
        _walking(600),
        BraxEnvironment,
        {"backend": "generalized", "normalise": True, "shift": 1.0},
    ),
    "brax:halfcheetah": KnownSystem(
        "run on two legs in a plane (Brax), T = 1000",
        functools.partial(BraxEnvironment, "halfcheetah"),
        _walking(1000),
        BraxEnvironment,
        {"backend": "spring", "normalise": True},
    ),
    # No settings are known that solve these, so the user gives a sigma and a learning rate.
    **{
        task: KnownSystem(
            f"{what} until it falls (MuJoCo), T = 1000", _mujoco(task), {}, MujocoPool
        )
        for task, what in (
            ("hopper", "hop on one leg"),
            ("walker2d", "walk in a plane"),
            ("ant", "walk on four legs"),
            ("humanoid", "walk on two legs"),
        )
    },
}
