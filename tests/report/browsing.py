"""What tests do with a page in a browser."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tests.patience import PATIENCE


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
