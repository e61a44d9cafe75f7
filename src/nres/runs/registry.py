"""The registry: systems known by name, and the preset settings of each method on them.

Unless a comment says otherwise, the numbers here are the hyperparameters that Li et al. (NeurIPS
2023) tuned, and the seeds are those of their initial parameters.
"""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax

from nres.pools.mujoco import MujocoPool
from nres.runs.known import KnownSystem, Preset
from nres.runs.other_systems import OTHER_SYSTEMS
from nres.runs.starts import model_start, optimizer_start, policy_start
from nres.systems import Lorenz
from nres.systems.learned_optimizer import (
    LayeredMLP,
    LearnedOptimizerSystem,
    PerParameterMLP,
    Task,
    cifar10_task,
    fashion_mnist_task,
)


def _lorenz(**settings: Any) -> Preset:
    online: dict[str, Any] = {"workers": 200, "window": 100, "sigma": "0.04", "updates": 2400}
    return Preset(**(online | settings))


def _lorenz_ad(**settings: Any) -> Preset:
    return _lorenz(sigma=None, **settings)


def _learned_on(task: Callable[..., Task]) -> Callable[..., LearnedOptimizerSystem]:
    def make(
        *,
        width: int = 32,
        depth: int = 2,
        horizon: int = 1000,
        sequence: str = "fixed",
        data_seed: int = 0,
        model_seed: int | None = None,
        layered: bool = False,
        **options: Any,
    ) -> LearnedOptimizerSystem:
        system = LearnedOptimizerSystem(
            task(**options),
            (LayeredMLP if layered else PerParameterMLP)(width, depth),
            horizon=horizon,
            sequence=sequence,
            key=jax.random.key(data_seed),
        )
        if model_seed is None or system.start is None:
            return system
        start = model_start(system.task, model_seed)
        return eqx.tree_at(lambda s: s.start, system, start)

    return make


# A per-parameter network learns to train one of these models; `width` and `depth` are its size,
# and `layered` makes its parameters matrices.
# `model_seed` draws the initial model of a fixed sequence as the paper does. The order of its
# batches is not known, so `data_seed` draws another.
fashion_mnist_system = _learned_on(fashion_mnist_task)
cifar10_system = _learned_on(cifar10_task)


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


def _swimmer(**settings: Any) -> Preset:
    online: dict[str, Any] = {"workers": 30, "window": 100, "sigma": "0.3", "updates": 100}
    return Preset(**(online | settings))


def _half_cheetah(**settings: Any) -> Preset:
    online: dict[str, Any] = {"workers": 300, "window": 20, "sigma": "0.004", "updates": 800}
    return Preset(**(online | settings))


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
        # The paper's seeds are 5 and 66. An optimizer drawn from 5 switches off every ReLU of the
        # model at once.
        {"model_seed": 5},
        start_seed=66,
        start=optimizer_start,
    ),
    "swimmer": KnownSystem(
        "swim with three links (MuJoCo), T = 1000",
        functools.partial(MujocoPool, "swimmer"),
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
        functools.partial(MujocoPool, "halfcheetah", variance=0.03),
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
    **OTHER_SYSTEMS,
}
