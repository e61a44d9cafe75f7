"""NRES with the paper's settings, with the defaults of this library, and with `--auto`, as data."""

import dataclasses
from collections.abc import Mapping

from nres_paper.claims import NoSlower
from nres_paper.lorenz_comparisons import LORENZ_COMPARISONS
from nres_paper.mujoco_comparisons import MUJOCO_COMPARISONS
from nres_paper.optimizer_comparisons import OPTIMIZER_COMPARISONS
from nres_paper.plans import Comparison, PlannedRun
from nres_paper.ranking import REFERENCE

NEW, AUTO = "NRES, defaults", "NRES, auto"
# The largest share of the paper's steps that was aimed at, with settings chosen by trials.
AUTO_AIM = 1.5


@dataclasses.dataclass(frozen=True)
class _Aim:
    """A comparison of the paper, and what is compared on its system."""

    comparison: Comparison
    seeds: int
    share: float
    """The largest share of the paper's steps that was aimed at, with the defaults."""
    budget: float
    """The total number of steps of `--auto`: about twice the paper's number until the level."""
    every: int
    """The updates of `--auto` between evaluations."""


_AIMS: Mapping[str, _Aim] = {
    "lorenz-es": _Aim(LORENZ_COMPARISONS["lorenz-es"], 5, 0.8, 7e7, 250),
    "lopt-es": _Aim(OPTIMIZER_COMPARISONS["lopt-es"], 5, 1.05, 1.1e7, 50),
    "swimmer": _Aim(MUJOCO_COMPARISONS["swimmer"], 20, 0.65, 2.2e5, 1),
    "halfcheetah": _Aim(MUJOCO_COMPARISONS["halfcheetah"], 5, 1.05, 1.4e7, 30),
}


def _compared(name: str, aim: _Aim) -> Comparison:
    paper = aim.comparison.runs[REFERENCE]
    settings = {**paper.settings, "noise": "orthogonal", "phases": "even"}
    often = {"eval_every": aim.every, "log_every": aim.every}
    runs: dict[str, PlannedRun] = {
        REFERENCE: dataclasses.replace(paper, label="NRES, paper"),
        NEW: dataclasses.replace(paper, settings=settings),
        AUTO: PlannedRun("nres", 0, often, seeds=5, auto={"total_steps": aim.budget}),
    }
    return dataclasses.replace(
        aim.comparison,
        label="",
        claim="The aim is that evenly spread workers and orthogonal noise need fewer steps than "
        "the paper's independent ones, and that trials choose settings nearly as good as tuned "
        "ones.",
        runs=runs,
        claims=tuple(
            NoSlower(run, REFERENCE, f"at most {share:g}×", share, axis)
            for run, share in ((NEW, aim.share), (AUTO, AUTO_AIM))
            for axis in ("total_steps", "sequential_steps")
        ),
        seeds=tuple(range(aim.seeds)),
        shares=name,
        axis="total_steps",
        remark=f"The budget of --auto is {aim.budget:,.0f} total steps, including its trials.",
    )


DEFAULT_COMPARISONS: Mapping[str, Comparison] = {
    f"defaults-{name.removesuffix('-es')}": _compared(name, aim) for name, aim in _AIMS.items()
}
