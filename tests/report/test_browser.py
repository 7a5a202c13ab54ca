"""The page in a real browser, and the page that follows runs."""

from __future__ import annotations

import csv
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import report
from tests.patience import PATIENCE
from tests.report.made_runs import ROOT, make_many, make_run, make_run_of_tasks
from video import Mp4


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Debian's Chromium, headless."""
    if not (shutil.which("chromium") and shutil.which("chromedriver")):
        if os.environ.get("DRQV2_NEEDS_BROWSER"):
            pytest.fail("chromium and chromium-driver are not installed")
        pytest.skip("needs Debian's chromium and chromium-driver")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for word in (
        "headless=new no-sandbox disable-gpu disable-quic no-first-run disable-background-networking "
        "disable-component-update disable-sync window-size=1100,1600 disable-dev-shm-usage"
    ).split():
        options.add_argument(f"--{word}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    driver.set_page_load_timeout(PATIENCE)
    yield driver
    driver.quit()


def drawn(browser: Any) -> list[dict[str, Any]]:
    """Return what plotly has drawn: for each trace its name, whether it is seen, and its number of points."""
    script = """return document.querySelector('.js-plotly-plot')._fullData.map(
        t => ({name: t.name, visible: t.visible, points: (t.x || []).length}))"""
    traces: list[dict[str, Any]] = browser.execute_script(script)
    return traces


def show(browser: Any, page: Path) -> None:
    """Open a page, and wait until all of its charts are drawn."""
    browser.get(page.as_uri())
    waiting = """return [...document.querySelectorAll('.chart')].filter(
        c => !c.closest('details:not([open])') && !c.querySelector('.js-plotly-plot .scatterlayer')).length"""
    until(lambda: browser.find_elements("css selector", ".chart") and browser.execute_script(waiting) == 0)


def shown_entries(browser: Any) -> list[Any]:
    """Return the legend entries of the first chart that are shown."""
    found: list[Any] = browser.find_element("css selector", ".chart").find_elements(
        "css selector", ".legend [aria-pressed=true]"
    )
    return found


def until(condition: Any) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it has not happened"
        time.sleep(0.1)


@pytest.mark.slow
def test_the_page_works_in_a_browser(browser: Any, reference: Path, tmp_path: Path) -> None:
    """Curves are drawn, the legend and the buttons work, a video plays, and the console holds no error."""
    from selenium.webdriver.common.by import By

    for seed, hidden in ((1, 1024), (2, 1024), (1, 256), (2, 256)):
        returns = 1000 * (1 - np.exp(-np.arange(20) / (4 * seed)))
        make_run(tmp_path / f"{hidden}_{seed}", returns, seed=seed, agent={"hidden_dim": hidden})
    report.main([str(tmp_path), str(reference), "out=" + str(tmp_path / "report.html")])
    show(browser, tmp_path / "report.html")
    heads = browser.find_elements(By.CSS_SELECTOR, "section:not(#speed) h2")
    assert [head.text for head in heads] == ["All tasks", "cartpole_balance_sparse", "cheetah_run", "Configurations"]
    for name in ("all_tasks", "cartpole_balance_sparse"):
        browser.execute_script("document.getElementById(arguments[0]).remove()", name)

    def seen() -> set[str]:
        return {t["name"] for t in drawn(browser) if t["visible"] is True and "hidden" in str(t["name"])}

    assert len(browser.find_elements(By.CSS_SELECTOR, ".scatterlayer .trace path.js-line")) >= 6
    names = sorted(seen())
    assert len(names) == 1  # "as most" and agent.hidden_dim=...
    before = [t["visible"] for t in drawn(browser)]
    entry = shown_entries(browser)[-1]
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", entry)
    entry.click()
    until(lambda: [t["visible"] for t in drawn(browser)] != before)
    assert "legendonly" in [t["visible"] for t in drawn(browser)]

    assert entry.get_attribute("aria-pressed") == "false"

    buttons = {button.text: button for button in browser.find_elements(By.CSS_SELECTOR, ".choices button")}
    assert list(buttons) == ["mean", "IQM", "frames", "time", "seeds", "no seeds"]
    buttons["time"].click()
    title = "return document.querySelector('.js-plotly-plot')._fullLayout.xaxis.title.text"
    until(lambda: browser.execute_script(title) == "hours of training")
    assert {t["name"] for t in drawn(browser) if t["visible"] is not True} == {entry.text}  # still hidden
    number = len(drawn(browser))
    buttons["no seeds"].click()
    until(lambda: len(drawn(browser)) == number - 4)

    show(browser, tmp_path / "report.html")
    (video,) = browser.find_elements(By.TAG_NAME, "video")
    assert reference.name in browser.find_element(By.TAG_NAME, "figcaption").text
    browser.execute_script("arguments[0].play()", video)
    until(lambda: browser.execute_script("return arguments[0].currentTime", video) > 0.2)
    assert browser.execute_script("return arguments[0].videoWidth", video) == 32
    assert [e for e in browser.get_log("browser") if e["level"] == "SEVERE"] == []


@pytest.mark.slow
def test_fifty_long_runs(browser: Any, tmp_path: Path) -> None:
    """Fifty runs of 3M frames: a page below 20 MB, all of whose curves are drawn, speeds at 300 points each."""
    rng = np.random.default_rng(0)
    for i in range(50):
        path = make_run(tmp_path / f"run{i}", rng.uniform(0, 1000, 301), seed=i % 10, task_name=f"task_{i // 10}")
        with (path / "train.csv").open("w", newline="") as f:
            rows = ([1000 * j, 100.0, 10.0 * j] for j in range(3000))
            csv.writer(f).writerows([["frame", "fps", "total_time"], *rows])
    report.main([str(tmp_path)])
    assert (tmp_path / "report.html").stat().st_size < 20e6
    show(browser, tmp_path / "report.html")
    plots = """return [...document.querySelectorAll('section:not(#all_tasks) .chart .js-plotly-plot')].map(
        p => p._fullData.length)"""
    assert len(browser.execute_script(plots)) == 5
    assert min(browser.execute_script(plots)) >= 10
    fold = browser.find_element("css selector", "details.speed summary")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", fold)
    fold.click()
    speeds = "return document.querySelector('details.speed .js-plotly-plot')"
    until(lambda: browser.execute_script(f"{speeds} !== null"))
    assert browser.execute_script(f"{speeds}._fullData.map(t => t.x.length)") == [300] * 10
    until(lambda: browser.execute_script(f"{speeds}.querySelector('.main-svg').getBoundingClientRect().width") > 500)
    assert [e for e in browser.get_log("browser") if e["level"] == "SEVERE"] == []


RECTANGLES = """return [...document.querySelectorAll('.chart')].filter(
    c => !c.closest('details:not([open])')).map(c =>
    ['.plot', '.plot .main-svg', '.legend'].map(s => c.querySelector(s).getBoundingClientRect()).concat(
        [...c.querySelectorAll('.plot .xtitle, .plot .xtick text, .legend button')].map(e => e.getBoundingClientRect())
    ).map(r => [r.top, r.bottom, r.width]))"""


@pytest.mark.slow
@pytest.mark.parametrize("width", [1100, 420])
def test_a_legend_of_many_entries_covers_nothing(browser: Any, tmp_path: Path, width: int) -> None:
    """48 runs of 20 settings: the legend is below the plot and its axis, whatever the width of the window."""
    make_many(tmp_path)
    report.main([str(tmp_path)])
    size = browser.get_window_size()
    browser.set_window_size(width, 1600)
    try:
        show(browser, tmp_path / "report.html")
        (chart,) = browser.execute_script(RECTANGLES)
        plot, drawing, legend, *parts = chart
        texts, buttons = parts[:-27], parts[-27:]  # of the legend: published, 20 settings, 4 other methods, all, none
        assert len(texts) >= 3
        assert min(drawing[2], legend[2]) > 200
        assert max(bottom for _, bottom, _ in (plot, drawing, *texts)) <= legend[0]
        assert legend[1] - legend[0] <= 300
        assert all(top >= legend[0] for top, _, _ in buttons)
        assert browser.execute_script("return document.querySelectorAll('.plot .legend, .plot .traces').length") == 0
    finally:
        browser.set_window_size(size["width"], size["height"])


@pytest.mark.slow
def test_curves_of_other_methods_are_drawn_on_a_click(browser: Any, tmp_path: Path) -> None:
    make_run(tmp_path / "run", [1, 2, 3], every=200_000, task_name="walker_walk")
    report.main([str(tmp_path)])
    show(browser, tmp_path / "report.html")

    def visible() -> dict[str, Any]:
        return {t["name"].partition(" ")[0]: t["visible"] for t in drawn(browser)}

    assert visible()["dreamerv3"] == visible()["tdmpc2"] == "legendonly"
    entry = browser.find_element("css selector", ".legend [title^='dreamerv3']")
    assert "10 seeds" in entry.text
    entry.click()
    until(lambda: visible()["dreamerv3"] is True)
    assert visible()["tdmpc2"] == "legendonly"


@pytest.mark.slow
def test_sections_of_many_tasks_are_folded(browser: Any, tmp_path: Path) -> None:
    """A link to a task opens its section, whose chart is drawn only then."""
    names = [f"metaworld:task{i}-v3" for i in range(10)]
    make_run_of_tasks(tmp_path / "run", {name: [0, 9] for name in names}, {name: [0, 1] for name in names})
    report.main([str(tmp_path)])
    show(browser, tmp_path / "report.html")
    count = "return document.querySelectorAll('details.task .js-plotly-plot').length"
    assert browser.execute_script(count) == 0
    browser.find_element("link text", "task7-v3").click()
    until(lambda: browser.execute_script(count) == 1)
    plot = "const plot = document.querySelector('#task7-v3 .js-plotly-plot');"
    until(lambda: browser.execute_script(plot + "return plot.querySelector('.main-svg').clientWidth") > 500)
    title = plot + "return plot._fullLayout.yaxis.title.text"
    assert browser.execute_script(title) == "success rate"
    browser.find_element("css selector", "#task7-v3 [value=return]").click()
    until(lambda: browser.execute_script(title) == "evaluation return")
    assert [e for e in browser.get_log("browser") if e["level"] == "SEVERE"] == []


class Watch:
    """A process that watches a folder, anew each second.

    Args:
        folder: with runs.
    """

    def __init__(self, folder: Path) -> None:
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        command = [sys.executable, str(ROOT / "report.py"), str(folder), "--watch", "every=1", f"port={self.port}"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.told = [self.process.stdout.readline() for _ in range(2)]

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *args: object) -> None:
        self.process.terminate()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.mark.slow
def test_watch(tmp_path: Path) -> None:
    """The page is served to this machine alone, without its neighbours, and follows the runs."""
    make_run(tmp_path / "run", [1, 2])
    (tmp_path / "secret.txt").write_text("no")
    with Watch(tmp_path) as watch:
        assert "1 runs" in watch.told[0]
        assert f"http://127.0.0.1:{watch.port}" in watch.told[1]

        def get(name: str) -> str:
            with urllib.request.urlopen(f"http://127.0.0.1:{watch.port}/{name}", timeout=PATIENCE) as answer:
                return str(answer.read().decode())

        assert "cheetah_run" in get("")
        for name in ("secret.txt", "../secret.txt", "run/config.yaml"):
            with pytest.raises(urllib.error.HTTPError):
                get(name)
        make_run(tmp_path / "other", [1, 2], task_name="walker_walk")
        until(lambda: "walker_walk" in get(""))


@pytest.mark.slow
def test_a_watched_page_reloads_only_where_nothing_is_lost(browser: Any, tmp_path: Path) -> None:
    """It follows the runs while it is only looked at; once it is used it offers a reload; it outlives the watch."""
    from selenium.webdriver.common.by import By

    for seed in (1, 2):
        make_run(tmp_path / f"run{seed}", [1, 2, 3], seed=seed, lr=seed)
    frame = np.zeros((32, 32, 3), np.uint8)
    video = Mp4(tmp_path / "run1" / "eval_video", 10, frame.shape)
    for _ in range(51):
        video.write(frame)
    video.finish(tmp_path / "run1" / "eval_video" / "10.mp4")

    def marked() -> bool:
        return bool(browser.execute_script("return window.mark === true && document.readyState === 'complete'"))

    def held() -> bool:
        if not marked():
            script = "window.mark = true; window.asks = window.fetch; window.fetch = () => Promise.reject()"
            browser.execute_script(script)
            time.sleep(0.5)  # a reload that is on its way
        return marked()

    def let_go() -> None:
        browser.execute_script("window.fetch = window.asks")

    def loaded() -> bool:
        return bool(browser.execute_script("return !window.mark && document.readyState === 'complete'"))

    def offered() -> bool:
        return bool(browser.find_element(By.ID, "newer").is_displayed())

    def toggle() -> None:
        shown_entries(browser)[-1].click()
        until(lambda: "legendonly" in [t["visible"] for t in drawn(browser)])

    def zoom() -> None:
        from selenium.webdriver import ActionChains

        area = browser.find_element(By.CSS_SELECTOR, ".nsewdrag")
        ActionChains(browser).move_to_element(area).click_and_hold().move_by_offset(90, 60).release().perform()
        ranged = "return document.querySelector('.js-plotly-plot')._fullLayout.xaxis.autorange"
        until(lambda: browser.execute_script(ranged) is False)

    def play() -> None:
        (element,) = browser.find_elements(By.TAG_NAME, "video")
        browser.execute_script("arguments[0].play()", element)

    def unfold() -> None:
        browser.find_element(By.TAG_NAME, "summary").click()

    with Watch(tmp_path) as watch:
        browser.get(f"http://127.0.0.1:{watch.port}/")
        for use in (toggle, zoom, play, unfold):
            browser.execute_script("window.mark = true")
            until(loaded)  # by itself
            until(held)
            use()
            let_go()
            until(offered)
            time.sleep(2.5)  # further pages are written meanwhile
            assert marked(), use.__name__
            browser.find_element(By.ID, "newer").click()
            until(loaded)
            assert not offered()
        until(held)
    let_go()
    time.sleep(2.5)
    assert marked()
    assert browser.title == "DrQ-v2 runs"
    browser.get_log("browser")  # of requests to the watch that is no more
