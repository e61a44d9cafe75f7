"""The report: complete in one file, safe, and alive in a real browser."""

import hashlib
import json
import os
import re
import shutil
from importlib import resources

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from nres import report, runs
from nres.cli import app

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
HOSTILE = "<img src=x onerror=window.hacked=1>"
NOTES = "</script><script>window.hacked = 1</script> & <b>bold</b>"


def invoke(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)))


def write_run(folder, method="nres", seed=0, points=50, scale=1.0):
    settings = runs.resolve("lorenz", method, updates=points, seed=seed)
    folder.mkdir(parents=True)
    facts = {"device": {"backend": "cpu", "kind": "cpu"}, "versions": {"jax": "1"}}
    about = {"settings": settings.to_json(), "created": "2026-01-01", "git": None}
    (folder / "config.json").write_text(json.dumps(about | facts))
    rng = np.random.default_rng(seed)
    with (folder / "metrics.jsonl").open("w") as file:
        for u in range(points):
            row = {"update": u, "total_steps": 400 * u, "sequential_steps": 100 * u}
            row |= {"seconds": u / 7, "loss": 100 / (1 + u) + rng.random(), "grad_norm": None}
            if u % 5 == 0:
                row |= {"eval/test_loss": scale * 1000 / (1 + u), "eval/ln_r": 3.0}
            file.write(json.dumps(row | {"nonfinite": 0}) + "\n")
    return folder


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    write_run(folder / "nres-0")
    write_run(folder / "nres-1", seed=1, scale=3)
    write_run(folder / HOSTILE, "tbptt", scale=2)
    (folder / HOSTILE / "notes.txt").write_text(NOTES)
    # One pixel.
    gif = bytes.fromhex("47494638396101000100800000ffffff0000002c00000000010001000002024401003b")
    (folder / "nres-0/policy.gif").write_bytes(gif)
    result = invoke("report", folder, "-o", folder / "report.html", "--title", HOSTILE)
    assert result.exit_code == 0, result.output
    return folder / "report.html"


def test_a_report_is_one_safe_file(page):
    text = page.read_text()
    assert not re.search(r"(src|href)\s*=\s*[\"']?(https?:)?//", text)
    assert "http://" not in text.replace("http-equiv", "")
    assert HOSTILE not in text
    assert NOTES not in text
    assert text.count("</script>") == 3  # the data, the chart library and our own
    assert "Copyright (c) 2022 Leon Sorokin" in text
    assert "data:image/gif;base64,R0lGODlh" in text


def test_the_chart_library_is_the_one_it_is_said_to_be():
    folder = resources.files("nres.report").joinpath("uplot")
    recorded = re.findall(
        r"^([0-9a-f]{64})  (\S+)$", folder.joinpath("SOURCE.txt").read_text(), re.M
    )
    files = {file.name for file in folder.iterdir()} - {"SOURCE.txt"}
    assert {name for _, name in recorded} == files
    for sha256, name in recorded:
        assert hashlib.sha256(folder.joinpath(name).read_bytes()).hexdigest() == sha256


def test_which_runs_a_report_is_of(tmp_path):
    one, two = write_run(tmp_path / "a/run"), write_run(tmp_path / "b/run")
    found = report.find_runs([one, tmp_path / "b"])
    assert [run.path for run in found] == [one, two]
    report.write_report(found, tmp_path / "report.html")
    assert '"a/run"' in (tmp_path / "report.html").read_text()
    assert "holds no run" in invoke("report", tmp_path / "nowhere").stderr
    assert "must end in .html" in invoke("report", one, "-o", "report.pdf").stderr
    (one / "metrics.jsonl").write_text("")
    assert "has no metrics yet" in invoke("report", one).stderr


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None and "CI" not in os.environ:
        pytest.skip("there is no Chromium on this machine")
    from playwright.sync_api import sync_playwright

    quiet = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=quiet)
        yield started
        started.close()


@pytest.fixture
def tab(browser):
    opened = browser.new_page(viewport={"width": 1000, "height": 900})
    opened.messages = []
    opened.on("console", lambda message: opened.messages.append(message.text))
    opened.on("pageerror", lambda error: opened.messages.append(str(error)))
    yield opened
    assert opened.messages == []
    opened.close()


def settled(tab):
    """The picture, when all that was asked for is drawn."""
    tab.evaluate("() => new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)))")
    return tab.evaluate("document.querySelector('#chart canvas').toDataURL()")


FINGER = """() => {
    const over = document.querySelector('#chart .u-over');
    const { left, top } = over.getBoundingClientRect();
    const path = [['move', 200], ['down', 200], ['move', 300], ['move', 400], ['up', 400]];
    for (const [kind, at] of path) {
        over.dispatchEvent(new PointerEvent(`pointer${kind}`, {
            pointerType: 'touch', clientX: left + at, clientY: top + 100, bubbles: true,
        }));
    }
}"""


def drag(tab, start, by):
    tab.mouse.move(*start)
    tab.mouse.down()
    tab.mouse.move(start[0] + by[0], start[1] + by[1], steps=2)
    tab.mouse.up()


@pytest.mark.slow
def test_values_and_pictures_in_a_browser(page, tab, tmp_path):
    tab.goto(page.as_uri())
    box = tab.locator("#chart .u-over").bounding_box()
    # Evaluations are 5 updates apart, the last is that of update 45.
    across, down = box["x"] + box["width"] * 20 / 45, box["y"] + box["height"] / 2
    tab.mouse.move(across, down)
    assert tab.locator("#tip > div").all_inner_texts() == [
        "20 updates",
        "47.62  nres-0",
        f"95.24  {HOSTILE}",
        "142.9  nres-1",
    ]
    for line in (".u-cursor-x", ".u-cursor-y"):
        assert tab.locator(f"#chart {line}").is_visible()
    tab.select_option("#seeds", "band")
    tab.mouse.move(across, down + 1)
    assert set(tab.locator("#tip > div").all_inner_texts()[1:]) == {
        "95.24  NRES, mean of 2 runs (47.62 to 142.9)",
        f"95.24  {HOSTILE}",
    }
    with tab.expect_download() as download:
        tab.click("#picture")
    assert download.value.suggested_filename == "eval-test_loss.png"
    download.value.save_as(tmp_path / "chart.png")
    with Image.open(tmp_path / "chart.png") as picture:
        chart = tab.locator("#chart").bounding_box()
        assert picture.width == chart["width"]
        assert picture.height > chart["height"]
        assert (200, 16, 46) in {colour for _, colour in picture.convert("RGB").getcolors(1 << 20)}
    # An empty chart is no error.
    for name in ("NRES", "TBPTT"):
        tab.get_by_role("button", name=name, exact=True).click()
    assert tab.get_attribute("#chart", "aria-label").endswith("0 of 3 runs")
    tab.mouse.move(across, down)
    assert tab.evaluate("window.hacked") is None


@pytest.mark.slow
def test_a_report_in_a_browser(page, tab):
    tab.goto(page.as_uri())
    first = settled(tab)
    described = lambda: tab.get_attribute("#chart", "aria-label")  # noqa: E731
    assert described() == "test loss against updates, 3 of 3 runs"
    assert tab.inner_text("#title") == HOSTILE
    assert tab.inner_text("#notes dd") == NOTES
    assert tab.evaluate("window.hacked") is None
    assert tab.locator("#pictures img").count() == 1
    # The axis.
    pictures = {first}
    for axis in ("seconds", "total_steps", "sequential_steps"):
        tab.select_option("#axis", axis)
        pictures.add(settled(tab))
    assert len(pictures) == 4
    assert described() == "test loss against sequential unroll steps, 3 of 3 runs"
    tab.select_option("#axis", "update")
    assert settled(tab) == first
    # What is measured, how it is drawn, and a range of it.
    for act in (
        lambda: tab.select_option("#measure", "loss"),
        lambda: tab.check("#log-x"),
        lambda: tab.uncheck("#log-y"),
        lambda: tab.select_option("#smooth", "25"),
        lambda: tab.select_option("#seeds", "band"),
        lambda: tab.click("#theme"),
    ):
        before = settled(tab)
        act()
        assert settled(tab) != before
    # A range sideways, and a box; the button and a double click show all again.
    before = settled(tab)
    box = tab.locator("#chart").bounding_box()
    for down, reset in (
        (0, lambda: tab.click("#reset")),
        (150, lambda: tab.mouse.dblclick(box["x"] + 400, box["y"] + 100)),
    ):
        drag(tab, (box["x"] + 300, box["y"] + 100), (200, down))
        assert settled(tab) != before
        assert tab.is_enabled("#reset")
        assert tab.is_visible("#tip")
        reset()
        tab.mouse.move(0, 0)
        assert settled(tab) == before
        assert tab.is_disabled("#reset")
        assert tab.is_hidden("#tip")
    tab.evaluate(FINGER)
    assert settled(tab) != before
    tab.click("#reset")
    # Methods and runs come and go.
    method = tab.get_by_role("button", name="NRES", exact=True)
    assert method.get_attribute("aria-pressed") == "true"
    method.click()
    settled(tab)
    assert described().endswith("1 of 3 runs")
    assert method.get_attribute("aria-pressed") == "false"
    tab.get_by_role("button", name="nres-1", exact=True).click()
    settled(tab)
    assert described().endswith("2 of 3 runs")


@pytest.mark.slow
def test_tables_in_a_browser(page, tab):
    tab.goto(page.as_uri())
    cells = lambda: tab.locator("#runs tbody td:last-child").all_inner_texts()  # noqa: E731
    best = tab.locator("#runs th button", has_text="best")
    best.click()
    assert cells() == ["21.74", "43.48", "65.22"]
    best.click()
    assert cells() == ["65.22", "43.48", "21.74"]
    assert tab.get_attribute("#runs th:last-child", "aria-sort") == "descending"
    differing = tab.locator("#settings table.differs thead th").all_inner_texts()
    assert differing[0] == "run"
    assert {"method", "seed"} <= set(differing)
    common = tab.locator("#settings table.same tr").all_inner_texts()
    assert "updates\t50" in common
    assert not {"updates", "system"} & set(differing)
    # On a phone nothing but the tables is wider than the screen; printed, it is light.
    tab.set_viewport_size({"width": 380, "height": 800})
    assert tab.evaluate("document.documentElement.scrollWidth") <= 380
    tab.emulate_media(color_scheme="dark")
    tab.wait_for_selector("html[data-theme=dark]")
    tab.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert tab.get_attribute("html", "data-theme") == "light"


@pytest.mark.slow
def test_many_runs_in_a_browser(tmp_path, tab):
    first = write_run(tmp_path / "0", points=10_000)
    for number in range(1, 20):
        shutil.copytree(first, tmp_path / str(number))
    report.write_report(report.find_runs([tmp_path]), tmp_path / "report.html")
    tab.goto((tmp_path / "report.html").as_uri())
    tab.select_option("#measure", "loss")
    settled(tab)
    seconds = tab.evaluate(
        """async () => {
            const axis = document.getElementById('axis'), taken = [];
            for (const name of ['seconds', 'total_steps', 'sequential_steps', 'update']) {
                const begun = performance.now();
                axis.value = name;
                axis.dispatchEvent(new Event('change'));
                await new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)));
                taken.push((performance.now() - begun) / 1000);
            }
            return taken;
        }"""
    )
    # A quarter of a second is noticed; this leaves room for a busy machine.
    assert min(seconds) < 1
