"""Comparisons on recurrent networks, as data; they are in no paper."""

from collections.abc import Mapping
from typing import Any

from nres_paper.claims import Never, Reaches, Slower, Sooner
from nres_paper.plans import Comparison, PlannedRun, often
from nres_paper.value_claims import Better

_RECURRENT: dict[str, Any] = {
    "label": "",
    "tier": "gpu",
    "axis": "total_steps",
    "rates": ("1e-3", "3e-3", "1e-2"),
    "shown": "cross-entropy",
    "smooth": 1,
}
_TRIED = (
    "No paper makes these statements: they say what was expected before the runs. Every method "
    "tries the learning rates 0.001, 0.003 and 0.01 with the first seed, and uses the one with "
    "which it reaches the level first. "
)


def _echo(method: str, updates: int, **settings: Any) -> PlannedRun:
    return often(method, updates, updates // 80, settings=settings)


def _characters(method: str, updates: int) -> PlannedRun:
    return often(method, updates, updates // 60)


# Runs of one comparison take equally many total steps, except RTRL, whose steps cost d times more.
RECURRENT_COMPARISONS: Mapping[str, Comparison] = {
    "rnn-echo": Comparison(
        claim="A recurrent network must repeat bits after 8 steps: NRES learns it in windows of 4 "
        "steps, faster than PES; TES and truncated backpropagation in such windows do not.",
        system="echo",
        runs={
            "NRES": _echo("nres", 8000),
            "PES": _echo("pes", 8000),
            "TES": _echo("tes", 5600),
            "UORO": _echo("uoro", 16_000),
            "RTRL": _echo("rtrl", 4000),
            "TBPTT": _echo("tbptt", 16_000),
            "TBPTT, W = 20": _echo("tbptt", 3200, window=20),
        },
        claims=(
            Reaches("NRES"),
            Slower("PES"),
            Slower("PES", axis="seconds"),
            Slower("UORO"),
            Never("TES"),
            Never("TBPTT"),
            Sooner(("TBPTT, W = 20", "NRES")),
            Sooner(("TBPTT, W = 20", "NRES"), axis="seconds"),
        ),
        seeds=(0, 1, 2, 3, 4),
        # A pilot run of NRES with another seed reached it in a third of its updates.
        level=0.1,
        top=1.0,
        remark=_TRIED + "The loss of guessing is 0.69. A window of 20 steps is longer than the "
        "lag, and then truncated backpropagation should be the fastest. RTRL has 3 workers, since "
        "each of its steps costs as much as 3,426 plain ones.",
        **_RECURRENT,
    ),
    "rnn-characters": Comparison(
        claim="A recurrent network with d = 28,928 learns to predict the next character of a "
        "text: truncated backpropagation is the fastest, and NRES is faster than PES.",
        system="characters",
        runs={
            "NRES": _characters("nres", 20_000),
            "PES": _characters("pes", 20_000),
            "TES": _characters("tes", 13_200),
            "UORO": _characters("uoro", 40_000),
            "TBPTT": _characters("tbptt", 40_000),
        },
        claims=(
            Sooner(("TBPTT", "NRES", "PES")),
            Sooner(("TBPTT", "NRES", "PES"), axis="seconds"),
            Better(("TBPTT",), ("NRES", "PES", "TES", "UORO")),
            Better(("NRES",), ("PES",)),
        ),
        seeds=(0, 1, 2),
        level=2.7,
        top=4.5,
        remark=_TRIED + "Characters depend mostly on the last few, so truncation costs little "
        "here. The text is the manual that Python ships, which differs a little between versions "
        "of Python. Its single characters have an entropy of 3.07, and pairs of them a "
        "conditional entropy of 2.36.",
        **_RECURRENT,
    ),
}
