"""Comparisons with noise of low rank, as data; they are in no paper."""

import math
from collections.abc import Mapping

from nres_paper.claims import Reaches
from nres_paper.plans import Comparison, PlannedRun, often
from nres_paper.value_claims import Attains, Better, NoWorse

# Cross-entropies of the held-out tenth of the text, in bits per byte, by counts of single bytes and
# of pairs in the rest of it; the counts of pairs are smoothed with those of single bytes.
UNIGRAM, BIGRAM = 4.68, 3.34
RANKS = (1, 2, 4)


def _ranked(noise: str) -> PlannedRun:
    return often("nres", 10_000, 250, settings={"noise": noise})


_NOT_PUBLISHED = "No paper makes these statements: they say what was expected before the runs. "

LARGE_COMPARISONS: Mapping[str, Comparison] = {
    "text": Comparison(
        label="",
        claim="NRES with noise of rank 1 trains a recurrent network of 1.3 million parameters to "
        "predict the next byte of a text: better than the frequencies of single bytes and of pairs "
        "of bytes do, and worse than the same network after truncated backpropagation.",
        system="text",
        tier="gpu",
        axis="total_steps",
        runs={
            "NRES": often(
                "nres", 30_000, 500, settings={"noise": "low-rank", "regenerate_noise": True}
            ),
            "TBPTT": often("tbptt", 2000, 100),
        },
        claims=(
            Reaches("NRES"),
            Attains("NRES", BIGRAM),
            Better(("TBPTT",), ("NRES",), in_paper=False),
        ),
        seeds=(0, 1, 2),
        level=UNIGRAM,
        shown="bits per byte",
        smooth=1,
        top=6.0,
        remark=_NOT_PUBLISHED + "The level is what the frequencies of single bytes give "
        f"({UNIGRAM} bits per byte), and pairs of bytes give {BIGRAM}. Values are from the last "
        "tenth of the text, which is held out. The text is the manual that Python ships; "
        "the frequencies are those of version 3.11.",
    ),
    "lopt-rank": Comparison(
        label="",
        claim="A learned optimizer with d = 19,330 learns as well with noise of low rank as with "
        "Gaussian noise.",
        system="learned-optimizer",
        options={"width": 128, "layered": True},
        tier="gpu",
        axis="total_steps",
        runs={"NRES": _ranked("gaussian")}
        | {
            f"rank {rank}": _ranked("low-rank" if rank == 1 else f"low-rank-{rank}")
            for rank in RANKS
        },
        claims=tuple(NoWorse(f"rank {rank}", "NRES") for rank in RANKS),
        seeds=(0, 1, 2),
        level=math.log(10),
        top=3.0,
        remark=_NOT_PUBLISHED + "All runs take equally many steps. The level is the loss of "
        "guessing.",
    ),
}
