"""Figures of benchmarks.screen: the curves of each task, and the mean over all tasks."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from benchmarks.figures import thousands
from benchmarks.screen_summary import of_published, students_t
from drqv2.config.formatting import counted
from drqv2.evaluation.statistics import mean, mean_over_tasks
from drqv2.report.charts import COLOURS, DASHES, colour_of_method
from drqv2.report.curves import MAX_POINTS, curve_over_seeds, group_curve, series
from drqv2.report.groups import Group
from drqv2.report.published import Reference, within
from drqv2.report.runs import Run

_LINES = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}  # plotly's name -> matplotlib's


def of_tasks(tasks: Mapping[str, Sequence[Group]], references: Mapping[str, Sequence[Reference]]) -> bytes:
    """Return a PNG image with a panel for each task: means over seeds and confidence intervals against frames.

    A task of which a run reports success shows it; the others show returns. Curves are dotted beyond what all seeds
    have reached. A single task shows each seed, too.

    Args:
        tasks: groups by task.
        references: curves of other methods by task.
    """
    number = len(tasks)
    columns = 1 if number == 1 else max(3, min(number, 5 if number > 8 else 4))
    rows = math.ceil(number / columns)
    width, height = (8.0, 3.6) if number == 1 else (2.4 * columns, 1.75 * rows + 0.4)
    entries, legend_columns = {group.setting for groups in tasks.values() for group in groups}, max(2, columns - 1)
    height += 0.17 * math.ceil((len(entries) + 2) / legend_columns)
    figure, grid = plt.subplots(rows, columns, figsize=(width, height), squeeze=False, layout="constrained")
    for axes, (task, groups) in zip(grid.flat, tasks.items(), strict=False):
        _panel(axes, groups, references.get(task, ()), each_seed=number == 1)
        axes.set_title(task, fontsize=8, parse_math=False)
        axes.tick_params(labelsize=6.5)
        axes.locator_params(nbins=4)
    for axes in grid.flat[number:]:
        axes.set_axis_off()
    return _png(figure, legend_columns, "environment frames of the task")


def over_tasks(
    arms: Mapping[str, Sequence[Sequence[Run]]], published: Mapping[str, Sequence[Reference]], fps: Mapping[str, float]
) -> bytes:
    """Return a PNG image: means over tasks with 95 % intervals, against frames and against minutes of training.

    Args:
        arms: runs of each task, by arm; every task has one with two evaluations.
        published: curves of each task by method, named as in a legend.
        fps: frames per second by method; those without are not drawn against minutes.
    """
    figure, panels = plt.subplots(1, 2, figsize=(8.0, 3.2), sharey=True, layout="constrained")
    last = 0.0  # frame of the arms
    for i, (arm, tasks) in enumerate(arms.items()):
        for axes, x_axis, unit in zip(panels, ("frames", "hours"), (1.0, 60.0), strict=True):
            seeds = [[series(run, x_axis, "returns") for run in runs] for runs in tasks]
            x, y, low, high, beyond = curve_over_seeds(seeds, mean_over_tasks, MAX_POINTS, students_t)
            colour = COLOURS[i % len(COLOURS)]
            axes.plot(unit * x, y, color=colour, linestyle=_LINES[DASHES[i // len(COLOURS) % len(DASHES)]], label=arm)
            axes.plot(unit * beyond[0], beyond[1], color=colour, linewidth=0.8, linestyle=":")
            if low is not None and high is not None:
                axes.fill_between(unit * x, low, high, color=colour, alpha=0.2, linewidth=0)
            last = max(last, *x, *beyond[0]) if x_axis == "frames" else last
    for name, curves in published.items():
        x = np.unique(np.concatenate([one.curve["frame"] for one in curves]))
        x = x[x <= last]
        means = [of_published(curves, int(frame)) for frame in x]
        colour = colour_of_method(curves[0].number)
        style: dict[str, Any] = {"color": colour, "linestyle": ":", "linewidth": 1.2}
        for axes, unit in zip(panels, (1.0, 60 * fps[name]) if name in fps else (1.0,), strict=False):
            axes.plot(x / unit, [one.value for one in means], label=name, **style)
            bounds = [one.low for one in means], [one.high for one in means]
            axes.fill_between(x / unit, *bounds, color=colour, alpha=0.12, linewidth=0)
    panels[0].set_ylabel("evaluation return, mean over tasks")
    panels[0].set_xlabel("environment frames of each task")
    panels[1].set_xlabel("minutes of training for each task")
    panels[0].xaxis.set_major_formatter(thousands)
    for axes in panels:
        axes.set_xlim(left=0)
    panels[0].set_ylim(bottom=0)
    return _png(figure, 3, "")


def _png(figure: Any, columns: int, title: str) -> bytes:
    """Return a figure as a PNG image, with one legend for all panels below them."""
    found: dict[str, Any] = {}
    for axes in figure.axes:
        handles, labels = axes.get_legend_handles_labels()
        found = dict(zip(labels, handles, strict=True)) | found
    place: dict[str, Any] = {"loc": "outside lower center", "ncols": columns, "columnspacing": 1.0}
    place |= {"fontsize": 6.5, "title": title, "title_fontsize": 8}
    legend = figure.legend(found.values(), found.keys(), **place)
    for text in legend.get_texts():
        text.set_parse_math(False)  # labels may contain dollar signs
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=120)
    plt.close(figure)
    return out.getvalue()


def _panel(axes: Any, groups: Sequence[Group], references: Sequence[Reference], each_seed: bool) -> None:
    success = any(group.has_success for group in groups)
    metric = "success" if success else "returns"
    last = max((run.frames[-1] for group in groups for run in group.runs if len(run.frames)), default=0.0)
    for reference in () if success else references:
        curve, colour = within(reference.curve, last), colour_of_method(reference.number)
        axes.plot(curve["frame"], curve["mean"], color=colour, linestyle=":", linewidth=1.2, label=reference.short)
    for group in groups:
        colour, line = (
            COLOURS[group.setting % len(COLOURS)],
            _LINES[DASHES[group.setting // len(COLOURS) % len(DASHES)]],
        )
        for run in group.runs if each_seed and len(group.runs) > 1 else ():
            axes.plot(run.frames, getattr(run, metric), color=colour, alpha=0.25, linewidth=0.8)
        x, y, low, high, beyond = group_curve(group.runs, mean, "frames", metric)
        axes.plot(*beyond, color=colour, linewidth=0.8, linestyle=":")
        if low is not None and high is not None:
            axes.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
        label = f"{group.short} ({counted(len(group.runs), 'seed')})" if each_seed else group.short
        axes.plot(x, y, color=colour, linestyle=line, label=label)
    axes.set_ylabel("success rate" if success else "evaluation return", fontsize=8)
    if success:
        axes.set_ylim(-0.03, 1.03)
    else:
        axes.set_ylim(bottom=min(0.0, axes.dataLim.y0))
    axes.xaxis.set_major_formatter(thousands)
