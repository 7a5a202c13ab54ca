"""The page that follows runs, served and in a real browser."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.patience import PATIENCE
from tests.report.browsing import drawn, shown_entries, until
from tests.report.made_runs import ROOT, make_run
from video import Mp4


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
        assert "1 run:" in watch.told[0]
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
