"""Comparisons on robots that walk, in Brax and MuJoCo, as data; they are not in the paper.

The levels are those at which Mania, Guy and Recht, *Simple random search of static linear policies
is competitive for reinforcement learning* (NeurIPS 2018), call the robots of the same names in
gymnasium solved; Brax simulates them differently.
"""

from collections.abc import Mapping
from typing import Any

from nres_paper.claims import Reaches, Slower
from nres_paper.plans import Comparison, PlannedRun, often

_NOISE = {"noise": "orthogonal"}
_BRAX: dict[str, Any] = {
    "label": "",
    "tier": "gpu",
    "axis": "seconds",
    "claims": (Reaches("NRES"), Slower("FullES")),
    "seeds": (0, 1, 2),
    # An evaluation already averages twenty episodes.
    "smooth": 1,
    "scale": -1000.0,
    "shown": "return",
    "remark": "Both methods take equally many steps per update, but FullES takes up to 50 times as "
    "many of them in sequence, so its runs make fewer updates. Pilot runs of NRES chose sigma and "
    "learning rate for both.",
}
_MUJOCO = _BRAX | {
    "tier": "cpu",
    "axis": "sequential_steps",
    "remark": "The level is that of Mania, Guy and Recht (2018). Both methods take equally many "
    "steps per update.",
}


def _nres(updates: int, every: int) -> PlannedRun:
    return often("nres", updates, every, settings=_NOISE | {"phases": "even"})


def _fulles(updates: int, every: int, **changes: Any) -> PlannedRun:
    return often("fulles", updates, every, settings=_NOISE, **changes)


WALKING_COMPARISONS: Mapping[str, Comparison] = {
    "walk-hopper": Comparison(
        claim="The aim is that a linear policy solves Hopper with NRES, with fewer sequential "
        "steps than with FullES.",
        system="hopper",
        runs={"NRES": _nres(500, 10), "FullES": _fulles(500, 10)},
        level=-3.12,
        **_MUJOCO,
    ),
    "walk-walker2d": Comparison(
        claim="The aim is that a linear policy solves Walker2d with NRES, with fewer sequential "
        "steps than with FullES.",
        system="walker2d",
        runs={"NRES": _nres(300, 15), "FullES": _fulles(300, 15)},
        level=-4.39,
        **_MUJOCO,
    ),
    "walk-ant": Comparison(
        claim="The aim is that a linear policy solves Ant with NRES, with fewer sequential steps "
        "than with FullES.",
        system="ant",
        runs={"NRES": _nres(60, 3), "FullES": _fulles(60, 3)},
        level=-3.58,
        **_MUJOCO,
    ),
    "walk-humanoid": Comparison(
        claim="The aim is that a linear policy solves Humanoid with NRES, with fewer sequential "
        "steps than with FullES.",
        system="humanoid",
        runs={"NRES": _nres(120, 6), "FullES": _fulles(120, 6)},
        level=-6.0,
        **_MUJOCO,
    ),
    "walk-brax-ant": Comparison(
        claim="A linear policy solves Ant in Brax with NRES, sooner than with FullES.",
        system="brax:ant",
        runs={"NRES": _nres(600, 30), "FullES": _fulles(24, 1, seeds=1)},
        level=-3.58,
        **_BRAX,
    ),
    "walk-brax-halfcheetah": Comparison(
        claim="A linear policy solves HalfCheetah in Brax with NRES, sooner than with FullES.",
        system="brax:halfcheetah",
        runs={"NRES": _nres(1000, 50), "FullES": _fulles(60, 3)},
        level=-3.43,
        **_BRAX,
    ),
    "walk-brax-humanoid": Comparison(
        claim="The aim is that a linear policy solves Humanoid in Brax with NRES, sooner than with "
        "FullES.",
        system="brax:humanoid",
        runs={"NRES": _nres(3000, 150), "FullES": _fulles(40, 2, seeds=1)},
        level=-6.0,
        **_BRAX,
    ),
}
