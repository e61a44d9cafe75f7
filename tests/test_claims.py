"""Claims of the paper: checking them against results, and the settings behind them."""

import dataclasses
import math

import numpy as np
import pytest

from nres import runs
from nres_paper.claims import (
    Attains,
    Better,
    Check,
    Never,
    Ranking,
    Reaches,
    Slower,
    Sooner,
    verdict,
)
from nres_paper.comparing import planned
from nres_paper.comparisons import COMPARISONS


def falling(stretch, length=100):
    """Fall from 10 by one every `stretch` updates, of 2 sequential and 8 total steps each."""
    update = np.arange(length, dtype=float)
    at = {"update": update, "sequential_steps": 2 * update, "total_steps": 8 * update}
    return runs.Evaluations(at | {"seconds": update / 4}, 10 - update / stretch)


RANKING = Ranking(
    {
        "NRES": [falling(5), falling(6), falling(4)],
        "PES": [falling(20), falling(15), falling(25)],
        "FullES": [falling(40, 400), falling(50, 400), falling(45, 400)],
        "TES": [falling(1e9)] * 3,
    },
    level=8.0,
    axis="seconds",
)


@pytest.mark.parametrize(
    ("claim", "ours", "grade"),
    [
        (Slower("PES", 4.0), "4× (2.5 to 6.25)", "holds"),
        (Slower("PES", 8.0), "4× (2.5 to 6.25)", "holds"),
        (Slower("PES", 9.0, more=True), "4× (2.5 to 6.25)", "weaker"),
        (Slower("PES"), "4× (2.5 to 6.25)", "holds"),
        (Slower("PES", 5.0, than="FullES"), "0.5× (0.3 to 0.556)", "fails"),
        (Slower("PES", axis="total_steps"), "4× (2.5 to 6.25)", "holds"),
        # Its runs are 9.9 times as long as NRES takes, which is less than half of 20 times.
        (Slower("TES", 9.0), "never (> 9.9×)", "holds"),
        (Slower("TES", 20.0), "never (> 9.9×)", "weaker"),
        (Never("TES"), "never (> 9.9×)", "holds"),
        (Never("PES"), "4× (2.5 to 6.25)", "weaker"),
        (Reaches("NRES", 80), "80 (64 to 96)", "holds"),
        (Reaches("NRES", 39), "80 (64 to 96)", "weaker"),
        (Reaches("NRES", 7), "80 (64 to 96)", "fails"),
        (Reaches("NRES"), "80 (64 to 96)", "holds"),
        (Reaches("TES", 80), "never in 792", "fails"),
        (Attains("NRES", -9.0), "-9.8", "holds"),
        (Attains("NRES", -9.9), "-9.8", "fails"),
        (Better(("NRES",), ("PES", "TES")), "NRES -9.8, PES 5.05, TES 10", "holds"),
        (
            Better(("NRES", "FullES", "TES"), ("PES",)),
            "NRES -9.8, FullES 1.133, TES 10, PES 5.05",
            "weaker",
        ),
        (Better(("TES",), ("PES",)), "TES 10, PES 5.05", "fails"),
        (Better(("PES",), ("NRES", "TES")), "PES 5.05, NRES -9.8, TES 10", "fails"),
        (
            Sooner(("NRES", "PES", "TES")),
            "NRES 2.5 (2 to 3); PES 10 (7.5 to 12.5); TES never",
            "holds",
        ),
        (
            Sooner(("NRES", "FullES", "PES")),
            "NRES 2.5 (2 to 3); FullES 22.5 (20 to 25); PES 10 (7.5 to 12.5)",
            "weaker",
        ),
        (
            Sooner(("PES", "NRES"), "total_steps"),
            "PES 320 (240 to 400); NRES 80 (64 to 96)",
            "fails",
        ),
    ],
)
def test_what_is_claimed(claim, ours, grade):
    check = claim.check(RANKING)
    assert (check.ours, check.grade) == (ours, grade)


def test_nothing_holds_against_a_reference_that_never_arrives():
    lost = dataclasses.replace(RANKING, level=-100.0)
    for claim in (Slower("PES", 4.0), Never("PES"), Never("TES"), Reaches("NRES", 80)):
        check = claim.check(lost)
        assert check.grade == "fails"
        assert "NRES never reaches the level" in check.ours or check.ours.startswith("never in")
    there = dataclasses.replace(RANKING, level=11.0)
    assert Slower("PES").check(there).ours == "NRES starts below the level"


def test_a_reference_that_arrives_with_some_seeds_proves_less():
    runs_ = RANKING.runs | {"NRES": [falling(5), falling(1e9)]}
    half = dataclasses.replace(RANKING, runs=runs_)
    assert Slower("PES", 4.0).check(half).grade == "fails"
    assert Reaches("NRES", 80).check(half).ours == "never in 792; 1 of 2 seeds reach the level"
    two = {"NRES": [falling(5), falling(5), falling(1e9)]}
    most = dataclasses.replace(RANKING, runs=runs_ | two)
    check = Slower("PES", 4.0).check(most)
    assert check.ours == "3× (3 to 4); 2 of 3 seeds of NRES reach the level"
    assert check.grade == "weaker"


def test_never_is_said_of_all_seeds():
    some = [falling(1e9), falling(2), falling(1e9)]
    check = Never("TES").check(dataclasses.replace(RANKING, runs=RANKING.runs | {"TES": some}))
    assert check.ours == "never (> 9.9×); 1 of 3 seeds of TES reach the level"
    assert check.grade == "weaker"
    runs_ = RANKING.runs | {"NRES": [falling(5), falling(1e9), falling(4)]}
    doubtful = dataclasses.replace(RANKING, runs=runs_)
    assert Never("TES").check(doubtful).grade == "weaker"
    assert Sooner(("NRES", "PES")).check(doubtful).ours == (
        "NRES 2 to never (2 of 3 seeds); PES 10 (7.5 to 12.5)"
    )


def test_a_seed_that_starts_below_the_level_proves_nothing():
    below = runs.Evaluations(falling(5).at, falling(5).values - 100)
    runs_ = RANKING.runs | {"NRES": [below, falling(6), falling(4)]}
    assert dataclasses.replace(RANKING, runs=runs_).ratio("PES") == 2.5


def test_a_short_run_that_never_arrives_proves_nothing():
    short = dataclasses.replace(RANKING, runs=RANKING.runs | {"TES": [falling(1e9, 5)]})
    check = Never("TES").check(short)
    assert (check.about, check.ours) == ("TES (1 seed)", "never (> 0.4×)")
    assert check.grade == "fails"
    assert Reaches("FullES", 50).check(RANKING).grade == "fails"


def test_verdicts():
    checks = {grade: Check("", "", "", grade) for grade in ("holds", "weaker", "fails")}
    assert verdict([checks["holds"]]) == "yes"
    assert verdict([checks["fails"]]) == "no"
    assert verdict([checks["holds"], checks["fails"]]) == "in part"
    assert verdict([checks["weaker"], checks["fails"]]) == "in part"


@pytest.mark.parametrize("name", COMPARISONS)
def test_every_run_of_every_comparison_has_settings(name):
    comparison = COMPARISONS[name]
    for run in comparison.runs:
        for seed in comparison.seeds:
            full = planned(comparison, run, seed)
            assert full.updates // full.eval_every >= 20
            small = planned(comparison, run, seed, quick=True)
            assert (small.updates, small.workers) == (4, 2)
            assert small.method == full.method
    # Every claim names runs of the comparison and can be checked.
    everyone = Ranking({run: [falling(5)] for run in comparison.runs}, 8.0, comparison.axis)
    for claim in comparison.claims:
        assert claim.check(everyone).grade in ("holds", "weaker", "fails")
    if comparison.shares is not None:
        others, seed = COMPARISONS[comparison.shares], comparison.seeds[0]
        shared = set(comparison.runs) & set(others.runs)
        assert any(planned(comparison, n, seed) == planned(others, n, seed) for n in shared)


def test_smoothing_ignores_what_happens_once():
    values = np.array([9.0, 9, 1, 9, math.inf, 9, 3, 3, 3])
    at = dict.fromkeys(("update", "sequential_steps", "total_steps", "seconds"), np.arange(9.0))
    assert runs.Evaluations(at, values).smoothed(3).first(3.0, "update") == 6
    # The same holds at both ends. The value at the start does not affect later ones.
    for once in ([0.0, *[9] * 8], [9, 0, *[9] * 7], [*[9] * 8, 0]):
        found = runs.Evaluations(at, np.array(once, float)).smoothed(3).values
        np.testing.assert_array_equal(found, [once[0], *[9] * 8])
