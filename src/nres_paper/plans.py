"""Plans of comparisons: the runs, their settings, and the claims about them."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from nres_paper.claims import Claim


@dataclasses.dataclass(frozen=True)
class PlannedRun:
    """A run of a comparison, repeated over seeds, and its deviations from the preset."""

    method: str
    updates: int
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    seeds: int | None = None
    """The number of seeds, if the run takes too long for all seeds of the comparison."""
    budget: int | None = None
    """The number of updates in the paper, if it differs from `updates`."""
    fixed: bool = False
    """True if the run has no randomness, so that one seed stands for all."""
    asymptote: bool = False
    """True if the run only shows where a method would converge without noise."""
    label: str | None = None
    """The name in the figure, if it differs from the key in `Comparison.runs`."""
    auto: Mapping[str, float] | None = None
    """The budget for `nres.tune`, if trials choose the settings and thereby the updates."""


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Methods compared on one system by the time to a level that NRES reaches early."""

    label: str
    """The figure or table of the paper, for example `Figure 8`."""
    claim: str
    system: str
    tier: str
    """The device on which the comparison takes minutes rather than days: `cpu` or `gpu`."""
    axis: str
    """The axis on which the paper compares: one of `nres.runs.AXES`."""
    runs: Mapping[str, PlannedRun]
    """The runs by their names in the figure."""
    claims: tuple[Claim, ...]
    seeds: tuple[int, ...]
    level: float
    """The value to reach. It is fixed here, before the runs."""
    evaluations: int = 240
    """The number of evaluations per run."""
    smooth: int = 5
    """The number of evaluations in a running median."""
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Options of the system."""
    rates: tuple[str, ...] = ()
    """Learning rates that each method tries with the first seed; the other seeds use the best."""
    shares: str | None = None
    """Another comparison, whose runs are reused where the settings agree."""
    scale: float = 1.0
    """The factor from the measured value to the displayed one."""
    shown: str = "loss"
    """The name of the displayed value."""
    top: float | None = None
    """The upper limit of the drawing."""
    remark: str = ""
    """Notes for the reader."""


def plan(updates: Mapping[str, int], **settings: Any) -> dict[str, PlannedRun]:
    """Plan one run per method, with the given number of updates."""
    return {name: PlannedRun(name.lower(), count, settings) for name, count in updates.items()}


def often(method: str, updates: int, every: int, **changes: Any) -> PlannedRun:
    """Plan a run that is evaluated every so many updates."""
    settings = changes.pop("settings", {}) | {"eval_every": every, "log_every": every}
    return PlannedRun(method, updates, settings, **changes)
