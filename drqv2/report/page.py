"""The report: one self-contained HTML page."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import numpy as np

from drqv2.config.formatting import show
from drqv2.errors import UserError
from drqv2.evaluation.statistics import interval, iqm, mean
from drqv2.report import figures, groups, runs
from drqv2.report.groups import Group
from drqv2.report.runs import Run, is_plausible, utf8_safe
from drqv2.system.files import write_atomically

_FRAMES = (100_000, 500_000, 1_000_000)
_TEMPLATE = Path(__file__).with_name("page.html")
_T = TypeVar("_T")


def page(
    found: Sequence[Run],
    published: dict[str, dict[str, np.ndarray]],
    videos: str,
    folder: Path = Path(),
    unreadable: Sequence[str] = (),
    history: Mapping[str, Sequence[tuple[str, float]]] | None = None,
    refresh: int | None = None,
) -> str:
    """Return the page as HTML.

    Args:
        found: the runs.
        published: published curves by task.
        videos: "embed" the newest video of each run, "link" to it, or "none".
        folder: folder of the page; links are relative to it.
        unreadable: what is omitted, and why.
        history: benchmark ratios over time, by name.
        refresh: interval in seconds at which a browser checks for a newer page.
    """
    from jinja2 import Environment, select_autoescape
    from plotly.offline import get_plotlyjs

    env = Environment(autoescape=select_autoescape(default=True), trim_blocks=True, lstrip_blocks=True)
    template = env.from_string(_TEMPLATE.read_text("utf-8"))
    tasks: dict[str, list[Group]] = {}
    for group in groups.group(found):
        tasks.setdefault(group.task, []).append(group)
    return template.render(
        made=datetime.now().astimezone().isoformat(" ", "minutes"),
        plotly=get_plotlyjs(),
        number=len(found),
        refresh=refresh,
        frames=_FRAMES,
        unreadable=unreadable,
        tasks=[_task(name, members, published.get(name), videos, folder) for name, members in tasks.items()],
        history=_history(history) if history else None,
    )


def _task(
    name: str, members: Sequence[Group], published: dict[str, np.ndarray] | None, videos: str, folder: Path
) -> dict[str, Any]:
    rows = [_row(group) for group in members]
    if published is not None:
        means = dict(zip(published["frame"].tolist(), published["mean"].tolist(), strict=True))
        cells = [f"{means[frame]:.0f}" if frame in means else "" for frame in _FRAMES]
        seeds = f"{int(published['n_seeds'].max())}"
        rows.append({"label": "DrQ-v2, published (mean)", "seeds": seeds, "cells": cells, "best": "", "newest": ""})
    every = [run for group in members for run in group.runs]
    faults: list[str] = []
    chart = _try_draw(lambda: figures.interactive_figure(members, published), "chart", faults)
    image = _try_draw(lambda: figures.static_figure(members, published), "image for browsers without scripts", faults)
    shown = [video for run in every for video in _videos(run, videos, folder)]  # first: it adds to the runs' faults
    return {
        "name": name,
        "chart": chart or "",
        "image": base64.b64encode(image or b"").decode(),
        "rows": rows,
        "warnings": [("all runs", message) for message in faults]
        + [(g.label, message) for g in members for message in groups.warnings(g, published)],
        "videos": shown,
        "runs": [_run(run) for run in every],
        "configs": _configs(every),
    }


def _try_draw(draw: Callable[[], _T], what: str, faults: list[str]) -> _T | None:
    """Return `draw()`. If the plotting library rejects the values, add a fault and return None."""
    try:
        return draw()
    except (ValueError, TypeError, ArithmeticError, RuntimeError) as e:
        faults.append(f"the {what} is omitted ({type(e).__name__}: {' '.join(str(e).split())[:100]})")
        return None


def _row(group: Group) -> dict[str, Any]:
    newest = np.array([run.returns[-1] for run in group.runs if len(run.frames)])
    best = [run.returns.max() for run in group.runs if len(run.frames)]
    cells = []
    for frame in _FRAMES:
        values = groups.returns_at(group.runs, frame)
        cells.append(
            _summary(values) + (f" ({len(values)} of {len(group.runs)})" if 0 < len(values) < len(group.runs) else "")
        )
    return {
        "label": group.label,
        "seeds": str(len(group.runs)),
        "cells": cells,
        "newest": _summary(newest),
        "best": f"{max(best):.0f}" if best else "",
    }


def _summary(values: np.ndarray) -> str:
    if not len(values):
        return ""
    if len(values) == 1:
        return f"{values[0]:.0f}"
    low, high = interval(values, mean)
    return f"{mean(values):.0f} [{low:.0f}, {high:.0f}], IQM {iqm(values):.0f}"


def _videos(run: Run, how: str, folder: Path) -> list[dict[str, str]]:
    if how == "none" or not run.videos:
        return []
    path = run.videos[-1]
    if how == "embed":
        try:
            source = "data:video/mp4;base64," + base64.b64encode(path.read_bytes()).decode()
        except OSError as e:  # just deleted, or not a file
            run.faults.append(f"{path.name} is omitted ({e.strerror})")
            return []
    else:
        source = quote(os.fsencode(os.path.relpath(path.resolve(), folder.resolve())))
    return [{"source": source, "caption": f"{run.path.name}: seed {run.seed}, frame {path.stem}"}]


def _run(run: Run) -> dict[str, Any]:
    start = run.starts[-1] if run.starts else {}
    return {
        "path": str(run.path),
        "seed": run.seed,
        "state": "finished" if run.finished else "running or stopped",
        "frame": f"{int(run.frames[-1]):,}" if len(run.frames) else "",
        "newest": f"{run.returns[-1]:.1f}" if len(run.frames) else "",
        "hours": f"{run.hours[-1]:.2f}" if len(run.frames) else "",
        "fps": f"{run.fps:.0f}" if np.isfinite(run.fps) else "",
        "device": start.get("device", ""),
        "commit": str(start.get("commit") or "")[:9] + (" (changed)" if start.get("dirty") else ""),
    }


def _configs(every: Sequence[Run]) -> dict[str, Any]:
    rows = []
    for name in sorted({name for run in every for name in run.config}):
        values = [show(run.config.get(name)) for run in every]
        rows.append({"name": name, "values": values, "differs": len(set(values)) > 1})
    return {"names": [run.path.name for run in every], "rows": rows}


def _read_history(path: Path, faults: list[str]) -> dict[str, list[tuple[str, float]]]:
    """Return (time, ratio) pairs by benchmark. Unreadable lines are skipped and added to `faults`."""
    series: dict[str, list[tuple[str, float]]] = {}
    bad = 0
    try:
        lines = path.read_text("utf-8", errors="replace").splitlines()
    except FileNotFoundError:  # no benchmark has been run
        return {}
    except OSError as e:
        faults.append(f"{path}: cannot be read ({e.strerror})")
        return {}
    for line in lines:
        try:
            entry = json.loads(line)
            ratios = {utf8_safe(str(name)): float(value) for name, value in entry["ratios"].items()}
            when = utf8_safe(str(entry.get("time", "")))
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            bad += 1  # half a line, or another format
            continue
        bad += not all(map(is_plausible, ratios.values()))
        for name, value in ratios.items():
            if is_plausible(value):
                series.setdefault(name, []).append((when, value))
    if bad:
        faults.append(f"{path}: {bad} damaged lines")
    return series


def _history(series: Mapping[str, Sequence[tuple[str, float]]]) -> str:
    """Return a chart of the benchmark ratios as an HTML fragment."""
    import plotly.graph_objects as go

    figure = go.Figure()
    for name, points in series.items():
        figure.add_scatter(x=[x for x, _ in points], y=[y for _, y in points], mode="lines+markers", name=name)
    yaxis = {"title": {"text": "times the baseline"}, "rangemode": "tozero"}
    figure.update_layout(template="plotly_white", height=360, yaxis=yaxis)
    return str(figure.to_html(full_html=False, include_plotlyjs=False, config={"displaylogo": False}))


def write(
    roots: list[Path], out: Path, published: Path | None, videos: str, history: Path | None, refresh: int | None = None
) -> tuple[int, list[str]]:
    """Read the runs below `roots` and write the page; return the number of runs, and what is omitted.

    Raises:
        UserError: `published` is invalid, or there is no run and `refresh` is None.
        OSError: the page cannot be written.
    """
    found: list[Run] = []
    omitted: list[str] = []
    for path in runs.find(roots):
        try:
            found.append(runs.read(path))
        except UserError as e:
            omitted.append(f"{path}: {e}")
    if not found and refresh is None:
        where = ", ".join(map(str, roots))
        damaged = f"\n{len(omitted)} cannot be read: {omitted[0]}" if omitted else ""
        raise UserError(
            f"{where}: contains no run, that is, a directory with config.yaml and train.csv or eval.csv{damaged}"
        )
    curves = groups.read_published(published, omitted) if published else {}
    speed = _read_history(history, omitted) if history else {}
    omitted = [utf8_safe(message) for message in omitted]
    text = page(found, curves, videos, out.parent, omitted, speed, refresh)
    write_atomically(out, text.encode(errors="replace"))  # file names may not be valid UTF-8
    return len(found), omitted
