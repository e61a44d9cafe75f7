"""Comparisons on the problems of the paper that introduced PES, as data.

Vicol, Metz, Sohl-Dickstein, *Unbiased Gradient Estimation in Unrolled Computation Graphs with
Persistent Evolution Strategies*, ICML 2021. There, all particles are at the same step; here workers
are spread over the episode.
"""

from collections.abc import Mapping
from typing import Any

from nres_paper.claims import Never, NoSlower, Reaches
from nres_paper.plans import Comparison, PlannedRun, often

_SMALL: dict[str, Any] = {
    "label": "PES paper",
    "tier": "cpu",
    "axis": "sequential_steps",
    "seeds": (0, 1, 2, 3, 4),
    "smooth": 1,
}


def _balancing(method: str, **settings: Any) -> PlannedRun:
    return often(method, 3000, 25, settings=settings)


def _toy(method: str, **settings: Any) -> PlannedRun:
    return often(method, 5000, 50, settings=settings)


PES_COMPARISONS: Mapping[str, Comparison] = {
    "pes-influence": Comparison(
        claim="Influence balancing: PES finds the parameter, as exact gradients do; TES and "
        "truncated backpropagation move away from it.",
        system="influence-balancing",
        runs={
            "NRES": _balancing("nres"),
            "PES": _balancing("pes"),
            "TES": _balancing("tes"),
            "RTRL": _balancing("rtrl"),
            "UORO": _balancing("uoro"),
            "TBPTT, W = 1": _balancing("tbptt"),
            "TBPTT, W = 10": _balancing("tbptt", window=10),
            "TBPTT, W = 100": _balancing("tbptt", window=100),
            "NRES, N = 10": _balancing("nres", workers=10),
            "PES, N = 10": _balancing("pes", workers=10),
        },
        claims=(
            Reaches("PES"),
            Reaches("RTRL"),
            Reaches("TBPTT, W = 100"),
            Never("TES"),
            Never("TBPTT, W = 1"),
            Never("TBPTT, W = 10"),
            NoSlower("NRES", "PES", "not in that paper"),
            NoSlower("NRES, N = 10", "PES, N = 10", "not in that paper"),
        ),
        level=1e-4,
        shown="loss after 500 steps",
        top=1e3,
        **_SMALL,
    ),
    "pes-schedule": Comparison(
        claim="A learned schedule on a toy function: PES finds large rates at the start; TES, "
        "RTRL, UORO and truncated backpropagation do not.",
        system="toy-schedule",
        runs={
            "NRES": _toy("nres"),
            "PES": _toy("pes"),
            "TES": _toy("tes"),
            "RTRL": _toy("rtrl"),
            "UORO": _toy("uoro"),
            "TBPTT": _toy("tbptt"),
            "NRES, N = 2": _toy("nres", workers=2),
            "PES, N = 2": _toy("pes", workers=2),
        },
        claims=(
            Reaches("PES"),
            Never("TES"),
            Never("RTRL"),
            Never("UORO"),
            Never("TBPTT"),
            NoSlower("NRES", "PES", "not in that paper"),
            NoSlower("NRES, N = 2", "PES, N = 2", "not in that paper"),
        ),
        level=700.0,
        shown="sum of the losses",
        **_SMALL,
    ),
}
