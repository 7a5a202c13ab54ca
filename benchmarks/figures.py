"""Static figures: the style of all of them, what those of tools/plot.py share, and the curves of a screen."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt

from drqv2.config.formatting import counted
from drqv2.evaluation.statistics import mean
from drqv2.report.charts import COLOURS, DASHES, GREY, colour_of_method
from drqv2.report.curves import group_curve
from drqv2.report.groups import Group
from drqv2.report.published import Reference, within

INK, SOFT, GRID, EDGE = "#1c2430", "#68727f", "#e6e9ed", "#c3c9d0"
_LINES = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}  # plotly's name -> matplotlib's
_STYLE: dict[Any, Any] = {
    "axes.prop_cycle": f"cycler('color', {list(COLOURS)})",
    "axes.axisbelow": True,
    "axes.edgecolor": EDGE,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.labelcolor": SOFT,
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": "medium",
    "axes.titleweight": "bold",
    "font.size": 9.0,
    "grid.color": GRID,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.0,
    "savefig.facecolor": "white",
    "text.color": INK,
    "xtick.color": SOFT,
    "xtick.major.size": 0.0,
    "ytick.color": SOFT,
    "ytick.major.size": 0.0,
}
plt.rcParams.update(_STYLE)


def seeds(numbers: Iterable[int]) -> str:
    """Return which seeds these are, for a title: "seed 1", "seeds 1, 2, 3"."""
    every = sorted(set(numbers))
    return f"seed{'s' if len(every) > 1 else ''} {', '.join(map(str, every))}"


def thousands(value: float, _: object = None) -> str:
    """Return a number of frames in few characters, as an axis shows it: 20k, 1.1M."""
    return f"{value / 1e6:g}M" if abs(value) >= 1e6 else f"{value / 1e3:g}k" if abs(value) >= 1e3 else f"{value:g}"


def draw_published(axes: Any, curve: Mapping[str, Any], label: str) -> None:
    """Draw DrQ-v2's published curve: the mean dotted, over the range of the seeds.

    Args:
        axes: matplotlib's.
        curve: arrays or lists by the names frame, mean, min and max.
        label: of the mean in the legend.
    """
    axes.fill_between(curve["frame"], curve["min"], curve["max"], color=GREY, alpha=0.2, linewidth=0)
    axes.plot(curve["frame"], curve["mean"], color=GREY, linestyle=":", linewidth=1.2, label=label)


def screen(tasks: Mapping[str, Sequence[Group]], references: Mapping[str, Sequence[Reference]]) -> bytes:
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
    found: dict[str, Any] = {}
    for axes in grid.flat:
        handles, labels = axes.get_legend_handles_labels()
        found = dict(zip(labels, handles, strict=True)) | found
    place: dict[str, Any] = {"loc": "outside lower center", "ncols": legend_columns, "columnspacing": 1.0}
    place |= {"fontsize": 6.5, "title": "environment frames of the task", "title_fontsize": 8}
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
