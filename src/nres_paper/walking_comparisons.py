"""Comparisons on robots that walk, as data; they are not in the paper.

The levels are those at which Mania, Guy and Recht, *Simple random search of static linear policies
is competitive for reinforcement learning* (NeurIPS 2018), call a task of gymnasium solved. Robots
in Brax have the same names and levels, but other physics.
"""

from collections.abc import Mapping
from typing import Any

from nres_paper.claims import NoSlower, Reaches, Slower
from nres_paper.grades import NOT_THERE
from nres_paper.plans import Comparison, PlannedRun, often

_NOISE = {"noise": "orthogonal"}
_WALKING: dict[str, Any] = {
    "label": "",
    "seeds": (0, 1, 2),
    # An evaluation already averages twenty episodes.
    "smooth": 1,
    "scale": -1000.0,
    "shown": "return",
}
_BRAX: dict[str, Any] = _WALKING | {
    "tier": "gpu",
    "axis": "seconds",
    "claims": (Reaches("NRES"), Slower("FullES")),
    "remark": "Both methods take as many steps per update. An update of FullES takes 50 times as "
    "many steps in sequence, so its runs make fewer updates. All runs were made at the same time "
    "on one GPU.",
}


def _nres(updates: int, every: int) -> PlannedRun:
    return often("nres", updates, every, settings=_NOISE | {"phases": "even"})


def _fulles(updates: int, every: int, **changes: Any) -> PlannedRun:
    return often("fulles", updates, every, settings=_NOISE, **changes)


WALKING_COMPARISONS: Mapping[str, Comparison] = {
    "walk-hopper": Comparison(
        claim="A linear policy solves Hopper with NRES, in fewer steps than with FullES.",
        system="hopper",
        tier="cpu",
        axis="total_steps",
        runs={"NRES": _nres(150, 5), "FullES": _fulles(150, 5)},
        claims=(
            Reaches("NRES"),
            Slower("FullES", axis="sequential_steps"),
            NoSlower("NRES", "FullES", NOT_THERE, factor=1.0, axis="total_steps"),
        ),
        level=-3.12,
        **_WALKING,
    ),
    "walk-brax-ant": Comparison(
        claim="A linear policy solves Ant in Brax within ten minutes on one GPU with NRES, sooner "
        "than with FullES.",
        system="brax:ant",
        runs={"NRES": _nres(600, 30), "FullES": _fulles(24, 1, seeds=1)},
        level=-3.58,
        **_BRAX,
    ),
    "walk-brax-halfcheetah": Comparison(
        claim="A linear policy solves HalfCheetah in Brax within ten minutes on one GPU with NRES, "
        "sooner than with FullES.",
        system="brax:halfcheetah",
        runs={"NRES": _nres(1000, 50), "FullES": _fulles(60, 3)},
        level=-3.43,
        **_BRAX,
    ),
}
