"""NRES with the settings of the paper and with the defaults of this library, as data."""

import dataclasses
from collections.abc import Mapping

from nres_paper.claims import NoSlower
from nres_paper.lorenz_comparisons import LORENZ_COMPARISONS
from nres_paper.mujoco_comparisons import MUJOCO_COMPARISONS
from nres_paper.optimizer_comparisons import OPTIMIZER_COMPARISONS
from nres_paper.plans import Comparison, PlannedRun
from nres_paper.ranking import REFERENCE

NEW = "NRES, defaults"
# The number of seeds, and the largest share of the paper's steps that was aimed at.
_AIMS: Mapping[str, tuple[int, float]] = {
    "lorenz-es": (5, 0.8),
    "lopt-es": (3, 1.05),
    "swimmer": (20, 0.65),
    "halfcheetah": (5, 1.05),
}


def _compared(name: str, comparison: Comparison) -> Comparison:
    seeds, share = _AIMS[name]
    paper = comparison.runs[REFERENCE]
    settings = {**paper.settings, "noise": "orthogonal", "phases": "even"}
    runs: dict[str, PlannedRun] = {
        REFERENCE: dataclasses.replace(paper, label="NRES, paper"),
        NEW: dataclasses.replace(paper, settings=settings),
    }
    aim = f"at most {share:g}×"
    return dataclasses.replace(
        comparison,
        label="",
        claim="Evenly spread workers and orthogonal noise need fewer steps than the paper's "
        "independent ones.",
        runs=runs,
        claims=(
            NoSlower(NEW, REFERENCE, aim, share, "total_steps"),
            NoSlower(NEW, REFERENCE, aim, share, "sequential_steps"),
        ),
        seeds=comparison.seeds[:seeds],
        shares=name,
        axis="total_steps",
        remark="",
    )


DEFAULT_COMPARISONS: Mapping[str, Comparison] = {
    f"defaults-{name.removesuffix('-es')}": _compared(name, comparison)
    for name, comparison in {
        **LORENZ_COMPARISONS,
        **OPTIMIZER_COMPARISONS,
        **MUJOCO_COMPARISONS,
    }.items()
    if name in _AIMS
}
