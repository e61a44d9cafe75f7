"""Tests of the report in a real browser."""

import os
import shutil

import pytest
from PIL import Image

from nres import report
from report_pages import HOSTILE, NOTES, write_page, write_run, written

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return write_page(tmp_path_factory.mktemp("report"))


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
    """Wait until everything is drawn, and return the picture."""
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
    # There is an evaluation every 5 updates; the last is at update 45.
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
    # A chart without curves is not an error.
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
    # The horizontal axis.
    pictures = {first}
    for axis in ("seconds", "total_steps", "sequential_steps"):
        tab.select_option("#axis", axis)
        pictures.add(settled(tab))
    assert len(pictures) == 4
    assert described() == "test loss against sequential unroll steps, 3 of 3 runs"
    tab.select_option("#axis", "update")
    assert settled(tab) == first
    # Each control changes the picture.
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
    # Zoom into a range, then into a box; zoom out with the button, then with a double click.
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
    # Methods and runs can be hidden and shown.
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
    cells = lambda: tab.locator("#runs tbody td:nth-child(3)").all_inner_texts()  # noqa: E731
    best = tab.locator("#runs th button", has_text="best test loss")
    best.click()
    assert cells() == ["21.74", "43.48", "65.22"]
    best.click()
    assert cells() == ["65.22", "43.48", "21.74"]
    assert tab.get_attribute("#runs th:nth-child(3)", "aria-sort") == "descending"
    assert tab.locator("#runs td.best").all_inner_texts() == ["21.74"]
    differing = tab.locator("#settings table.differs thead th").all_inner_texts()
    assert differing[0] == "run"
    assert {"method", "seed"} <= set(differing)
    common = tab.locator("#settings table.same tr").all_inner_texts()
    assert "updates\t50" in common
    assert not {"updates", "system"} & set(differing)
    # On a phone only the tables are wider than the screen. On paper the page is light.
    tab.set_viewport_size({"width": 380, "height": 800})
    assert tab.evaluate("document.documentElement.scrollWidth") <= 380
    tab.emulate_media(color_scheme="dark")
    tab.wait_for_selector("html[data-theme=dark]")
    tab.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert tab.get_attribute("html", "data-theme") == "light"


@pytest.mark.slow
def test_results_are_visible_without_scrolling(page, tab):
    """The best value is on the screen at 1280 pixels; the names stay there in a wider table."""
    for width in (1280, 400):
        tab.set_viewport_size({"width": width, "height": 900})
        tab.goto(page.as_uri())
        for cell in ("th:nth-child(3)", "td.best"):
            box = tab.locator(f"#runs {cell}").bounding_box()
            assert 0 <= box["x"] < box["x"] + box["width"] <= width
    name = tab.locator("#runs tbody td:first-child").first
    before = name.bounding_box()["x"]
    scrolled = "t => { t.parentElement.scrollLeft = 300; return t.parentElement.scrollLeft; }"
    assert tab.locator("#runs").evaluate(scrolled) == 300
    assert name.bounding_box()["x"] == before


@pytest.mark.slow
def test_levels_and_scales_in_a_browser(tmp_path, tab):
    write_run(tmp_path / "nres-0")
    write_run(tmp_path / "fulles-0", "fulles", loss=lambda u: 500 / (1 + u))
    write_run(tmp_path / "tes-0", "tes", loss=lambda u: 900)
    written(tmp_path)
    tab.goto((tmp_path / "report.html").as_uri())
    assert tab.inner_text("#title") == tab.title() == "lorenz: NRES, FullES, TES"
    assert "a test loss of 47.62" in tab.inner_text("#levels .hint")
    rows = "#levels tbody tr"
    assert tab.locator(rows).all_inner_texts() == [
        "NRES\t8000 (1.00×)\t2000 (1.00×)\t20 (1.00×)\t2.857 (1.00×)\t1 of 1",
        "FullES\t4000 (0.50×)\t20000 (10.00×)\t10 (0.50×)\t1.429 (0.50×)\t1 of 1",
        "TES\tnot reached\tnot reached\tnot reached\tnot reached\t0 of 1",
    ]
    tab.click("#levels th:nth-child(2) button")
    first = tab.locator(f"{rows} td:first-child").all_inner_texts()
    assert first == ["FullES", "NRES", "TES"]
    # Every measure and axis has its own scale, which a check box overrules.
    assert (tab.is_checked("#log-x"), tab.is_checked("#log-y")) == (False, True)
    tab.select_option("#axis", "sequential_steps")
    tab.select_option("#measure", "eval/ln_r")
    assert (tab.is_checked("#log-x"), tab.is_checked("#log-y")) == (True, False)
    tab.uncheck("#log-x")
    tab.select_option("#axis", "update")
    tab.select_option("#axis", "sequential_steps")
    assert not tab.is_checked("#log-x")


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
    # A quarter of a second is noticeable; the limit leaves room for a busy machine.
    assert min(seconds) < 1
