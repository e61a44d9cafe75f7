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
SOLVED = {"hopper": 3120, "walker2d": 4390, "ant": 3580, "humanoid": 6000, "halfcheetah": 3430}


def _walking(system: str, nres: PlannedRun, fulles: PlannedRun, **other: Any) -> Comparison:
    robot = system.partition(":")[2] or system
    words = f"{robot} in Brax" if robot != system else robot
    usual: dict[str, Any] = {
        "label": "",
        "claim": f"A linear policy solves {words} with NRES, in fewer steps than with FullES.",
        "tier": "gpu" if robot != system else "cpu",
        "axis": "total_steps",
        "claims": (
            Reaches("NRES"),
            Slower("FullES", axis="sequential_steps"),
            NoSlower("NRES", "FullES", NOT_THERE, factor=1.0, axis="total_steps"),
        ),
        "seeds": (0, 1, 2),
        # An evaluation already averages twenty episodes.
        "smooth": 1,
        "scale": -1000.0,
        "shown": "return",
    }
    level = -SOLVED[robot] / 1000
    return Comparison(
        system=system, runs={"NRES": nres, "FullES": fulles}, level=level, **usual | other
    )


def _nres(updates: int, every: int) -> PlannedRun:
    return often("nres", updates, every, settings=_NOISE | {"phases": "even"})


def _fulles(updates: int, every: int) -> PlannedRun:
    return often("fulles", updates, every, settings=_NOISE)


_GPU_REMARK = (
    "Both methods take as many steps per update. An update of FullES takes 50 times as many steps "
    "in sequence, so its runs make fewer updates."
)
WALKING_COMPARISONS: Mapping[str, Comparison] = {
    "walk-hopper": _walking("hopper", _nres(200, 5), _fulles(200, 5)),
    "walk-walker2d": _walking("walker2d", _nres(1000, 20), _fulles(1000, 20)),
    "walk-ant": _walking("ant", _nres(1000, 25), _fulles(1000, 25)),
    "walk-brax-ant": _walking("brax:ant", _nres(600, 30), _fulles(24, 1), remark=_GPU_REMARK),
    "walk-brax-halfcheetah": _walking(
        "brax:halfcheetah", _nres(1000, 50), _fulles(60, 3), remark=_GPU_REMARK
    ),
    "walk-brax-humanoid": _walking(
        "brax:humanoid", _nres(1500, 75), _fulles(24, 1), remark=_GPU_REMARK, seeds=(0,)
    ),
}
