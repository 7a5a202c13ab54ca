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
from tests.report.made_runs import ROOT, make_run
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
    charts = "return ['.chart', '.chart .js-plotly-plot .legend'].map(s => document.querySelectorAll(s).length)"
    until(lambda: (found := browser.execute_script(charts))[0] > 0 and found[0] == found[1])


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
    assert [head.text for head in heads] == ["cartpole_balance_sparse", "cheetah_run"]
    browser.execute_script("document.querySelector('.js-plotly-plot').closest('section').remove()")  # the first

    def seen() -> set[str]:
        return {t["name"] for t in drawn(browser) if t["visible"] is True and "hidden" in str(t["name"])}

    assert len(browser.find_elements(By.CSS_SELECTOR, ".scatterlayer .trace path.js-line")) >= 6
    names = sorted(seen())
    assert len(names) == 1  # "as most" and agent.hidden_dim=...
    before = [t["visible"] for t in drawn(browser)]
    entry = browser.find_elements(By.CSS_SELECTOR, ".chart .legendtoggle")[-1]
    browser.execute_script("arguments[0].scrollIntoView()", entry)
    entry.click()
    until(lambda: [t["visible"] for t in drawn(browser)] != before)
    assert "legendonly" in [t["visible"] for t in drawn(browser)]

    buttons = browser.find_elements(By.CSS_SELECTOR, ".updatemenu-button")
    assert [b.text for b in buttons] == ["mean, frames", "mean, time", "IQM, frames", "IQM, time"]
    buttons[1].click()
    title = "return document.querySelector('.js-plotly-plot')._fullLayout.xaxis.title.text"
    until(lambda: browser.execute_script(title) == "hours of training")

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
    plots = "return [...document.querySelectorAll('.chart .js-plotly-plot')].map(p => p._fullData.length)"
    until(lambda: len(browser.execute_script(plots)) == 5)
    assert min(browser.execute_script(plots)) >= 10
    browser.find_element("css selector", "details.speed summary").click()
    speeds = "return document.querySelector('details.speed .js-plotly-plot')"
    assert browser.execute_script(f"{speeds}._fullData.map(t => t.x.length)") == [300] * 10
    until(lambda: browser.execute_script(f"{speeds}.querySelector('.main-svg').getBoundingClientRect().width") > 500)
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
        browser.find_elements(By.CSS_SELECTOR, ".chart .legendtoggle")[-1].click()
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
