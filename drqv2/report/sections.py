"""A section of the page, on one task or on multi-task runs: chart, warnings, tables, videos."""

from __future__ import annotations

import base64
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from drqv2.config.formatting import column_name, rewards_of
from drqv2.evaluation.statistics import interval, iqm, mean
from drqv2.report import charts
from drqv2.report.aggregate import improvement, written
from drqv2.report.curves import last_common, values_at
from drqv2.report.groups import Group, has_interval, warnings
from drqv2.report.published import DRQV2, Published, Reference
from drqv2.report.runs import Run
from drqv2.report.scores import Scores, seeds_of

_FRAMES = (100_000, 500_000, 1_000_000)


@dataclass
class Others:
    """Published curves to compare with.

    Attributes:
        published: those of DrQ-v2 by task.
        references: those of other methods by task.
        shown: methods of these that are shown from the start.
    """

    published: dict[str, Published] = field(default_factory=dict)
    references: dict[str, list[Reference]] = field(default_factory=dict)
    shown: Sequence[str] = ()

    def methods(self, task: str) -> list[Reference]:
        """Return a task's curves of other methods: without DrQ-v2's, where that is drawn already."""
        return [one for one in self.references.get(task, ()) if one.short != DRQV2 or task not in self.published]


def section(name: str, groups: Sequence[Group], others: Others, videos: str, folder: Path) -> dict[str, Any]:
    """Return what the template needs for one section.

    Args:
        name: the task, or the label of several.
        groups: its groups.
        others: published curves.
        videos: "embed", "link" or "none".
        folder: where the page is.
    """
    published = others.published.get(name)
    rows = [_row(group) for group in groups]
    compared_with = _compare(groups, rows)
    if published is not None:
        means = dict(zip(published["frame"].tolist(), published["mean"].tolist(), strict=True))
        cells = [f"{means[frame]:.0f}" if frame in means else "" for frame in _FRAMES]
        seeds = f"{int(published['n_seeds'].max())}"
        name_of = {"short": DRQV2, "label": "", "success": ""}
        rows.append({"seeds": seeds, "cells": cells, "best": "", "latest": "", "better": "", **name_of})
    used = [i for i in range(len(_FRAMES)) if any(row["cells"][i] for row in rows)]
    for row in rows:
        row["cells"] = [row["cells"][i] for i in used]
    every = [run for group in groups for run in group.runs]
    shown = [video for run in every for video in _videos(run, videos, folder)]  # first: it adds to the runs' faults
    return {
        "name": name,
        "rewards": rewards_of([name for run in every for name in _played(run)]),
        "several": several_tasks(groups),
        "chart": charts.curves_chart(groups, published, others.methods(name), others.shown),
        "frames": [_FRAMES[i] for i in used],
        "rows": rows,
        "success": any(row["success"] for row in rows),
        "compared_with": compared_with,
        "warnings": [(g.short, g.label, message) for g in groups for message in warnings(g, published)],
        "videos": shown,
        "runs": [_run(run) for run in every],
    }


def _videos(run: Run, how: str, folder: Path) -> list[dict[str, str]]:
    """Return source and caption of a run's newest video; a fault is added to the run if it cannot be read."""
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


def _played(run: Run) -> list[str]:
    """Return the tasks of a run, or the one of its part, as they are named in its configuration, with a library."""
    names = [str(name) for name in (run.config.get("env_id"), *(run.config.get("tasks") or ()))]
    return [name for name in names if not run.whole or column_name(name) == run.task]


def several_tasks(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """Return a table with a row a task: final return and success of each setting, with intervals; the mean last.

    Args:
        groups: groups of runs of several tasks; empty for those of a single task.

    Returns:
        Rows: the task's name, the cells of each setting (return, success), and whether all settings learn from it.
    """
    wholes = [group for group in groups if group.runs[0].several]
    names = dict.fromkeys(part.task for group in wholes for run in group.runs for part in run.parts)
    rows = []
    for name in names:
        members = [[part for run in group.runs for part in run.parts if part.task == name] for group in wholes]
        learnt = all(part.learnt for parts in members for part in parts)
        rows.append({"name": name, "cells": [_final(parts) for parts in members], "learnt": learnt})
    if rows:
        rows.append({"name": "mean over tasks", "cells": [_final(group.runs) for group in wholes], "learnt": True})
    return rows


def _final(runs: Sequence[Run]) -> dict[str, str]:
    return {"return": _latest(runs, "returns", 0), "success": _latest(runs, "success", 2)}


def _latest(runs: Sequence[Run], metric: str, digits: int) -> str:
    """Return the mean at the last frame that all runs have reached, with its interval; "" without a value."""
    frame = last_common(runs, metric)
    values = np.zeros(0) if frame is None else values_at(runs, frame, metric)
    return _summary(values, digits) if len(values) else ""


def _summary(values: np.ndarray, digits: int = 0) -> str:
    return written(float(mean(values)), interval(values), digits)


def _compare(groups: Sequence[Group], rows: Sequence[dict[str, Any]]) -> str:
    """Add to the rows how probably a run is better than one of the first setting; return the label of that setting."""
    metric = "success" if any(group.has_success for group in groups) else "returns"
    every = [
        (row, Scores(group, {group.task: seeds_of(group, metric)})) for row, group in zip(rows, groups, strict=True)
    ]
    settings = [(row, one) for row, one in every if min(one.counts)]
    if len(settings) < 2:
        return ""
    (_, first), *others = settings
    for row, one in others:
        row["better"], frame = improvement(first, one)
        if frame is not None and frame != last_common(one.group.runs, metric):
            row["better"] += f" at {frame:,.0f}"
    return first.group.short


def _row(group: Group) -> dict[str, Any]:
    evaluated = [run.returns for run in group.runs if len(run.frames)]
    few = " (no interval)" if len(group.runs) > 1 and not has_interval(group.runs) else ""
    frame = last_common(group.runs)
    return {
        "short": group.short,
        "label": group.label,
        "seeds": f"{len(group.runs)}{few}",
        "cells": [_returns(group.runs, frame) for frame in _FRAMES],
        "latest": "" if frame is None else f"{_returns(group.runs, frame)} at {frame:,}",
        "best": f"{np.concatenate(evaluated).max():.0f}" if evaluated else "",
        "success": _latest(group.runs, "success", 2),
        "better": "",
    }


def _returns(runs: Sequence[Run], frame: int) -> str:
    """Return mean, interval and interquartile mean of the returns at a frame; "" if no run got that far.

    Of three values or fewer the interquartile mean is the mean.
    """
    values = values_at(runs, frame)
    if not len(values):
        return ""
    middle = f", IQM {iqm(values):.0f}" if len(values) > 3 else ""
    some = f" ({len(values)} of {len(runs)})" if len(values) < len(runs) else ""
    return _summary(values) + middle + some


def _state(run: Run) -> str:
    if run.config.get("eval_every_frames", 0) is None:
        return "without evaluations"
    return "finished" if run.finished else "running or stopped"


def _run(run: Run) -> dict[str, Any]:
    start = run.starts[-1] if run.starts else {}
    evaluated = len(run.frames) > 0
    return {
        "path": str(run.path),
        "name": run.path.name,
        "part": f"one task of {run.whole}" + ("" if run.learnt else ", not learnt from") if run.whole else "",
        "seed": run.seed,
        "state": _state(run),
        "frame": f"{int(run.frames[-1]):,}" if evaluated else "",
        "newest": f"{run.returns[-1]:.1f}" if evaluated else "",
        "hours": f"{run.hours[-1]:.2f}" if evaluated else "",
        "fps": f"{run.fps:.0f}" if np.isfinite(run.fps) else "",
        "device": start.get("device", ""),
        "commit": str(start.get("commit") or "")[:9] + (" (changed)" if start.get("dirty") else ""),
    }
