"""The systems known by name, with the settings the paper tuned for them."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from nres.systems import Lorenz


@dataclasses.dataclass(frozen=True)
class Preset:
    """How a method is run on a system, where nothing else is asked for."""

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


def _lorenz(**settings: Any) -> Preset:
    online: dict[str, Any] = {"workers": 200, "window": 100, "sigma": "0.04", "updates": 2400}
    return Preset(**(online | settings))


def _lorenz_ad(**settings: Any) -> Preset:
    return _lorenz(sigma=None, **settings)


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
    ),
}
