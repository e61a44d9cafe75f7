"""Systems that are not in the paper of NRES, and the settings of each method on them."""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

from nres.checks import positive_number
from nres.lengths import LogUniform
from nres.pools.mujoco import MujocoPool
from nres.runs.known import KnownSystem, Preset
from nres.systems import BraxEnvironment, InfluenceBalancing, ToySchedule, TrainingRun
from nres.systems.hyperparameters import RidgePenalty, many_hyperparameters, rate_and_decay
from nres.systems.learned_optimizer import Celo2, LearnedOptimizerSystem, small_images_task
from nres.systems.recurrent import HeldOutNetwork, RecurrentNetwork, characters, echo, text


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


def _equal_steps(
    window: int, workers: int, horizon: int = 1000, **settings: Any
) -> dict[str, Preset]:
    """Return presets that take equally many steps per update, if no robot falls."""
    return {
        "fulles": Preset(workers=workers, **settings),
        "nres": Preset(workers=workers * horizon // window, window=window, **settings),
    }


def _brax_presets(
    updates: int, workers: int = 20, sigma: str = "0.05", lr: str = "5e-3"
) -> dict[str, Preset]:
    return _equal_steps(20, workers, sigma=sigma, lr=lr, shaping="scaled", updates=updates)


# Steps of 0.002 in every parameter, however large the loss.
_SMALL_STEPS: Mapping[str, Any] = {
    "sigma": "0.025",
    "lr": "2e-3",
    "noise": "orthogonal",
    "optimizer": "adam",
}


# The number of windows of an episode of a robot in MuJoCo.
_WINDOWS = 5


def _scaled_presets(
    workers: int,
    sigma: float,
    updates: int,
    lr: Callable[[float], str],
    *,
    horizon: int = 1000,
    factor: float = math.sqrt(_WINDOWS),
) -> dict[str, Preset]:
    """Return presets with scaled estimates and equally many steps per update.

    Scaled estimates of NRES are smaller than those of FullES, by the square root of the number of
    windows, if windows differ independently. A learning rate of NRES that is larger by this
    `factor` gives both steps of about the same size. `lr` turns a factor into a learning rate.
    """
    settings: dict[str, Any] = {"sigma": f"{sigma:g}", "noise": "orthogonal", "shaping": "scaled"}
    window = horizon // _WINDOWS
    presets = _equal_steps(window, workers, horizon, lr=lr(1.0), updates=updates, **settings)
    return presets | {"nres": dataclasses.replace(presets["nres"], lr=lr(factor))}


def _search_presets(
    workers: int, sigma: float, alpha: float, updates: int, **changes: Any
) -> dict[str, Preset]:
    """Return presets with the sigma and the step size alpha of augmented random search.

    Mania, Guy and Recht (2018) divide loss differences by the spread of all losses: scaled
    estimates of FullES with learning rate 2 sigma alpha take steps of about the same size.
    """
    return _scaled_presets(
        workers, sigma, updates, lambda factor: f"{2 * sigma * alpha * factor:.3g}", **changes
    )


# The length of training episodes in which robots learn to walk from few steps.
_SHORT: Mapping[str, Any] = {"horizon": 200, "test_horizon": 1000}


def _short_presets(workers: int, sigma: float, rate: float, updates: int) -> dict[str, Preset]:
    """Return presets for episodes of `_SHORT`, with a learning rate that falls to a fifth."""

    def lr(factor: float) -> str:
        return f"cosine:{rate * factor:.3g}:{rate * factor / 5:.3g}"

    return _scaled_presets(workers, sigma, updates, lr, horizon=_SHORT["horizon"])


def _echo(**settings: Any) -> Preset:
    online: dict[str, Any] = {"lr": "1e-2", "workers": 300, "window": 4, "sigma": "0.03"}
    return Preset(**(online | {"optimizer": "adam", "updates": 5000} | settings))


def _characters(**settings: Any) -> Preset:
    return _echo(**({"workers": 1000, "window": 10, "updates": 10_000} | settings))


def _text(**settings: Any) -> Preset:
    online: dict[str, Any] = {"workers": 8192, "window": 8, "sigma": "0.02", "updates": 30_000}
    online |= {"lr": "cosine:7e-4:1e-5", "optimizer": "adam"}
    return Preset(**(online | settings))


def _robot(
    kind: type, task: str, what: str, presets: dict[str, Preset], **options: Any
) -> KnownSystem:
    make = functools.partial(kind, task)
    summary = f"{what}, T = {options.get('horizon', 1000)}"
    return KnownSystem(summary, make, presets, kind, {"normalise": True} | options)


OTHER_SYSTEMS: dict[str, KnownSystem] = {
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
    # Pilot runs of NRES with noise of low rank chose these.
    "text": KnownSystem(
        "predict bytes with a large GRU, T = 1000",
        text,
        {
            "nres": _text(noise="low-rank", regenerate_noise=True),
            "tbptt": _text(sigma=None, workers=64, window=50, lr="3e-3", updates=2000),
        },
        HeldOutNetwork,
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
    # Pilot runs chose the settings of all robots except Walker2d and Humanoid in MuJoCo; in Brax,
    # those of NRES alone. `shift` is the bonus for not falling.
    "brax:ant": _robot(
        BraxEnvironment,
        "ant",
        "walk on four legs (Brax)",
        _brax_presets(600),
        backend="generalized",
        shift=1.0,
    ),
    "brax:halfcheetah": _robot(
        BraxEnvironment,
        "halfcheetah",
        "run on two legs in a plane (Brax)",
        _brax_presets(1000),
        backend="spring",
    ),
    "brax:humanoid": _robot(
        BraxEnvironment,
        "humanoid",
        "walk on two legs (Brax)",
        _brax_presets(3000, workers=40, sigma="0.02", lr="cosine:1.5e-3:3e-4"),
        backend="spring",
        shift=5.0,
    ),
    "hopper": _robot(
        MujocoPool,
        "hopper",
        "hop on one leg until it falls (MuJoCo)",
        _equal_steps(200, 20, updates=500, **_SMALL_STEPS),
        shift=1.0,
    ),
    "walker2d": _robot(
        MujocoPool,
        "walker2d",
        "walk in a plane until it falls (MuJoCo)",
        _search_presets(40, sigma=0.025, alpha=0.03, updates=300),
        shift=1.0,
    ),
    "ant": _robot(
        MujocoPool,
        "ant",
        "walk on four legs until it falls (MuJoCo)",
        _short_presets(60, sigma=0.025, rate=1.6e-3, updates=160),
        shift=1.0,
        **_SHORT,
    ),
    "humanoid": _robot(
        MujocoPool,
        "humanoid",
        "walk on two legs until it falls (MuJoCo)",
        _search_presets(100, sigma=0.0075, alpha=0.02, updates=700, factor=1.0),
        shift=5.0,
    ),
}
