"""Comparisons of the paper on Lorenz, as data."""

from collections.abc import Mapping
from typing import Any

from nres_paper.claims import Never, Slower
from nres_paper.plans import Comparison, often
from nres_paper.value_claims import Better, Ends

_LORENZ: dict[str, Any] = {
    "system": "lorenz",
    "tier": "cpu",
    "axis": "seconds",
    "seeds": (0, 1, 2, 3, 4),
    "shown": "test loss",
}
# The runs of the paper measured the test loss with a standard deviation of 1; its text says 0.1.
# A pilot run of NRES with another seed reaches this level after about a fifth of its updates.
_WIDE = _LORENZ | {"options": {"test_episodes": 10_000, "test_std": 1.0}, "level": 50.0}
_NARROW = _LORENZ | {"options": {"test_episodes": 10_000, "test_std": 0.1}, "level": 50.0}
_WIDE_TEXT = (
    "The initial states of the test have a standard deviation of 1, as in the paper's runs."
)
_NARROW_TEXT = (
    "The initial states of the test have a standard deviation of 0.1, as in the paper's text."
)

# The runs are longer than in the paper, and claims are checked after the paper's updates.
_ES = {
    "NRES": often("nres", 10_000, 50, budget=5000),
    "PES": often("pes", 20_000, 100, budget=10_000),
    "TES": often("tes", 10_000, 50, budget=5000),
    "FullES": often("fulles", 6000, 25, budget=2000),
}
_AD = {
    "BPTT": often("bptt", 2000, 10, budget=1000, seeds=1, fixed=True),
    "TBPTT": often("tbptt", 20_000, 100, budget=10_000),
    "DODGE": often("dodge", 10_000, 50, budget=5000),
    "UORO": often("uoro", 5000, 50),
}
# With so many workers, the gradient is almost exact.
_MANY = {
    f"{name}, N = 20,000": often(
        name.lower(), 10_000, 100, settings={"workers": 20_000}, seeds=1, asymptote=True
    )
    for name in ("NRES", "PES")
}
_OTHERS = ("PES", "TES", "FullES")
_FASTEST_AND_LOWEST = (
    Slower("PES"),
    Slower("FullES"),
    Never("TES"),
    Better(("NRES",), _OTHERS),
    Better(("NRES",), _OTHERS, longer=True),
)


def _strategies(about: dict[str, Any], remark: str) -> Comparison:
    return Comparison(
        label="Figure 5 (b)",
        claim="On Lorenz, NRES reaches the lowest test loss, and reaches it fastest.",
        runs=_ES | _MANY,
        claims=(
            *_FASTEST_AND_LOWEST,
            Ends("NRES", "NRES, N = 20,000", near=True),
            Ends("PES", "PES, N = 20,000", near=False),
        ),
        remark=remark,
        **about,
    )


def _all_methods(about: dict[str, Any], shares: str, remark: str) -> Comparison:
    return Comparison(
        label="Figure 9",
        claim="On Lorenz, every automatic-differentiation method does worse than every evolution "
        "strategy.",
        runs=_ES | _AD,
        claims=(Better(tuple(_ES), tuple(_AD)), Better(tuple(_ES), tuple(_AD), longer=True)),
        shares=shares,
        remark=f"{remark} One of the five seeds of DODGE diverges after 550 updates.",
        **about,
    )


LORENZ_COMPARISONS: Mapping[str, Comparison] = {
    "lorenz-es": _strategies(_WIDE, _WIDE_TEXT),
    "lorenz-es-narrow": _strategies(_NARROW, _NARROW_TEXT),
    "lorenz-es-gpu": Comparison(
        label="Figure 5 (b)",
        claim="On Lorenz and a GPU, NRES reaches the lowest test loss, and reaches it fastest.",
        runs=_ES,
        claims=_FASTEST_AND_LOWEST,
        remark=_WIDE_TEXT,
        **_WIDE | {"tier": "gpu"},
    ),
    "lorenz-ad": _all_methods(_WIDE, "lorenz-es", _WIDE_TEXT),
    "lorenz-ad-narrow": _all_methods(_NARROW, "lorenz-es-narrow", _NARROW_TEXT),
}
