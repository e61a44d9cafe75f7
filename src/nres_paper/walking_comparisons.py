"""Comparisons on robots that must not fall, as data; they are not in the paper.

The levels are those at which Mania, Guy and Recht, *Simple random search of static linear policies
is competitive for reinforcement learning* (NeurIPS 2018), call a task solved.
"""

from collections.abc import Mapping
from typing import Any

from nres_paper.claims import NoSlower, Reaches, Slower
from nres_paper.grades import NOT_THERE
from nres_paper.plans import Comparison, PlannedRun, often

_LIKE_DEFAULTS = {"noise": "orthogonal"}


def _both(updates: int, every: int) -> Mapping[str, PlannedRun]:
    """Plan NRES and FullES with their presets."""
    online = _LIKE_DEFAULTS | {"phases": "even"}
    return {
        "NRES": often("nres", updates, every, settings=online),
        "FullES": often("fulles", updates, every, settings=_LIKE_DEFAULTS),
    }


def _walking(
    system: str, what: str, solved: float, updates: int, every: int, **other: Any
) -> Comparison:
    return Comparison(
        **{
            "label": "",
            "claim": f"A linear policy {what} with NRES, and FullES needs more steps in sequence.",
            "system": system,
            "tier": "cpu",
            "axis": "total_steps",
            "runs": _both(updates, every),
            "claims": (
                Reaches("NRES"),
                Slower("FullES", axis="sequential_steps"),
                NoSlower("NRES", "FullES", NOT_THERE, factor=1.0, axis="total_steps"),
            ),
            "seeds": (0, 1, 2),
            "level": -solved / 1000,
            # An evaluation already averages twenty episodes.
            "smooth": 1,
            "scale": -1000.0,
            "shown": "return",
        }
        | other
    )


WALKING_COMPARISONS: Mapping[str, Comparison] = {
    "walk-hopper": _walking("hopper", "learns to hop", 3120, 200, 5),
    "walk-walker2d": _walking("walker2d", "learns to walk in a plane", 4390, 400, 10),
    "walk-ant": _walking("ant", "learns to walk on four legs", 3580, 400, 10),
}
