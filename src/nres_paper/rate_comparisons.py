"""Sweeps of the learning rate around the presets, as data; they are not in the paper."""

import dataclasses
from collections.abc import Mapping

from nres_paper.claims import NearBest
from nres_paper.lorenz_comparisons import LORENZ_COMPARISONS
from nres_paper.mujoco_comparisons import MUJOCO_COMPARISONS
from nres_paper.optimizer_comparisons import OPTIMIZER_COMPARISONS
from nres_paper.plans import Comparison, PlannedRun

_OTHERS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "lorenz-es": {
        "NRES": ("3e-6", "3e-5"),
        "PES": ("3e-6,1000:3e-7", "3e-5,1000:3e-6"),
        "FullES": ("1e-5", "1e-4"),
    },
    "lopt-es": {"NRES": ("1e-4", "1e-3"), "PES": ("1e-4", "1e-3"), "FullES": ("1e-2", "1e-1")},
    "swimmer": {"NRES": ("1", "10"), "PES": ("0.3", "3"), "FullES": ("0.3", "3")},
    "halfcheetah": {"NRES": ("1e-5", "1e-4"), "FullES": ("1e-5", "1e-4")},
}
_SEEDS = {"lorenz-es": 3, "swimmer": 3, "halfcheetah": 3}


def _sweep(name: str, comparison: Comparison) -> Comparison:
    runs: dict[str, PlannedRun] = {}
    claims = []
    for method, rates in _OTHERS[name].items():
        preset = comparison.runs[method]
        others = {
            f"{method}, rate {rate}": dataclasses.replace(
                preset, settings={**preset.settings, "lr": rate}
            )
            for rate in rates
        }
        runs |= {method: preset, **others}
        claims.append(NearBest(method, tuple(others)))
    return dataclasses.replace(
        comparison,
        label="",
        claim="The question is whether a method gains much from a learning rate three times "
        "smaller or larger than its preset, which is the paper's.",
        runs=runs,
        claims=tuple(claims),
        seeds=comparison.seeds[: _SEEDS.get(name, 1)],
        axis="total_steps",
        shares=name,
        remark="",
    )


RATE_COMPARISONS: Mapping[str, Comparison] = {
    f"rates-{name.removesuffix('-es')}": _sweep(name, comparison)
    for name, comparison in {
        **LORENZ_COMPARISONS,
        **OPTIMIZER_COMPARISONS,
        **MUJOCO_COMPARISONS,
    }.items()
    if name in _OTHERS
}
