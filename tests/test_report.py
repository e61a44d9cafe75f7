"""Tests of the contents of the report."""

import hashlib
import re
from importlib import resources

import numpy as np
import pytest

from nres import report, runs
from nres.history import needs_log
from report_pages import HOSTILE, NOTES, invoke, write_page, write_run, written


def test_a_report_is_one_safe_file(tmp_path):
    text = write_page(tmp_path).read_text()
    assert not re.search(r"(src|href)\s*=\s*[\"']?(https?:)?//", text)
    assert "http://" not in text.replace("http-equiv", "")
    assert HOSTILE not in text
    assert NOTES not in text
    assert text.count("</script>") == 3  # the data, the chart library and the page's own script
    assert "Copyright (c) 2022 Leon Sorokin" in text
    assert "data:image/gif;base64,R0lGODlh" in text


def test_the_chart_library_has_the_recorded_checksums():
    folder = resources.files("nres.report").joinpath("uplot")
    recorded = re.findall(
        r"^([0-9a-f]{64})  (\S+)$", folder.joinpath("SOURCE.txt").read_text(), re.M
    )
    files = {file.name for file in folder.iterdir()} - {"SOURCE.txt"}
    assert {name for _, name in recorded} == files
    for sha256, name in recorded:
        assert hashlib.sha256(folder.joinpath(name).read_bytes()).hexdigest() == sha256


def test_runs_are_found_and_named(tmp_path):
    one, two = write_run(tmp_path / "a/run"), write_run(tmp_path / "b/run")
    found = report.find_runs([one, tmp_path / "b"])
    assert [run.path for run in found] == [one, two]
    report.write_report(found, tmp_path / "report.html")
    assert '"a/run"' in (tmp_path / "report.html").read_text()
    assert "nowhere" in invoke("report", tmp_path / "nowhere").stderr
    assert "report.pdf" in invoke("report", one, "-o", "report.pdf").stderr
    (one / "metrics.jsonl").write_text("")
    assert str(one.name) in invoke("report", one).stderr
    with pytest.raises(runs.RunError, match="runs"):
        report.write_report([], tmp_path / "report.html")


def test_the_title_comes_from_the_runs(tmp_path):
    folder = tmp_path / "first"
    write_run(folder / "fulles-0", "fulles")
    write_run(folder / "nres-0")
    write_run(folder / "nres-1", seed=1)
    data = written(folder)
    assert data["title"] == "lorenz: NRES, FullES"
    assert data["subtitle"] == "3 runs"
    (folder / "comparison.json").write_text("{}")
    assert written(folder)["subtitle"] == "3 runs of the comparison first"
    assert written(folder, title="Mine")["title"] == "Mine"
    assert written(folder / "nres-1")["subtitle"] == "Run nres-1 of the comparison first"
    result = invoke("report", folder / "nres-0", "-o", tmp_path / "report.html")
    assert result.exit_code == 0
    assert "lorenz: NRES" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("values", "log"),
    [([1, 10], True), ([1, 9], False), ([0, 100], False), ([-1, 100], False), ([], False)],
)
def test_an_axis_is_logarithmic_from_a_factor_of_ten(values, log):
    assert needs_log([*values, np.nan, np.inf]) is log


def test_axes_are_logarithmic_where_the_data_need_it(tmp_path):
    write_run(tmp_path / "nres-0")
    write_run(tmp_path / "fulles-0", "fulles")
    log = written(tmp_path)["log"]
    assert log["y"] == {
        "eval/test_loss": True,
        "eval/ln_r": False,
        "loss": True,
        "grad_norm": False,
    }
    assert log["x"] == {
        "update": False,
        "total_steps": False,
        "sequential_steps": True,  # 20 times as many for FullES
        "seconds": False,
    }


def test_times_to_the_level(tmp_path):
    write_run(tmp_path / "nres-0")
    write_run(tmp_path / "nres-1", seed=1, loss=lambda u: 2000 / (1 + u))
    write_run(tmp_path / "fulles-0", "fulles", loss=lambda u: 4000 / (1 + u))
    write_run(tmp_path / "tes-0", "tes", loss=lambda u: None if u else 1000)
    (table,) = written(tmp_path)["levels"]
    # The first half of the updates ends at 22.5, with the evaluation at update 20.
    assert table["level"] == pytest.approx(2000 / 21)
    assert "a test loss of 95.24, the lowest that both NRES runs reached" in table["sentence"]
    nres, fulles, tes = table["rows"]
    assert (nres["method"], nres["reached"], nres["runs"]) == ("NRES", 2, 2)
    # The lower of two medians: 1000 / 11 is below the level, at update 10.
    assert nres["times"] == pytest.approx(
        {"update": 10, "total_steps": 4000, "sequential_steps": 1000, "seconds": 10 / 7}
    )
    assert fulles["times"]["sequential_steps"] == 90_000
    assert fulles["ratios"]["sequential_steps"] == 90
    assert tes["reached"] == 0
    assert set(tes["times"].values()) == set(tes["ratios"].values()) == {None}
    # A level that was chosen for the comparison is kept.
    (tmp_path / "comparison.json").write_text('{"level": 60.0}')
    (table,) = written(tmp_path)["levels"]
    assert table["level"] == 60
    assert "comparison.json" in table["sentence"]


def test_levels_of_different_settings_and_systems(tmp_path):
    write_run(tmp_path / "a", window=100)
    write_run(tmp_path / "b", window=50)
    write_run(tmp_path / "c", options={"horizon": 500}, loss=lambda u: None)
    first, second = written(tmp_path)["levels"]
    assert [row["method"] for row in first["rows"]] == ["NRES (window 100)", "NRES (window 50)"]
    assert second["level"] is None
    assert second["rows"] == []
    assert "no level" in second["sentence"]
