"""Figures and tables of the paper: making, listing and storing them."""

import dataclasses
import json
import math
from pathlib import Path

import pytest
from typer.testing import CliRunner

from helpers import as_users_run, raises_naming
from nres import runs
from nres_paper import command
from nres_paper.claims import all_checks
from nres_paper.comparing import (
    best_rates,
    planned,
    rank,
    read_runs,
    run_comparison,
    write_runs,
)
from nres_paper.comparisons import COMPARISONS
from nres_paper.figures import FIGURES
from nres_paper.grades import GRADES, Check
from nres_paper.pes_comparisons import PES_PAPER
from nres_paper.plans import PlannedRun
from nres_paper.reproduction import (
    Context,
    PaperFigure,
    Result,
    checks_of,
    of_comparison,
    read_summaries,
)
from nres_paper.trajectory import pes_settings, pes_trajectory

RESULTS = Path(__file__).parents[1] / "results"


def reproduce(*arguments):
    """Run the command in this process, and not as `nres`, which needs an installation."""
    return CliRunner().invoke(command.app, list(map(str, arguments)), env={"COLUMNS": "200"})


KEPT = read_summaries(RESULTS, FIGURES)


@pytest.mark.parametrize("name", KEPT)
def test_kept_results_are_those_of_their_figure(name):
    summary, figure = KEPT[name], FIGURES[name]
    assert (summary["id"], summary["figure"]) == (name, figure.label)
    assert not summary["quick"]
    assert summary["numbers"]
    assert {check["grade"] for check in summary["checks"]} <= set(GRADES)
    assert (RESULTS / name / f"{name}.png").exists()
    if name in COMPARISONS:
        comparison = COMPARISONS[name]
        runs = read_runs(RESULTS / name / "metrics.jsonl")
        checks = [dataclasses.asdict(check) for check in checks_of(comparison, runs)]
        assert checks == summary["checks"]


def test_no_results_are_kept_of_figures_that_are_gone():
    there = {file.parent.name for file in RESULTS.glob("*/summary.json")}
    # That of the learned optimizer is older than its plan: its file is an example of the docs.
    assert there - {"torture"} - {"learned-optimizer"} == KEPT.keys() - {"learned-optimizer"}


class Folders:
    """A stand-in for carrying out runs, which writes falling metrics and counts its calls."""

    def __init__(self):
        self.made = []

    def __call__(self, path, settings):
        self.made.append((path.name, settings.seed))
        path.mkdir(parents=True)
        rate = {"nres": 4, "pes": 1, "fulles": 2, "tes": 0}[settings.method]
        rows = [
            {"update": u, "total_steps": 9 * u, "sequential_steps": u, "seconds": u / 4}
            | {"loss": 1.0, "eval/test_loss": 100 - rate * u, "eval/ln_r": 0.0}
            for u in range(0, settings.updates + 1, max(1, settings.updates // 200))
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
    # More seeds than planned; then fewer, which removes nothing.
    more = run_comparison(small_comparison(), tmp_path / "a", **settings | {"seeds": 3})
    assert made.made[5:] == [("nres-2", 2), ("pes-2", 2), ("fulles-1", 1), ("fulles-2", 2)]
    assert len(more) == 9
    assert run_comparison(small_comparison(), tmp_path / "a", **settings | {"seeds": 1}) == more
    assert read_runs(file) == more
    # Another comparison reuses the common runs, and makes the others.
    other = small_comparison(
        shares="a", runs={"NRES": PlannedRun("nres", 20), "TES": PlannedRun("tes", 9)}
    )
    both = run_comparison(other, tmp_path / "b", only=["TES"], **settings)
    assert made.made[9:] == [("tes-0", 0), ("tes-1", 1)]
    assert sorted((run.name, run.settings.seed) for run in both) == [
        ("NRES", 0),
        ("NRES", 1),
        ("TES", 0),
        ("TES", 1),
    ]
    assert read_runs(tmp_path / "b/metrics.jsonl") == both
    # Results with other settings are not overwritten.
    before = file.read_text()
    shorter = small_comparison(runs={"NRES": PlannedRun("nres", 10)})
    for otherwise in ({"quick": True}, {"comparison": shorter}):
        with pytest.raises(runs.SettingsError, match=r"metrics.jsonl.*--out"):
            run_comparison(
                folder=tmp_path / "a", **{"comparison": small_comparison()} | settings | otherwise
            )
    assert file.read_text() == before
    assert len(made.made) == 11


def one_run(folder):
    settings = {"seeds": 1, "quick": False, "finished": Folders(), "say": str}
    (run,) = run_comparison(small_comparison(), folder, only=["NRES"], **settings)
    return run


def test_a_run_that_diverged_counts_with_its_planned_length(tmp_path):
    run = one_run(tmp_path)
    assert run.evaluations.at["update"].tolist() == list(range(21))
    early = dataclasses.replace(run, entries=run.entries[:6]).evaluations
    assert early.values[-2:].tolist() == [80, math.inf]
    assert {axis: x[-1] / x[-2] for axis, x in early.at.items()} == dict.fromkeys(runs.AXES, 4)


def test_the_seconds_of_a_run_that_shared_its_machine_are_those_that_it_takes_alone(tmp_path):
    run = dataclasses.replace(one_run(tmp_path), alone=0.125)
    assert run.evaluations.at["seconds"].tolist() == [u / 8 for u in range(21)]
    assert run.evaluations.at["total_steps"].tolist() == [9 * u for u in range(21)]
    write_runs(tmp_path / "shared.jsonl", [run])
    assert read_runs(tmp_path / "shared.jsonl") == [run]


def test_single_runs_and_seeds(tmp_path):
    made = Folders()
    settings = {"seeds": None, "quick": False, "finished": made, "say": lambda text: None}
    found = run_comparison(small_comparison(), tmp_path, only=["PES"], only_seeds=[1], **settings)
    assert made.made == [("pes-1", 1)]
    # Claims about the other runs say that they are missing.
    checks = all_checks(small_comparison().claims, rank(small_comparison(), found))
    assert {check.ours for check in checks} == {"not run yet"}
    run_comparison(small_comparison(), tmp_path, **settings)
    assert made.made[1:] == [("nres-0", 0), ("nres-1", 1), ("pes-0", 0), ("fulles-0", 0)]
    with raises_naming(runs.SettingsError, "PFS"):
        run_comparison(small_comparison(), tmp_path, only=["PFS"], **settings)


def test_seeds_that_are_not_planned_are_refused(tmp_path):
    made = Folders()
    settings = {"seeds": None, "quick": False, "finished": made, "say": lambda text: None}
    refused = (
        ({}, 9, "0, 1"),
        ({"only": ["FullES"]}, 1, "0"),  # it has fewer seeds than the others
        ({"quick": True}, 1, "0"),
        ({"seeds": 3}, 3, "0, 1, 2"),
    )
    for others, seed, there in refused:
        with raises_naming(runs.SettingsError, f"--seed {seed} ", f" {there}."):
            given = settings | others
            run_comparison(small_comparison(), tmp_path / "a", only_seeds=[0, seed], **given)
    # The first seed chooses among the rates.
    with raises_naming(runs.SettingsError, "--seed 1 ", "NRES", "--seed 0."):
        rates = small_comparison(rates=("1e-3", "1e-2"))
        run_comparison(rates, tmp_path / "a", only_seeds=[1], **settings)
    assert not made.made
    assert not (tmp_path / "a").exists()
    unplanned = reproduce("halfcheetah", "--seed", 9, "--out", tmp_path)
    assert unplanned.exit_code == 2
    assert "--seed 9" in unplanned.stderr
    assert not list(tmp_path.iterdir())


def test_the_best_of_several_rates_is_used(tmp_path):
    class Rates(Folders):
        def __call__(self, path, settings):
            run = super().__call__(path, settings)
            if settings.lr != "0.001":  # worse than the first rate
                text = run.metrics_file.read_text().replace(
                    '"eval/test_loss": ', '"eval/test_loss": 9'
                )
                run.metrics_file.write_text(text)
            return run

    made = Rates()
    settings = {"seeds": None, "quick": False, "finished": made, "say": lambda text: None}
    comparison = small_comparison(
        rates=("1e-3", "1e-2"), runs={"NRES": PlannedRun("nres", 20)}, level=80.0
    )
    found = run_comparison(comparison, tmp_path, **settings)
    assert made.made == [("nres-0-0.001", 0), ("nres-0-0.01", 0), ("nres-1", 1)]
    assert best_rates(comparison, found) == {"NRES": "0.001"}
    # A method counts once it has tried all rates.
    assert not best_rates(comparison, found[1:])
    assert not rank(comparison, found[1:]).runs
    assert checks_of(comparison, found[1:])[-1].ours == "NRES: 1 of 2 tried so far"
    alone = dataclasses.replace(comparison, rates=("1e-3",))
    assert checks_of(alone, found[:1])[-1].ours == "NRES 0.001"
    assert rank(comparison, found).seeds == {"NRES": [0, 1]}
    assert checks_of(comparison, found)[-1].ours == "NRES 0.001 (the smallest tried)"
    run_comparison(comparison, tmp_path, **settings)
    assert len(made.made) == 3


def test_results_with_other_settings_do_not_count(tmp_path):
    comparison = COMPARISONS["lorenz-es"]
    figure = FIGURES["lorenz-es"]
    (tmp_path / "lorenz-es").mkdir()
    file = tmp_path / "lorenz-es/summary.json"
    summary = {"checks": [], "reproduced": "yes", "fingerprint": figure.fingerprint()}
    file.write_text(json.dumps(summary))
    assert read_summaries(tmp_path, FIGURES).keys() == {"lorenz-es"}
    file.write_text(json.dumps(summary | {"fingerprint": "0" * 16}))
    assert not read_summaries(tmp_path, FIGURES)
    file.write_text(json.dumps({"checks": [], "reproduced": "yes"}))
    assert not read_summaries(tmp_path, FIGURES)
    # The fingerprint depends on the initial parameters.
    cheetah = COMPARISONS["halfcheetah"]
    assert planned(cheetah, "NRES", 0).start_seed == 1
    moved = dataclasses.replace(
        cheetah, runs=cheetah.runs | {"NRES": PlannedRun("nres", 1000, {"start_seed": 6})}
    )
    assert of_comparison(moved).fingerprint() != FIGURES["halfcheetah"].fingerprint()
    assert of_comparison(comparison).fingerprint() == figure.fingerprint()


def test_results_count_although_settings_were_added_later():
    def fingerprint(**added):
        figure = PaperFigure("", "It can be made.", "cpu", lambda context: None, lambda: plan)
        plan = [{"NRES": {"lr": "0.001", "period": None} | added}, (1, 2)]
        return figure.fingerprint()

    before = fingerprint()
    assert before == "75893e3bf3f7073b"
    assert fingerprint(warmup=None, clip=None, stop_after=None, auto_stop="off") == before
    others = [fingerprint(warmup=5), fingerprint(clip=1.0), fingerprint(stop_after=3)]
    assert len({before, *others}) == 4


def test_a_trajectory_counts_although_settings_were_added_later(tmp_path):
    settings = pes_settings("lorenz").to_json()
    later = {"warmup": 5, "clip": 1.0, "stop_after": 3}
    old = {name: value for name, value in settings.items() if name not in later}
    stored = {"settings": old, "seconds": 2.0, "thetas": {"300": [1.0, 2.0]}}
    file = tmp_path / "variance-lorenz-K/trajectory.json"
    file.parent.mkdir()
    file.write_text(json.dumps(stored))
    no_training = lambda path, settings: 1 / 0  # noqa: E731
    context = Context(tmp_path / "landscape", "landscape", False, None, (), (), no_training, str)
    found = pes_trajectory(context, "lorenz")
    assert {update: list(theta) for update, theta in found.thetas.items()} == {300: [1.0, 2.0]}
    assert found.seconds == 2.0
    # A trajectory with other settings is not used, so that a training run begins.
    for name, value in later.items():
        file.write_text(json.dumps(stored | {"settings": old | {name: value}}))
        with pytest.raises(ZeroDivisionError):
            pes_trajectory(context, "lorenz")


def test_ranking_of_a_comparison(tmp_path):
    settings = {"seeds": None, "quick": False, "finished": Folders(), "say": lambda text: None}
    comparison = small_comparison(level=80.0)
    result = rank(comparison, run_comparison(comparison, tmp_path, **settings))
    assert result.ratio("PES") == 4
    assert result.ratio("FullES") == 2
    assert math.isnan(result.ratio("FullES", "GPES"))
    described = result.to_json("PES")
    assert described["times_longer"] == 4
    assert described["reached"]["update"] == [20, 20]


@pytest.mark.slow
def test_reproducing_a_comparison(tmp_path, monkeypatch):
    small = ["ablation-N", "--quick", "--out", tmp_path]
    result = reproduce(*small)
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
    # The second time, nothing runs, and the figure is the same to the byte. The complete run
    # restores the lost lines.
    monkeypatch.setattr("nres.cli.train.execute", None)
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == 3 * 4
    (folder / "metrics.jsonl").write_text("")
    again = reproduce(*small, "--quiet")
    assert (again.exit_code, again.output) == (0, "")
    assert (folder / "ablation-N.svg").read_text() == drawn
    assert (folder / "metrics.jsonl").read_text().splitlines() == lines
    table = reproduce("table", "--out", tmp_path)
    assert "ablation-N" in table.output
    full = reproduce("ablation-N", "--out", tmp_path)
    assert full.exit_code == 2
    assert "--quick" in full.stderr
    assert "--out" in full.stderr


@pytest.mark.slow
def test_reproducing_another_figure(tmp_path):
    name = "lorenz-paths"
    result = reproduce(name, "--quick", "--out", tmp_path, "--quiet")
    assert (result.exit_code, result.output) == (0, "")
    summary = json.loads((tmp_path / name / "summary.json").read_text())
    assert summary["checks"]
    assert summary["reproduced"] == "too small to tell"
    assert len((tmp_path / name / "metrics.jsonl").read_text().splitlines()) == 2
    assert (tmp_path / name / f"{name}.png").exists()
    for others in ([name, "--quick"], ["table"], []):
        refused = reproduce(*others, "--seeds", 2, "--out", tmp_path)
        assert refused.exit_code == 2
        assert "--seeds" in refused.stderr
    missing = reproduce("wall-clock", "--quick", "--out", tmp_path)
    assert "lopt-es" in missing.stderr
    for others in ([name, "--only", "NRES"], ["all", "--seed", 1]):
        refused = reproduce(*others, "--quick", "--out", tmp_path)
        assert refused.exit_code == 2
        assert "--only" in refused.stderr


@pytest.mark.slow
def test_reproducing_a_run_whose_settings_are_chosen_by_trials(tmp_path, monkeypatch):
    small = ["--quick", "--out", tmp_path, "--quiet"]
    with as_users_run():
        result = reproduce("defaults-lorenz", "--only", "NRES, auto", *small)
    assert (result.exit_code, result.output) == (0, "")
    (found,) = read_runs(tmp_path / "defaults-lorenz/metrics.jsonl")
    assert found.plan == planned(COMPARISONS["defaults-lorenz"], "NRES, auto", 0, quick=True)
    opened = runs.Run.open(tmp_path / "defaults-lorenz/runs/nres-auto-0")
    assert found.settings == opened.settings
    # The steps of the trials count.
    assert found.entries[0]["total_steps"] >= opened.tuning_steps.total > 0
    table = reproduce("defaults", *small)
    assert table.exit_code == 0, table.output
    checks = json.loads((tmp_path / "defaults/summary.json").read_text())["checks"]
    assert [c["about"] for c in checks if c["ours"] != "not run yet"] == [
        "lorenz: NRES, auto, total steps",
        "lorenz: NRES, auto, sequential steps",
    ]
    # Lost lines are restored without trials.
    monkeypatch.setattr("nres_paper.auto.tune_settings", None)
    (tmp_path / "defaults-lorenz/metrics.jsonl").unlink()
    again = reproduce("defaults-lorenz", "--only", "NRES, auto", *small)
    assert again.exit_code == 0, again.output
    assert read_runs(tmp_path / "defaults-lorenz/metrics.jsonl") == [found]


def test_a_folder_is_for_results_or_for_small_versions(tmp_path):
    settings = {"seeds": 2, "quick": False, "finished": Folders(), "say": lambda text: None}
    run_comparison(
        dataclasses.replace(COMPARISONS["lorenz-es-gpu"]),
        tmp_path / "lorenz-es-gpu",
        only=["NRES"],
        **settings,
    )
    small = reproduce("lorenz-paths", "--quick", "--out", tmp_path)
    assert small.exit_code == 2
    assert str(tmp_path.name) in small.stderr.replace("\n", "")
    assert "--out" in small.stderr
    made = reproduce("wall-clock", "--out", tmp_path)
    assert "--out" in made.output
    summary = json.loads((tmp_path / "wall-clock/summary.json").read_text())
    assert summary["seeds"] == 2
    # The time counts up to the paper's 5,000 updates; the other tasks have no results.
    assert "1,250 s" in summary["checks"][0]["ours"]
    assert [check["grade"] for check in summary["checks"]] == ["fails", *["not run yet"] * 3]
    (tmp_path / "swimmer").mkdir()
    (tmp_path / "swimmer/summary.json").write_text("{")
    assert "summary.json is damaged" in reproduce("table", "--out", tmp_path).stderr


def test_all_goes_on_after_one_that_cannot_be_made(tmp_path, monkeypatch):
    def fails(context):
        raise OSError("no room")

    def works(context):
        return Result((Check("it", "works", "does", "holds"),), {}, 0.0)

    def figure(make, tier="cpu"):
        return PaperFigure("", "It can be made.", tier, make, list)

    figures = {"a": figure(fails), "b": figure(works), "c": figure(works, "gpu")}
    monkeypatch.setattr(command, "FIGURES", figures)
    result = reproduce("all", "--tier", "cpu", "--quick", "--out", tmp_path)
    assert result.exit_code == 1
    assert "a: no room" in result.stderr
    assert "failed: a." in result.stderr
    assert (tmp_path / "b/summary.json").exists()
    assert not (tmp_path / "c").exists()


def test_contents():
    result = reproduce()
    assert all(name in result.output for name in FIGURES)


def test_a_figure_may_land_before_its_results(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(RESULTS.parent / "tools"))
    import readme
    import reproduction_page

    new = PaperFigure("Figure 99", "It will be shown.", "cpu", lambda context: None, list, "Soon.")
    with_new = dict(FIGURES) | {"new-one": new}
    for module in (command, reproduction_page):
        monkeypatch.setattr(module, "FIGURES", with_new)
    for arguments in ([], ["table"]):
        shown = reproduce(*arguments, "--out", RESULTS)
        assert shown.exit_code == 0
        assert "not run yet" in line_with("new-one", shown.output)
        assert "not run yet" not in line_with("lorenz-paths", shown.output)
    assert "not run yet" in line_with("[new-one]", reproduction_page.reproduction())
    assert "not run yet" in readme.filled("<!-- reproduction -->nothing<!-- end -->")
    lines = reproduction_page.reproduction().count(") |  |  | not run yet |")  # of whole figures
    here = {name for name, figure in with_new.items() if figure.label != PES_PAPER}
    assert lines == len(here - KEPT.keys())
    assert "## pes-ridge\n" in reproduction_page.pes_figures()
    assert "pes-ridge" not in reproduction_page.figures()
    *_, section = reproduction_page.figures().partition("## new-one\n")
    assert "It will be shown." in section
    assert "not run yet" in section.lower()
    assert "nres reproduce new-one" in section
    # Without any results, everything is listed and nothing is drawn.
    assert line_with("lorenz-es", reproduce("--out", tmp_path).output).count("not run yet") == 1


def line_with(word, text):
    return next(line for line in text.splitlines() if word in line)
