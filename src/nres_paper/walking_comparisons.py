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
_WALKING: dict[str, Any] = {
    "label": "",
    "claims": (Reaches("NRES"), Slower("FullES")),
    "seeds": (0, 1, 2),
    # An evaluation already averages twenty episodes.
    "smooth": 1,
    "scale": -1000.0,
    "shown": "return",
}
_MUJOCO = _WALKING | {
    "tier": "cpu",
    "axis": "sequential_steps",
    "remark": "The level is that of Mania, Guy and Recht (2018). For the same policy, NRES and "
    "FullES take about equally many steps per update.",
}
_BRAX = _WALKING | {
    "tier": "gpu",
    "axis": "seconds",
    "remark": "For the same policy, NRES and FullES take about equally many steps per update, but "
    "FullES takes up to 50 times as many of them in sequence, so its runs make fewer updates. "
    "Pilot runs of NRES chose sigma and learning rate for both.",
}


def _nres(updates: int, every: int) -> PlannedRun:
    return often("nres", updates, every, settings=_NOISE | {"phases": "even"})


def _fulles(updates: int, every: int, **changes: Any) -> PlannedRun:
    return often("fulles", updates, every, settings=_NOISE, **changes)


def _in_mujoco(name: str, level: float, updates: int, every: int, remark: str = "") -> Comparison:
    return Comparison(
        claim=f"The aim is that a linear policy solves {name} with NRES, with fewer sequential "
        "steps than with FullES.",
        system=name.lower(),
        runs={"NRES": _nres(updates, every), "FullES": _fulles(updates, every)},
        level=level,
        **_MUJOCO | {"remark": f"{_MUJOCO['remark']} {remark}".rstrip()},
    )


WALKING_COMPARISONS: Mapping[str, Comparison] = {
    "walk-hopper": _in_mujoco("Hopper", -3.12, updates=500, every=10),
    "walk-walker2d": _in_mujoco(
        "Walker2d",
        -4.39,
        updates=300,
        every=10,
        remark="Sigma, the size of the steps and the number of episodes per update are about those "
        "with which RL Zoo trains its agent of augmented random search. Scaled estimates of NRES "
        "are smaller, so its learning rate is larger, by the square root of five.",
    ),
    "walk-ant": _in_mujoco(
        "Ant",
        -3.58,
        updates=160,
        every=8,
        remark="Episodes of training have 200 steps, those of tests 1,000. Scaled estimates of "
        "NRES are smaller, so its learning rate is larger, by the square root of five. Pilot runs "
        "of both methods chose the settings.",
    ),
    "walk-humanoid": _in_mujoco("Humanoid", -6.0, updates=120, every=6),
    "walk-brax-ant": Comparison(
        claim="The aim is that a linear policy solves Ant in Brax with NRES, sooner than with "
        "FullES.",
        system="brax:ant",
        runs={"NRES": _nres(600, 30), "FullES": _fulles(24, 1, seeds=1)},
        level=-3.58,
        **_BRAX,
    ),
    "walk-brax-halfcheetah": Comparison(
        claim="The aim is that a linear policy solves HalfCheetah in Brax with NRES, sooner than "
        "with FullES.",
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
        **_BRAX
        | {
            "remark": f"{_BRAX['remark']} The rate falls within each run, so that of FullES falls "
            "within its 40 updates. Seed 2 of NRES shared the GPU."
        },
    ),
}
