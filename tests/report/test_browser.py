"""The page in a real browser."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import report
from tests.report.browsing import drawn, show, shown_entries, until
from tests.report.made_runs import make_many, make_run, make_run_of_tasks


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
    """Fifty runs of 3M frames: a page below 20 MB, all of whose curves are drawn."""
    rng = np.random.default_rng(0)
    for i in range(50):
        path = make_run(tmp_path / f"run{i}", rng.uniform(0, 1000, 301), seed=i % 10, task_name=f"task_{i // 10}")
        with (path / "train.csv").open("w", newline="") as f:
            rows = ([1000 * j, 100.0, 10.0 * j] for j in range(3000))
            csv.writer(f).writerows([["frame", "fps", "total_time"], *rows])
    report.main([str(tmp_path)])
    assert (tmp_path / "report.html").stat().st_size < 20e6
    show(browser, tmp_path / "report.html")
    plots = """return [...document.querySelectorAll('section:not(#all_tasks, #speed) .chart .js-plotly-plot')].map(
        p => p._fullData.length)"""
    assert len(browser.execute_script(plots)) == 5
    assert min(browser.execute_script(plots)) >= 10
    assert [e for e in browser.get_log("browser") if e["level"] == "SEVERE"] == []


RECTANGLES = """return [...document.querySelectorAll('section:not(#speed) .chart')].filter(
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
        texts, buttons = parts[:-26], parts[-26:]  # of the legend: published, 20 settings, 3 other methods, all, none
        assert len(texts) >= 3
        assert min(drawing[2], legend[2]) > 200
        assert max(bottom for _, bottom, _ in (plot, drawing, *texts)) <= legend[0]
        assert legend[1] - legend[0] <= 300
        assert all(top >= legend[0] for top, _, _ in buttons)
        assert browser.execute_script("return document.querySelectorAll('.plot .legend, .plot .traces').length") == 0
    finally:
        browser.set_window_size(size["width"], size["height"])


LOOK = """const style = getComputedStyle(document.body);
    const [left, other] = [...document.querySelectorAll('.panel')].map(panel => panel.offsetLeft);
    return {width: document.documentElement.scrollWidth, column: left === other,
        back: style.backgroundColor, ink: style.color, plot: getComputedStyle(document.querySelector('.plot')).filter,
        tools: [...document.querySelectorAll('.modebar')].filter(bar => !bar.matches('.modebar--hover')).length}"""
WHITE, DARK = "rgb(255, 255, 255)", "rgb(18, 22, 28)"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("width", "scheme", "back"), [(1400, "light", WHITE), (400, "light", WHITE), (400, "dark", DARK)]
)
def test_narrow_and_dark_pages(browser: Any, tmp_path: Path, width: int, scheme: str, back: str) -> None:
    """At 400 pixels nothing is wider than the page, panels of tasks are one column; dark pages have dark charts."""
    for i, task in enumerate(("walker_walk", "cheetah_run", "a_task_with_a_long_name" * 4)):
        make_run(tmp_path / task, [0, i, 800], task_name=task)
    report.main([str(tmp_path)])
    metrics = {"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    try:
        show(browser, tmp_path / "report.html")
        found = browser.execute_script(LOOK)
        assert found["width"] <= width
        assert found["column"] == (width == 400)
        assert found["back"] == back
        assert (found["plot"] == "none") == (scheme == "light")
        assert found["tools"] == 0
        shapes = "return [...document.querySelectorAll('.chart .js-plotly-plot')].map(p => p._fullData[0].line.shape)"
        assert browser.execute_script(shapes)[:2] == ["linear", "hv"]  # scores over frames, their profile
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


@pytest.mark.slow
def test_curves_of_other_methods_are_drawn_on_a_click(browser: Any, tmp_path: Path) -> None:
    make_run(tmp_path / "run", [1, 2, 3], every=200_000, task_name="walker_walk")
    report.main([str(tmp_path)])
    show(browser, tmp_path / "report.html")

    def visible() -> dict[str, Any]:
        return {t["name"].partition(",")[0]: t["visible"] for t in drawn(browser)}

    assert visible()["DreamerV3"] == visible()["TD-MPC2"] == "legendonly"
    entry = browser.find_element("css selector", ".legend [title^='DreamerV3']")
    assert "10 seeds" in entry.get_attribute("title")
    entry.click()
    until(lambda: visible()["DreamerV3"] is True)
    assert visible()["TD-MPC2"] == "legendonly"


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
