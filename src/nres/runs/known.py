"""`KnownSystem`: a system that the command line knows by name, and its presets."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Preset:
    """Default settings of a method on a system."""

    lr: str
    """The learning rate, as `nres.Piecewise.parse` reads it."""
    workers: int
    window: int | None = None
    sigma: str | None = None
    period: int | None = None
    shaping: str | None = None
    noise: str | None = None
    """The law of the noise; `None` for the default."""
    regenerate_noise: bool = False
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
