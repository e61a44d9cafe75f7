"""Claims of the paper: checking them against results, and the settings behind them."""

import dataclasses
import math

import numpy as np
import pytest
from scipy import stats

from nres import runs
from nres_paper.claims import (
    NearBest,
    Never,
    NoSlower,
    Reaches,
    Slower,
    Sooner,
    all_checks,
    checked,
)
from nres_paper.comparing import planned
from nres_paper.comparisons import COMPARISONS
from nres_paper.grades import GRADES, Check, verdict
from nres_paper.ranking import Ranking, estimate
from nres_paper.value_claims import Attains, Better, Ends


def falling(stretch, length=100):
    """Fall from 10 by one every `stretch` updates, of 2 sequential and 8 total steps each."""
    update = np.arange(length, dtype=float)
    at = {"update": update, "sequential_steps": 2 * update, "total_steps": 8 * update}
    return runs.Evaluations(at | {"seconds": update / 4}, 100 - update / stretch)


# NRES reaches 98 after 10, 12 and 8 updates.
RANKING = Ranking(
    {
        "NRES": [falling(5), falling(6), falling(4)],
        "PES": [falling(20), falling(18), falling(18)],
        "FullES": [falling(40, 400), falling(50, 400), falling(45, 400)],
        "GPES": [falling(5), falling(5), falling(5)],
        "TES": [falling(1e9)] * 3,
    },
    level=98.0,
    axis="seconds",
)


def test_the_paired_test_is_a_t_test_on_logarithms():
    ratios = [1.2, 3.4, 2.2, 0.9]
    found = estimate(ratios)
    expected = stats.ttest_1samp(np.log(ratios), 0.0)
    low, high = np.exp(expected.confidence_interval(0.95))
    np.testing.assert_allclose([found.low, found.high, found.p], [low, high, expected.pvalue])
    assert found.middle == pytest.approx(stats.gmean(ratios))
    # One seed establishes nothing, and two may agree by chance.
    for few in ([5.0], [5.0, 5.0]):
        assert not estimate(few).above
        assert str(estimate(few)) == f"{len(few)} seed" + "s" * (len(few) > 1)
    assert estimate([5.0] * 3).above
    assert estimate([0.5] * 3).below


@pytest.mark.parametrize(
    ("claim", "ours", "grade"),
    [
        # 40 / 10, 36 / 12 and 36 / 8 updates: 3.78 times, from 2.28 to 6.26.
        (Slower("PES", 4.0), "3.78×; 0.94 of the paper's factor", "holds"),
        (Slower("PES", 5.6), "3.78×; 0.67 of the paper's factor", "holds"),
        # Outside the band on either side.
        (Slower("PES", 6.0), "3.78×; 0.63 of the paper's factor", "differs"),
        (Slower("PES", 2.4), "3.78×; 1.6 of the paper's factor", "differs"),
        # A bound must be met by the whole interval.
        (Slower("PES", 2.0, more=True), "3.78× (95% interval 2.", "holds"),
        (Slower("PES", 3.0, more=True), "3.78× (95% interval 2.", "not established"),
        (Slower("PES", 9.0, more=True), "3.78× (95% interval 2.", "differs"),
        (Slower("PES"), "3.78× (95% interval 2.", "holds"),
        (Slower("GPES"), "1.01× (95% interval 0.", "not established"),
        (Slower("PES", 5.0, than="FullES"), "0.416×", "fails"),
        (Slower("PES", percent=70, axis="total_steps"), "3.78×, 74% fewer", "holds"),
        (Slower("NRES", than="PES", percent=10, axis="total_steps"), "0.265×, 278% more", "fails"),
        # Its runs are about ten times as long as NRES takes, which is only a lower bound.
        (Slower("TES", 3.0), "0 of 3 seeds reach the level; > 10×", "differs"),
        (Slower("TES", 9.0), "0 of 3 seeds reach the level; > 10×", "not established"),
        (Slower("TES", 20.0), "0 of 3 seeds reach the level; > 10×", "not established"),
        (Slower("TES", 5.0, more=True), "0 of 3 seeds reach the level; > 10×", "holds"),
        (Never("TES"), "never in 99 updates, 792 total steps", "holds"),
        (Never("PES"), "3 of 3 seeds, after 9.33 (9 to 10) seconds of training", "fails"),
        (Reaches("NRES", 80), "80 (64 to 96); 1 of the paper's", "holds"),
        (Reaches("NRES", 50), "80 (64 to 96); 1.6 of the paper's", "differs"),
        (Reaches("NRES", 150), "80 (64 to 96); 0.53 of the paper's", "differs"),
        (Reaches("NRES"), "80 (64 to 96)", "holds"),
        (Reaches("TES", 80), "0 of 3 seeds reach the level within 792", "fails"),
        (Attains("NRES", 84.0), "79.65 (75.25 to 83.5)", "holds"),
        (Attains("NRES", 80.0), "79.65 (75.25 to 83.5)", "fails"),
        (Better(("NRES",), ("PES", "TES")), "NRES 79.65, PES 94.68, TES 100; p = ", "holds"),
        (Better(("NRES",), ("GPES",)), "NRES 79.65, GPES 80.2; not separated", "not established"),
        (Better(("PES",), ("NRES",)), "reversed: PES and NRES", "fails"),
        (
            Sooner(("NRES", "PES", "TES")),
            "NRES 2.5 (2 to 3); PES 9.33 (9 to 10); TES never; p = ",
            "holds",
        ),
        (Sooner(("NRES", "FullES", "PES")), "reversed: FullES and PES", "fails"),
        (Sooner(("GPES", "NRES"), "total_steps"), "not separated", "not established"),
        (NoSlower("NRES", "PES", "little"), "0.265×", "holds"),
        (NoSlower("PES", "NRES", "little"), "3.78×", "fails"),
        (NoSlower("NRES", "GPES", "little"), "0.986×", "not established"),
        # Where a method never arrives, the ratio is only a bound.
        (NoSlower("NRES", "TES", "little"), "< 0.0996×", "holds"),
        (NoSlower("NRES", "TES", "little", 0.05), "0 of 3 seeds of TES reach", "not established"),
        (NoSlower("TES", "NRES", "little"), "> 10×", "fails"),
        (Better(("NRES",), ("PES",), in_paper=False), "NRES 79.65, PES 94.68; p = ", "holds"),
        (NearBest("NRES", ("PES",)), "NRES: 10 (8 to 12); PES: 37.3", "holds"),
        # The ratio to GPES varies from 0.8 to 1.2 over seeds, so a test cannot exclude 1.5.
        (NearBest("NRES", ("GPES", "PES")), "GPES: 10; PES: 37.3", "not established"),
        # TES never arrives, so it is no better.
        (NearBest("NRES", ("TES",)), "NRES: 10 (8 to 12); TES: never", "holds"),
        (NearBest("PES", ("NRES",)), "PES: 37.3 (36 to 40); NRES: 10 (8 to 12)", "differs"),
        (Ends("GPES", "NRES", near=True), "1 (95%", "holds"),
        (Ends("TES", "FullES", near=False), "1.1 (95%", "fails"),
        (Ends("TES", "GPES", near=False), "1.21 (95%", "holds"),
    ],
)
def test_what_is_claimed(claim, ours, grade):
    check = checked(claim, RANKING)
    assert ours in check.ours
    assert check.grade == grade


def test_claims_are_checked_after_the_updates_of_the_paper():
    short = dataclasses.replace(RANKING, budgets={"PES": 30, "TES": 200})
    check = checked(Never("PES"), short)
    assert (check.ours, check.grade) == ("never in 30 updates, 240 total steps", "holds")
    # A run that is shorter than in the paper does not tell.
    for claim in (Never("TES"), Reaches("TES"), Attains("TES", 50.0)):
        assert checked(claim, short).grade == "not established"
    # With as many updates, it does.
    for claim in (Reaches("TES"), Attains("TES", 50.0)):
        assert checked(claim, RANKING).grade == "fails"
    assert checked(Better(("NRES",), ("PES",), longer=True), short).ours.startswith(
        "NRES 79.65, PES 94.68"
    )


def test_a_run_is_near_its_asymptote_only_if_the_whole_interval_is():
    level = [
        dataclasses.replace(falling(1e9), values=np.full(100, x)) for x in (80.0, 100.0, 130.0)
    ]
    claim = Ends("PES", "TES", near=True)
    for seeds, grade in ((level, "not established"), (level[:1], "not established")):
        ranking = dataclasses.replace(RANKING, runs=RANKING.runs | {"PES": seeds})
        assert checked(claim, ranking).grade == grade
    far = dataclasses.replace(RANKING, runs=RANKING.runs | {"PES": [level[2]] * 3})
    assert checked(claim, far).grade == "fails"


def test_runs_that_are_missing_are_named_as_such():
    check = checked(Slower("BPTT", 4.0), RANKING)
    assert (check.paper, check.ours, check.grade) == ("4×", "not run yet", "not run yet")
    beside = all_checks([Slower("BPTT", 4.0)], RANKING)
    assert beside == (check,)  # the other axes would say the same


def test_seconds_stand_beside_steps():
    first, total, sequential = all_checks([Slower("PES", 4.0)], RANKING)
    assert first.grade == "holds"
    assert (total.about, total.paper, total.grade) == ("PES, total steps", "", "shown")
    assert sequential.about == "PES, sequential steps"
    assert len(all_checks([Slower("PES", axis="total_steps"), Never("TES")], RANKING)) == 2


def test_seconds_on_different_machines_are_not_compared():
    places = {"NRES": frozenset({"NVIDIA H200"}), "PES": frozenset({"2 CPU cores"})}
    mixed = dataclasses.replace(RANKING, places=places)
    assert checked(Slower("PES", 4.0), mixed).grade == "not established"
    assert checked(Slower("PES", 4.0, axis="total_steps"), mixed).grade == "holds"


def test_nothing_holds_against_a_reference_that_never_arrives():
    lost = dataclasses.replace(RANKING, runs=RANKING.runs | {"NRES": [falling(1e9)] * 3})
    for claim in (Slower("PES", 4.0), Reaches("NRES", 80)):
        assert checked(claim, lost).grade == "fails"
    assert checked(Slower("PES"), lost).ours == "NRES never reaches the level"
    neither = checked(Slower("TES"), lost)
    assert neither.ours == "neither NRES nor TES reaches the level"
    assert neither.grade == "not established"
    one = dataclasses.replace(lost, runs={name: runs_[:1] for name, runs_ in lost.runs.items()})
    for claim in (Slower("PES", 4.0), Reaches("NRES", 80)):  # one seed does not tell
        assert checked(claim, one).grade == "not established"


@pytest.mark.parametrize("seed", [0, 7])
def test_a_reference_that_arrives_with_other_seeds_establishes_nothing(seed):
    runs_ = RANKING.runs | {"NRES": [falling(1e9), falling(5), falling(5)], "PES": [falling(40)]}
    seeds = {"NRES": [0, 1, 2], "PES": [seed]}
    check = checked(Slower("PES", 4.0), dataclasses.replace(RANKING, runs=runs_, seeds=seeds))
    assert check.ours == "2 of 3 seeds of NRES reach the level, none of them in common"
    assert check.grade == "not established"


def test_a_reference_that_arrives_with_some_seeds_establishes_nothing():
    runs_ = RANKING.runs | {"NRES": [falling(5), falling(1e9), falling(5)]}
    some = dataclasses.replace(RANKING, runs=runs_)
    check = checked(Slower("PES", 4.0), some)
    assert check.grade == "not established"
    # 40 and 36 updates relative to 10, and 36 relative to more than 99.
    assert check.ours.startswith("3.79×;")
    assert "2 of 3 seeds of NRES reach it, at most 1.74× over all 3 seeds" in check.ours
    assert checked(Reaches("NRES", 80), some).grade == "differs"
    # Nothing is known of a seed with which neither arrives.
    some = dataclasses.replace(some, runs=runs_ | {"PES": [falling(20), falling(1e9), falling(18)]})
    assert "over all" not in checked(Slower("PES", 4.0), some).ours


def test_never_says_nothing_of_a_level_that_no_method_reaches():
    check = checked(Never("TES"), dataclasses.replace(RANKING, level=-1000.0))
    assert check.ours == "never in 99 updates, 792 total steps; nor does any other method"
    assert check.grade == "not established"


@pytest.mark.parametrize(
    ("first", "second", "grade"),
    [
        ([falling(1e9)] * 3, [falling(1e9, 300)] * 3, "not established"),
        ([falling(1e9, 300)] * 3, [falling(1e9)] * 3, "not established"),
        ([falling(100, 300)] * 3, [falling(1e9)] * 3, "not established"),
        ([falling(1e9)] * 3, [falling(100, 300)] * 3, "not established"),
        ([falling(5)] * 3, [falling(1e9)] * 3, "holds"),
        ([falling(1e9)] * 3, [falling(5)] * 3, "fails"),
    ],
)
def test_an_order_needs_runs_that_arrive_or_last_longer(first, second, grade):
    runs_ = RANKING.runs | {"NRES": first, "PES": second}
    ranking = dataclasses.replace(RANKING, runs=runs_)
    assert checked(Sooner(("NRES", "PES")), ranking).grade == grade


@pytest.mark.parametrize(
    "claim", [Never("TES"), Reaches("NRES", 80), Attains("NRES", 84.0), NearBest("NRES", ("PES",))]
)
def test_two_seeds_are_too_few_to_hold(claim):
    assert checked(claim, RANKING).grade == "holds"
    two = {name: runs_[:2] for name, runs_ in RANKING.runs.items()}
    few = dataclasses.replace(RANKING, runs=two)
    assert checked(claim, few).grade == "not established"
    # A method without randomness has no other seeds.
    alone = dataclasses.replace(few, fixed=frozenset(claim.names))
    assert checked(claim, alone).grade == "holds"


@pytest.mark.parametrize("axis", ["update", "total_steps"])
def test_a_reference_that_starts_below_the_level_is_compared_with_nothing(axis):
    below = falling(5)
    for values in below.at.values():
        values += 900  # workers are brought apart before the first evaluation
    low = runs.Evaluations(below.at, below.values - 50)
    one = dataclasses.replace(RANKING, runs=RANKING.runs | {"NRES": [below, below, low]})
    for claim in (
        Slower("PES", axis=axis),
        Sooner(("NRES", "PES"), axis),
        NoSlower("PES", "NRES", "", axis=axis),
        Reaches("NRES"),
    ):
        check = checked(claim, one)
        assert check.ours == "NRES starts below the level"
        assert check.grade == "not established"
    assert math.isnan(one.ratio("PES"))
    both = dataclasses.replace(RANKING, level=101.0)
    assert checked(Slower("PES", axis=axis), both).ours == "PES and NRES start below the level"


def test_a_level_that_some_seeds_reach():
    some = [falling(1e9), falling(2), falling(1e9)]
    ranking = dataclasses.replace(RANKING, runs=RANKING.runs | {"TES": some})
    check = checked(Never("TES"), ranking)
    assert check.ours == "1 of 3 seeds, after 1 seconds of training"
    assert check.grade == "fails"
    check = checked(Reaches("TES"), ranking)
    assert check.ours == "1 of 3 seeds reach the level, after 32; the others end at 792"
    assert check.grade == "fails"


def test_runs_are_paired_by_seed():
    seeds = {"NRES": [0, 1, 2], "PES": [2, 1]}
    runs_ = RANKING.runs | {"PES": [falling(40), falling(60)]}
    ranking = dataclasses.replace(RANKING, runs=runs_, seeds=seeds)
    assert ranking.ratios("PES") == [99 / 12, 80 / 8][::-1]
    # A method without randomness has one run for all seeds.
    one = dataclasses.replace(
        RANKING, runs=RANKING.runs | {"PES": [falling(20)]}, fixed=frozenset({"PES"})
    )
    assert one.ratios("PES") == [4.0, 40 / 12, 5.0]
    assert checked(Slower("PES"), one).about == "PES"
    one = dataclasses.replace(one, fixed=frozenset())
    assert checked(Slower("PES"), one).about == "PES (1 seed)"
    assert checked(Slower("PES"), one).grade == "not established"


def test_verdicts():
    def of(*grades):
        return verdict([Check("", "", "", grade) for grade in grades])

    assert of("holds") == of("holds", "shown") == "yes"
    other = Check("", "not in the paper", "", "fails")
    assert verdict([Check("", "", "", "holds"), other]) == "yes"
    assert of("fails") == "no"
    assert of("not run yet") == of("shown") == "not run yet"
    assert of("not established", "not run yet") == "not established"
    assert of("fails", "not run yet") == "no"
    for other in ("differs", "fails", "not established", "not run yet"):
        assert of("holds", other) == "in part"


@pytest.mark.parametrize("name", COMPARISONS)
def test_every_run_of_every_comparison_has_settings(name):
    comparison = COMPARISONS[name]
    for run in comparison.runs:
        for seed in comparison.seeds:
            full = planned(comparison, run, seed)
            small = planned(comparison, run, seed, quick=True)
            if comparison.runs[run].auto is not None:
                assert small.budget["total_steps"] < full.budget["total_steps"]
                assert small.untuned().method == full.untuned().method == "nres"
                continue
            assert full.updates // full.eval_every >= 20
            assert (small.updates, small.workers) == (4, 2)
            assert small.method == full.method
    # Every claim names runs of the comparison and can be checked.
    everyone = Ranking(
        {run: [falling(5)] for run in comparison.runs}, comparison.level, comparison.axis
    )
    for check in all_checks(comparison.claims, everyone):
        assert check.grade in GRADES
        assert check.grade != "not run yet"
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
