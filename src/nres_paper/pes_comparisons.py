"""Comparisons on the problems of the paper that introduced PES, as data.

Vicol, Metz, Sohl-Dickstein, *Unbiased Gradient Estimation in Unrolled Computation Graphs with
Persistent Evolution Strategies*, ICML 2021. There, all particles are at the same step; here workers
are spread over the episode.
"""

from collections.abc import Mapping
from typing import Any

from nres.figures import DISPLAY_NAMES
from nres_paper.claims import Never, NoSlower, Reaches
from nres_paper.grades import NOT_THERE
from nres_paper.plans import Comparison, PlannedRun, often
from nres_paper.value_claims import Better

PES_PAPER = "Vicol et al., ICML 2021"
"""The label of figures that are not from the paper that introduced NRES."""
_SMALL: dict[str, Any] = {
    "label": PES_PAPER,
    "tier": "cpu",
    "axis": "update",
    "seeds": (0, 1, 2, 3, 4),
    "smooth": 1,
}


def _balancing(method: str, **settings: Any) -> PlannedRun:
    return often(method, 3000, 25, settings=settings)


def _toy(method: str, **settings: Any) -> PlannedRun:
    return often(method, 5000, 50, settings=settings)


def _from_both_sides(*methods: str) -> dict[str, PlannedRun]:
    """Plan runs from a penalty that is too large, and from one that is too small."""
    runs = {DISPLAY_NAMES[name]: often(name, 50_000, 500) for name in methods}
    below = {"options": {"start": -5.0}}
    return runs | {
        f"{DISPLAY_NAMES[name]}, from -5": often(name, 50_000, 500, settings=below)
        for name in methods
    }


def _sooner(variant: str = "") -> NoSlower:
    """Claim, as that paper does not, that NRES reaches the level before PES does."""
    return NoSlower(f"NRES{variant}", f"PES{variant}", NOT_THERE, factor=1.0)


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
            _sooner(),
            _sooner(", N = 10"),
        ),
        # The mean loss of an episode with 5,000 steps is least where the loss after 500 steps is
        # 3.3e-4, because episodes begin far from their limit.
        options={"horizon": 5000},
        level=1e-3,
        shown="loss after 500 steps",
        remark="Episodes have 5,000 steps; in that paper, they never end. TBPTT differentiates the "
        "losses of all steps of its window here, and that of the last one there. A first plan had "
        "episodes of 1,000 steps and a level of 1e-4. It was replaced after its first runs: the "
        "parameter with the least mean loss over such episodes does not reach that level.",
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
            _sooner(),
            _sooner(", N = 2"),
        ),
        level=700.0,
        shown="sum of the losses",
        **_SMALL,
    ),
    "pes-rate": Comparison(
        claim="The learning rate of a perceptron and its decay: PES finds both; TES ends at a "
        "decay that is too fast.",
        system="rate-and-decay",
        runs={
            name: often(name.lower(), 5000, 200, seeds=seeds)
            for name, seeds in {"NRES": 5, "PES": 5, "TES": 5, "TBPTT": 3, "RTRL": 3}.items()
        },
        claims=(
            Reaches("PES"),
            Never("TES"),
            Better(("PES",), ("TES",)),
            _sooner(),
            Better(("NRES",), ("PES",), in_paper=False),
        ),
        level=0.52,
        scale=5000,
        shown="sum of the losses",
        remark="A perceptron with two layers of 32 units on Fashion-MNIST at 8 × 8 pixels and 10 "
        "workers, instead of layers of 100 units on MNIST and 500 workers.",
        **_SMALL,
    ),
    "pes-hyperparameters": Comparison(
        claim="29 hyperparameters of a perceptron: PES finds better ones than TES.",
        system="many-hyperparameters",
        runs={name: often(name.lower(), 6000, 200) for name in ("NRES", "PES", "TES")},
        claims=(
            Better(("PES",), ("TES",)),
            _sooner(),
            Better(("NRES",), ("PES",), in_paper=False),
        ),
        level=0.75,
        scale=1000,
        shown="sum of the validation losses",
        remark="Layers of 32 units and images of 8 × 8 pixels, instead of 100 units and 28 × 28 "
        "pixels; 6,000 updates instead of 50,000. Each seed starts from other hyperparameters.",
        **_SMALL,
    ),
    "pes-ridge": Comparison(
        claim="The penalty of a linear regression: PES finds the best one from both sides; TES "
        "moves away from it.",
        system="ridge-penalty",
        runs=_from_both_sides("nres", "pes", "tes", "rtrl"),
        claims=(
            Reaches("PES"),
            Reaches("PES, from -5"),
            Never("TES"),
            Never("TES, from -5"),
            _sooner(),
            _sooner(", from -5"),
        ),
        level=0.3,
        shown="distance of the logarithm to the best one",
        remark="The data is synthetic, because the paper's is not part of any package. On this "
        "data, TES ends near the level. PES reaches the best penalty, but most of its runs leave "
        "it again and end outside the level; all runs of NRES end within it.",
        **_SMALL,
    ),
}
