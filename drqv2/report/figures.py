"""Learning curves: interactive ones by plotly, static ones by matplotlib."""

from __future__ import annotations

import html
import io
import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from drqv2.evaluation.statistics import iqm, mean
from drqv2.report.groups import Group, group_curve

_COLOURS = ("#1f6feb", "#d9730d", "#2f9e6e", "#8250df", "#c2255c", "#0b7285", "#7c5e10", "#495057")
_GREY = "#8a94a1"
_STATISTICS = {"mean": mean, "IQM": iqm}
_X_TITLES = {"frames": "environment frames", "hours": "hours of training"}
_BAND = {"mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}
_CONFIG = {"displaylogo": False, "responsive": True}
_SPEED_POINTS = 300  # per run
_Trace = tuple[set[tuple[str, str]], dict[str, Any]]  # the views (statistic, x-axis) that show it, and what it is


def interactive_figure(groups: Sequence[Group], published: dict[str, np.ndarray] | None) -> str:
    """Return the curves of one task as an HTML fragment, with buttons for mean or IQM, frames or hours.

    Args:
        groups: groups of one task.
        published: published mean, min and max by frame, drawn behind the curves.
    """
    traces = [] if published is None else _published_traces(_within_runs(groups, published))
    for i, group in enumerate(groups):
        traces += _group_traces(group, _COLOURS[i % len(_COLOURS)])
    buttons = []
    for statistic in _STATISTICS:
        for x_axis, title in _X_TITLES.items():
            changes = [{"visible": [(statistic, x_axis) in views for views, _ in traces]}, {"xaxis.title.text": title}]
            label = f"{statistic}, {'frames' if x_axis == 'frames' else 'time'}"
            buttons.append({"label": label, "method": "update", "args": changes})
    menu = {"type": "buttons", "direction": "right", "x": 0, "y": 1.13, "xanchor": "left", "buttons": buttons}
    figure = go.Figure([go.Scatter(visible=("mean", "frames") in views, **trace) for views, trace in traces])
    figure.update_layout(
        template="plotly_white",
        height=460,
        margin={"l": 60, "r": 20, "t": 50, "b": 90},
        legend={"orientation": "h", "y": -0.22, "groupclick": "togglegroup"},
        xaxis={"title": {"text": _X_TITLES["frames"]}, "rangemode": "tozero"},
        yaxis={"title": {"text": "evaluation return"}, "rangemode": "tozero"},
        hovermode="closest",
        updatemenus=[menu],
    )
    return str(figure.to_html(full_html=False, include_plotlyjs=False, config=_CONFIG))


def speed_figure(groups: Sequence[Group]) -> str:
    """Return the speed of each run of one task over its hours of training as an HTML fragment, "" if there is none."""
    figure = go.Figure()
    for i, group in enumerate(groups):
        name, colour = "<br>".join(_wrapped(group)), _COLOURS[i % len(_COLOURS)]
        line = {"color": colour, "width": 1.2, "shape": "vh"}  # a row tells the speed since the one before
        for k, run in enumerate(run for run in group.runs if len(run.speeds)):
            hover = f"{html.escape(run.path.name)}<br>%{{x:.2f}} h, %{{y:.0f}} frames/s<extra></extra>"
            curve = {"x": medians(run.speed_hours), "y": medians(run.speeds), "hovertemplate": hover}
            figure.add_scatter(mode="lines", line=line, name=name, legendgroup=name, showlegend=k == 0, **curve)
    if not figure.data:
        return ""
    figure.update_layout(
        template="plotly_white",
        height=300,
        margin={"l": 60, "r": 20, "t": 20, "b": 90},
        showlegend=True,
        legend={"orientation": "h", "y": -0.35},
        xaxis={"title": {"text": _X_TITLES["hours"]}, "rangemode": "tozero"},
        yaxis={"title": {"text": "frames per second"}, "rangemode": "tozero"},
        hovermode="closest",
    )
    return str(figure.to_html(full_html=False, include_plotlyjs=False, config=_CONFIG))


def medians(values: np.ndarray) -> np.ndarray:
    """Return the medians of at most 300 windows of consecutive values, [M] -> [min(M, 300)]."""
    windows = np.array_split(values, min(len(values), _SPEED_POINTS))
    return np.array([np.median(window) for window in windows])


def _published_traces(published: dict[str, np.ndarray]) -> list[_Trace]:
    views = {(statistic, "frames") for statistic in _STATISTICS}
    name = f"DrQ-v2, published: mean, range of {int(published['n_seeds'].max())} seeds"
    line = {"color": _GREY, "dash": "dot", "width": 2}
    traces: list[dict[str, Any]] = [
        {"y": published["max"], **_BAND},
        {"y": published["min"], "fill": "tonexty", "fillcolor": _faint(_GREY), **_BAND},
        {"y": published["mean"], "line": line, "mode": "lines", "name": name},
    ]
    return [(views, {"x": published["frame"], "legendgroup": "published", **trace}) for trace in traces]


def _group_traces(group: Group, colour: str) -> list[_Trace]:
    name = "<br>".join(_wrapped(group))
    seed_style = {"mode": "lines", "line": {"color": colour, "width": 1}, "opacity": 0.3, "showlegend": False}
    line = {"color": colour, "width": 2.5}
    traces: list[_Trace] = []
    for x_axis in _X_TITLES:
        for run in group.runs if len(group.runs) > 1 else ():
            views = {(statistic, x_axis) for statistic in _STATISTICS}
            curve = {"x": getattr(run, x_axis), "y": run.returns}
            traces.append((views, {**curve, "name": f"seed {run.seed}", **seed_style}))
        for statistic, function in _STATISTICS.items():
            x, y, low, high = group_curve(group.runs, function, x_axis)
            curves: list[dict[str, Any]] = [{"y": y, "mode": "lines", "line": line, "name": name}]
            if low is not None:
                band = {"y": low, "fill": "tonexty", "fillcolor": _faint(colour), **_BAND}
                curves = [{"y": high, **_BAND}, band, *curves]
            traces += [({(statistic, x_axis)}, {"x": x, **curve}) for curve in curves]
    return [(views, {"legendgroup": name, **trace}) for views, trace in traces]


def _within_runs(groups: Sequence[Group], published: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the published points up to the longest run's last frame, but at least two."""
    longest = max((run.frames[-1] for group in groups for run in group.runs if len(run.frames)), default=0)
    visible = published["frame"] <= max(longest, published["frame"][:2].max())
    return {name: values[visible] for name, values in published.items()}


def static_figure(groups: Sequence[Group], published: dict[str, np.ndarray] | None) -> bytes:
    """Return an SVG image of the curves over frames: the mean over seeds and its confidence interval."""
    from matplotlib.figure import Figure  # slow to import

    figure = Figure(figsize=(8, 4.2), dpi=100, layout="constrained")
    axes = figure.subplots()
    if published is not None:
        shown = _within_runs(groups, published)
        axes.fill_between(shown["frame"], shown["min"], shown["max"], color=_GREY, alpha=0.2, linewidth=0)
        label = "DrQ-v2, published: mean and range"
        axes.plot(shown["frame"], shown["mean"], color=_GREY, linestyle=":", label=label)
    for i, group in enumerate(groups):
        colour = _COLOURS[i % len(_COLOURS)]
        for run in group.runs if len(group.runs) > 1 else ():
            axes.plot(run.frames, run.returns, color=colour, alpha=0.25, linewidth=0.8)
        x, y, low, high = group_curve(group.runs, mean, "frames")
        if low is not None and high is not None:
            axes.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
        axes.plot(x, y, color=colour, linewidth=2, label="\n".join(_wrapped(group)))
    axes.set(xlabel="environment frames", ylabel="evaluation return")
    axes.set_ylim(bottom=axes.get_ylim()[0] if axes.dataLim.y0 < 0 else 0)
    axes.grid(color="#e6e9ed")
    axes.spines[["top", "right"]].set_visible(False)
    for text in figure.legend(loc="outside lower left", fontsize=8, frameon=False).get_texts():
        text.set_parse_math(False)  # labels may contain dollar signs
    out = io.BytesIO()
    figure.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue()


def _wrapped(group: Group) -> list[str]:
    return textwrap.wrap(f"{group.label} ({len(group.runs)} seed{'s' if len(group.runs) > 1 else ''})", 90)


def _faint(colour: str) -> str:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.18)"
