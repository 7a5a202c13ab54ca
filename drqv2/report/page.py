"""The report: one self-contained HTML page."""

from __future__ import annotations

import base64
import os
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2
import numpy as np
import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from drqv2.config.formatting import show
from drqv2.errors import UserError
from drqv2.evaluation.statistics import interval, iqm, mean
from drqv2.report import figures, groups, runs
from drqv2.report.groups import Group
from drqv2.report.runs import Run
from drqv2.system.files import write_atomically

_FRAMES = (100_000, 500_000, 1_000_000)
_TEMPLATE = Path(__file__).with_name("page.html")


def write(
    roots: list[Path], out: Path, published: Path | None, videos: str, history: Path | None, refresh: int | None = None
) -> tuple[int, list[str]]:
    """Read the runs below `roots` and write the page; return the number of runs, and what is omitted and why.

    Args:
        roots: directories that contain runs.
        out: the page; links are relative to its folder.
        published: CSV file of published curves.
        videos: "embed" the newest video of each run, "link" to it, or "none".
        history: JSON lines of benchmark results.
        refresh: interval in seconds at which a browser checks for a newer page.

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
    speed = _history(history, omitted) if history else ""
    tasks: dict[str, list[Group]] = {}
    for group in groups.group(found):
        tasks.setdefault(group.task, []).append(group)
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    page = environment.from_string(_TEMPLATE.read_text("utf-8")).render(
        made=datetime.now().astimezone().isoformat(" ", "minutes"),
        plotly=get_plotlyjs(),
        number=len(found),
        refresh=refresh,
        frames=_FRAMES,
        unreadable=omitted,
        tasks=[_task(name, members, curves.get(name), videos, out.parent) for name, members in tasks.items()],
        history=speed,
    )
    write_atomically(out, page.encode(errors="replace"))  # file names may not be valid UTF-8
    return len(found), omitted


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
    shown = [video for run in every for video in _videos(run, videos, folder)]  # first: it adds to the runs' faults
    keys = sorted({key for run in every for key in run.config})
    return {
        "name": name,
        "chart": figures.interactive_figure(members, published),
        "image": base64.b64encode(figures.static_figure(members, published)).decode(),
        "rows": rows,
        "warnings": [(g.label, message) for g in members for message in groups.warnings(g, published)],
        "videos": shown,
        "speed": figures.speed_figure(members),
        "runs": [_run(run) for run in every],
        "configs": {key: [show(run.config.get(key)) for run in every] for key in keys},
    }


def _row(group: Group) -> dict[str, Any]:
    evaluated = [run.returns for run in group.runs if len(run.frames)]
    cells = []
    for frame in _FRAMES:
        values = groups.returns_at(group.runs, frame)
        some = f" ({len(values)} of {len(group.runs)})" if 0 < len(values) < len(group.runs) else ""
        cells.append(_summary(values) + some)
    return {
        "label": group.label,
        "seeds": str(len(group.runs)),
        "cells": cells,
        "newest": _summary(np.array([returns[-1] for returns in evaluated])),
        "best": f"{np.concatenate(evaluated).max():.0f}" if evaluated else "",
    }


def _summary(values: np.ndarray) -> str:
    if len(values) < 2:
        return "".join(f"{value:.0f}" for value in values)
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
    evaluated = len(run.frames) > 0
    return {
        "path": str(run.path),
        "name": run.path.name,
        "seed": run.seed,
        "state": "finished" if run.finished else "running or stopped",
        "frame": f"{int(run.frames[-1]):,}" if evaluated else "",
        "newest": f"{run.returns[-1]:.1f}" if evaluated else "",
        "hours": f"{run.hours[-1]:.2f}" if evaluated else "",
        "fps": f"{run.fps:.0f}" if np.isfinite(run.fps) else "",
        "device": start.get("device", ""),
        "commit": str(start.get("commit") or "")[:9] + (" (changed)" if start.get("dirty") else ""),
    }


def _history(path: Path, faults: list[str]) -> str:
    """Return a chart of the benchmark ratios in a file as an HTML fragment, "" without any."""
    series: dict[str, list[tuple[str, float]]] = {}
    for entry in runs.read_json_lines(path, faults):
        ratios = entry.get("ratios")
        for name, ratio in ratios.items() if isinstance(ratios, dict) else ():
            series.setdefault(name, []).append((entry.get("time", ""), ratio))
    if not series:
        return ""
    figure = go.Figure()
    for name, points in series.items():
        figure.add_scatter(x=[x for x, _ in points], y=[y for _, y in points], mode="lines+markers", name=name)
    yaxis = {"title": {"text": "times the baseline"}, "rangemode": "tozero"}
    figure.update_layout(template="plotly_white", height=360, yaxis=yaxis)
    return str(figure.to_html(full_html=False, include_plotlyjs=False, config={"displaylogo": False}))
