"""The paper's figures and tables: how claims are checked, and how figures are made."""

import dataclasses
import json
import math
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from nres import runs
from nres.cli import app
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
from nres_paper.comparing import planned, rank, read_runs, run_comparison
from nres_paper.comparisons import COMPARISONS, PlannedRun
from nres_paper.figures import FIGURES
from nres_paper.reproduction import read_summaries


def invoke(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)))


def falling(stretch, length=100):
    """Falls from 10 by one every `stretch` updates; two sequential and 8 total steps an update."""
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
        # Its runs were 9.9 times as long as NRES takes: it cannot be known to be twice as slow.
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


def test_results_of_all_are_kept_with_the_source():
    kept = read_summaries(Path(__file__).parents[1] / "results", FIGURES)
    assert kept.keys() == FIGURES.keys()
    for name, summary in kept.items():
        exhibit = FIGURES[name]
        assert (summary["claim"], summary["remark"]) == (exhibit.claim, exhibit.remark)
        assert not summary["quick"]


def test_nothing_holds_against_a_reference_that_never_arrives():
    lost = dataclasses.replace(RANKING, level=-100.0)
    for claim in (Slower("PES", 4.0), Never("PES"), Never("TES"), Reaches("NRES", 80)):
        check = claim.check(lost)
        assert check.grade == "fails"
        assert "NRES does not get there" in check.ours or check.ours.startswith("never in")
    there = dataclasses.replace(RANKING, level=11.0)
    assert Slower("PES").check(there).ours == "NRES is there from the start"


def test_a_reference_that_arrives_with_some_seeds_proves_less():
    runs_ = RANKING.runs | {"NRES": [falling(5), falling(1e9)]}
    half = dataclasses.replace(RANKING, runs=runs_)
    assert Slower("PES", 4.0).check(half).grade == "fails"
    assert Reaches("NRES", 80).check(half).ours == "never in 792; 1 of 2 seeds do"
    two = {"NRES": [falling(5), falling(5), falling(1e9)]}
    most = dataclasses.replace(RANKING, runs=runs_ | two)
    check = Slower("PES", 4.0).check(most)
    assert check.ours == "3× (3 to 4); NRES gets there with 2 of 3 seeds"
    assert check.grade == "weaker"


def test_never_is_said_of_all_seeds():
    some = [falling(1e9), falling(2), falling(1e9)]
    check = Never("TES").check(dataclasses.replace(RANKING, runs=RANKING.runs | {"TES": some}))
    assert check.ours == "never (> 9.9×); TES gets there with 1 of 3 seeds"
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
    for name in comparison.runs:
        for seed in comparison.seeds:
            full = planned(comparison, name, seed)
            assert full.updates // full.eval_every >= 20
            small = planned(comparison, name, seed, quick=True)
            assert (small.updates, small.workers) == (4, 2)
            assert small.method == full.method
    # Every claim names runs of the comparison, and can be checked.
    everyone = Ranking({name: [falling(5)] for name in comparison.runs}, 8.0, comparison.axis)
    for claim in comparison.claims:
        assert claim.check(everyone).grade in ("holds", "weaker", "fails")
    if comparison.shares is not None:
        others = COMPARISONS[comparison.shares]
        shared = set(comparison.runs) & set(others.runs)
        assert any(
            planned(comparison, n, comparison.seeds[0]) == planned(others, n, comparison.seeds[0])
            for n in shared
        )


class Folders:
    """Stands in for carrying out runs: writes metrics that fall, and counts."""

    def __init__(self):
        self.made = []

    def __call__(self, path, settings):
        self.made.append((path.name, settings.seed))
        path.mkdir(parents=True)
        rate = {"nres": 4, "pes": 1, "fulles": 2, "tes": 0}[settings.method]
        rows = [
            {"update": u, "total_steps": 9 * u, "sequential_steps": u, "seconds": u / 4}
            | {"loss": 1.0, "eval/test_loss": 100 - rate * u, "eval/ln_r": 0.0}
            for u in range(settings.updates + 1)
        ]
        (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        facts = {"backend": "cpu", "kind": "cpu", "count": 1}
        return runs.Run(
            path, {"settings": settings.to_json(), "device": facts, "versions": {"nres": "0"}}
        )


def small_comparison(**changes):
    runs = {name: PlannedRun(name.lower(), 20) for name in ("NRES", "PES")}
    runs["FullES"] = PlannedRun("fulles", 20, seeds=1)
    comparison = dataclasses.replace(COMPARISONS["lorenz-es"], runs=runs, seeds=(0, 1), smooth=1)
    return dataclasses.replace(comparison, **changes)


def test_a_run_is_made_once(tmp_path):
    made, said = Folders(), []
    settings = {"seeds": None, "quick": False, "finished": made, "say": said.append}
    records = run_comparison(small_comparison(), tmp_path / "a", **settings)
    assert made.made == [("nres-0", 0), ("nres-1", 1), ("pes-0", 0), ("pes-1", 1), ("fulles-0", 0)]
    assert said[-1] == "5 of 5: FullES, seed 0"
    file = tmp_path / "a/metrics.jsonl"
    before = file.read_text()
    assert run_comparison(small_comparison(), tmp_path / "a", **settings) == records
    assert len(made.made) == 5
    assert file.read_text() == before
    # More seeds than planned; then fewer, which takes nothing away.
    more = run_comparison(small_comparison(), tmp_path / "a", **settings | {"seeds": 3})
    assert made.made[5:] == [("nres-2", 2), ("pes-2", 2), ("fulles-1", 1), ("fulles-2", 2)]
    assert len(more) == 9
    assert len(run_comparison(small_comparison(), tmp_path / "a", **settings | {"seeds": 1})) == 3
    assert len(read_runs(file)) == 9
    # Another comparison takes over what it has in common, and makes the rest.
    other = small_comparison(
        shares="a", runs={"NRES": PlannedRun("nres", 20), "TES": PlannedRun("tes", 9)}
    )
    run_comparison(other, tmp_path / "b", **settings)
    assert made.made[9:] == [("tes-0", 0), ("tes-1", 1)]
    # What was planned otherwise is not overwritten.
    before = file.read_text()
    shorter = small_comparison(runs={"NRES": PlannedRun("nres", 10)})
    for otherwise in ({"quick": True}, {"comparison": shorter}):
        with pytest.raises(runs.SettingsError, match="holds other results"):
            run_comparison(
                folder=tmp_path / "a", **{"comparison": small_comparison()} | settings | otherwise
            )
    assert file.read_text() == before
    assert len(made.made) == 11


def test_ranking_of_a_comparison(tmp_path):
    settings = {"seeds": None, "quick": False, "finished": Folders(), "say": lambda text: None}
    comparison = small_comparison(early=0.25)
    result = rank(comparison, run_comparison(comparison, tmp_path, **settings))
    assert result.level == 80  # of NRES after 5 of 20 updates
    assert result.ratio("PES") == 4
    assert result.ratio("FullES") == 2
    described = result.to_json("PES")
    assert described["times_longer"] == 4
    assert described["reached"]["update"] == [20, 20]


def test_reproducing_a_comparison(tmp_path, monkeypatch):
    command = ["reproduce", "ablation-N", "--quick", "--out", tmp_path]
    result = invoke(*command)
    assert result.exit_code == 0, result.output
    folder = tmp_path / "ablation-N"
    assert (folder / "ablation-N.png").read_bytes().startswith(b"\x89PNG")
    drawn = (folder / "ablation-N.svg").read_text()
    assert "<svg" in drawn
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["command"] == "nres reproduce ablation-N --quick"
    assert summary["quick"]
    assert summary["seeds"] == 1
    assert summary["device"]["backend"] == "cpu"
    assert summary["versions"]["jax"]
    assert summary["seconds"] > 0
    assert set(summary["numbers"]["methods"]) == {"NRES", "N = 100", "N = 10"}
    # Again, with nothing to do: the same figure, to the byte.
    monkeypatch.setattr(sys.modules["nres.cli.train"], "execute", None)
    assert invoke(*command, "--quiet").output == ""
    assert (folder / "ablation-N.svg").read_text() == drawn
    # A record that was lost is taken from its run, which is complete.
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    (folder / "metrics.jsonl").write_text("\n".join(lines[:4]) + "\n")
    assert invoke(*command).exit_code == 0
    assert (folder / "metrics.jsonl").read_text().splitlines() == lines
    table = invoke("reproduce", "table", "--out", tmp_path)
    assert "ablation-N" in table.output
    full = invoke("reproduce", "ablation-N", "--out", tmp_path)
    assert full.exit_code == 2
    assert "holds --quick versions" in full.stderr


def test_reproducing_another_figure(tmp_path):
    name = "lorenz-paths"
    result = invoke("reproduce", name, "--quick", "--out", tmp_path, "--quiet")
    assert (result.exit_code, result.output) == (0, "")
    summary = json.loads((tmp_path / name / "summary.json").read_text())
    assert summary["checks"]
    assert summary["reproduced"] == "too small to tell"
    assert len((tmp_path / name / "metrics.jsonl").read_text().splitlines()) == 2
    assert (tmp_path / name / f"{name}.png").exists()
    for others in ([name, "--quick"], ["table"], []):
        refused = invoke("reproduce", *others, "--seeds", 2, "--out", tmp_path)
        assert "--seeds goes with an ID or all, and not with --quick" in refused.stderr
    missing = invoke("reproduce", "wall-clock", "--quick", "--out", tmp_path)
    assert "there are no results of lorenz-es" in missing.stderr


def test_a_folder_is_for_results_or_for_small_versions(tmp_path):
    results = Path(__file__).parents[1] / "results"
    for comparison in ("lorenz-es", "lopt-es", "swimmer", "halfcheetah"):
        shutil.copytree(
            results / comparison, tmp_path / comparison, ignore=shutil.ignore_patterns("runs")
        )
    small = invoke("reproduce", "lorenz-paths", "--quick", "--out", tmp_path)
    assert small.exit_code == 2
    assert "holds results: choose another folder" in small.stderr
    made = invoke("reproduce", "wall-clock", "--out", tmp_path)
    assert "Measured before" in made.output
    summary = json.loads((tmp_path / "wall-clock/summary.json").read_text())
    assert summary["seeds"] == 5
    assert [check["grade"] for check in summary["checks"]] == ["holds"] * 4
    (tmp_path / "swimmer/summary.json").write_text("{")
    assert "summary.json is damaged" in invoke("reproduce", "table", "--out", tmp_path).stderr


def test_all_goes_on_after_one_that_cannot_be_made(tmp_path, monkeypatch):
    def fails(work):
        raise OSError("no room")

    broken = {"a": dataclasses.replace(FIGURES["lorenz-surface"], make=fails)}
    good = {"b": FIGURES["lorenz-surface"], "c": FIGURES["lopt-es"]}
    monkeypatch.setattr(sys.modules["nres_paper.command"], "FIGURES", broken | good)
    result = invoke("reproduce", "all", "--tier", "cpu", "--quick", "--out", tmp_path)
    assert result.exit_code == 1
    assert "a: no room" in result.stderr
    assert "not made: a." in result.stderr
    assert (tmp_path / "b/summary.json").exists()
    assert not (tmp_path / "c").exists()


def test_contents():
    result = invoke("reproduce")
    assert all(name in result.output for name in FIGURES)


def test_smoothing_ignores_what_happens_once():
    values = np.array([9.0, 9, 1, 9, math.inf, 9, 3, 3, 3])
    at = dict.fromkeys(("update", "sequential_steps", "total_steps", "seconds"), np.arange(9.0))
    assert runs.Evaluations(at, values).smoothed(3).first(3.0, "update") == 6
    # Nor at the ends; and where a run starts from is no part of what it learns.
    for once in ([0.0, *[9] * 8], [9, 0, *[9] * 7], [*[9] * 8, 0]):
        found = runs.Evaluations(at, np.array(once, float)).smoothed(3).values
        np.testing.assert_array_equal(found, [once[0], *[9] * 8])
