"""Static figures by matplotlib: a task's curves, and small multiples of many tasks."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, ParamSpec

from drqv2.evaluation.statistics import mean
from drqv2.report import style
from drqv2.report.curves import group_curve
from drqv2.report.groups import Group, seeds
from drqv2.report.published import DRQV2, Published, Reference, within

_PANEL_POINTS = 80  # per curve of a small panel
P = ParamSpec("P")
_NAMES = {"returns": "evaluation return", "success": "success rate"}


def _styled(draw: Callable[P, bytes]) -> Callable[P, bytes]:
    """Draw in the style of all static plots."""

    @wraps(draw)
    def styled(*args: P.args, **kwargs: P.kwargs) -> bytes:
        from matplotlib import rc_context  # slow to import

        # Text as text makes a picture a tenth of the size.
        with rc_context(style.MATPLOTLIB | {"svg.fonttype": "none", "svg.hashsalt": "report"}):
            return draw(*args, **kwargs)

    return styled


@_styled
def static_figure(
    groups: Sequence[Group], published: Published | None, references: Sequence[Reference] = (), kind: str = "svg"
) -> bytes:
    """Return an image of a task's curves over frames: the mean over seeds and its confidence interval.

    Beyond what all seeds have reached, curves are dotted.

    Args:
        groups: groups of one task.
        published: DrQ-v2's published curve.
        references: curves of other methods.
        kind: of image, svg or png.
    """
    from matplotlib.figure import Figure

    rows = math.ceil(len(groups) / 2)
    figure = Figure(figsize=(8, 3.6 + 0.18 * rows), layout="constrained")
    axes = figure.subplots()
    _panel(axes, groups, published, references, seeds_too=True)
    axes.set(xlabel="environment frames", ylabel=_NAMES[_metric(groups)])
    _legend(figure, [axes], 2)
    return _image(figure, kind)


@_styled
def small_multiples(
    tasks: Mapping[str, Sequence[Group]],
    published: Mapping[str, Published],
    references: Mapping[str, Sequence[Reference]],
    kind: str = "svg",
    columns: int | None = None,
) -> bytes:
    """Return an image with a panel for each task and one legend: means over seeds and confidence intervals.

    A task of which a run reports success shows it; the others show returns.

    Args:
        tasks: groups by task.
        published: DrQ-v2's published curves by task.
        references: curves of other methods by task.
        kind: of image, svg or png.
        columns: of panels; by default 3 to 5.
    """
    from matplotlib.figure import Figure

    columns = columns or max(3, min(len(tasks), 5 if len(tasks) > 8 else 4))
    rows = math.ceil(len(tasks) / columns)
    entries = len({group.setting for groups in tasks.values() for group in groups}) + 2
    width, legend_columns = max(2.4 * columns, 3.4), max(1, columns - 1)
    height = 1.75 * rows + 0.17 * math.ceil(entries / legend_columns) + 0.4
    figure = Figure(figsize=(width, height), layout="constrained")
    grid = list(figure.subplots(rows, columns, squeeze=False).ravel())
    for i, (axes, (task, groups)) in enumerate(zip(grid, tasks.items(), strict=False)):
        _panel(axes, groups, published.get(task), references.get(task, ()))
        if _metric(groups) == "success":
            axes.set_ylim(-0.03, 1.03)
        axes.set_title(task, fontsize=8, parse_math=False)
        axes.tick_params(labelsize=6.5)
        if i % columns == 0:
            axes.set_ylabel(_NAMES[_metric(groups)], fontsize=8)
        axes.locator_params(nbins=4)
    for axes in grid[len(tasks) :]:
        axes.set_axis_off()
    _legend(figure, grid, legend_columns, "environment frames of the task")
    return _image(figure, kind)


def _panel(
    axes: Any,
    groups: Sequence[Group],
    published: Published | None,
    references: Sequence[Reference],
    seeds_too: bool = False,
) -> None:
    """Draw a task's curves over frames."""
    metric = _metric(groups)
    last = max((run.frames[-1] for group in groups for run in group.runs if len(run.frames)), default=0.0)
    if published is not None and metric == "returns":
        style.draw_published(axes, within(published, last), DRQV2)
    for reference in references if metric == "returns" else ():
        curve, colour = within(reference.curve, last), style.colour_of_method(reference.number)
        axes.plot(curve["frame"], curve["mean"], color=colour, linestyle=":", linewidth=1.2, label=reference.short)
    for group in groups:
        colour, line = style.colour(group.setting), style.line(style.dash(group.setting))
        for run in group.runs if seeds_too and len(group.runs) > 1 else ():
            axes.plot(run.frames, getattr(run, metric), color=colour, alpha=0.25, linewidth=0.8)
        x, y, low, high, beyond = group_curve(group.runs, mean, "frames", metric, _PANEL_POINTS)
        axes.plot(*beyond, color=colour, linewidth=0.8, linestyle=":")
        if not len(x):
            continue  # no evaluation yet, or one that does not report success
        if low is not None and high is not None:
            axes.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
        label = f"{group.short} ({seeds(group.runs)})" if seeds_too else group.short
        axes.plot(x, y, color=colour, linewidth=1.6, linestyle=line, label=label)
    axes.set_ylim(bottom=axes.get_ylim()[0] if axes.dataLim.y0 < 0 else 0)
    axes.xaxis.set_major_formatter(style.thousands)


def _metric(groups: Sequence[Group]) -> str:
    return "success" if any(group.has_success for group in groups) else "returns"


def _legend(figure: Any, every: Sequence[Any], columns: int, title: str | None = None) -> None:
    """Draw one legend below all panels, under what the x-axes show."""
    found: dict[str, Any] = {}
    for axes in every:
        handles, labels = axes.get_legend_handles_labels()
        found |= {label: handle for handle, label in zip(handles, labels, strict=True) if label not in found}
    place = {"loc": "outside lower center", "ncols": columns, "fontsize": 6.5, "title": title}
    legend = figure.legend(found.values(), found.keys(), **place, title_fontsize=8, columnspacing=1.0)
    for text in legend.get_texts():
        text.set_parse_math(False)  # labels may contain dollar signs


def _image(figure: Any, kind: str) -> bytes:
    out = io.BytesIO()
    options: dict[str, Any] = {"metadata": {"Date": None}} if kind == "svg" else {"dpi": 120}
    options["transparent"] = kind == "svg"  # for pages, which may be dark
    figure.savefig(out, format=kind, **options)
    return out.getvalue()
