"""Learning curves: interactive ones by plotly, static ones by matplotlib."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np

from drqv2.evaluation.statistics import iqm, mean
from drqv2.report.groups import Curve, Group, group_curve, seed_curve
from drqv2.report.runs import utf8_safe

COLOURS = ("#1f6feb", "#d9730d", "#2f9e6e", "#8250df", "#c2255c", "#0b7285", "#7c5e10", "#495057")
_GREY = "#8a94a1"
_STATISTICS = {"mean": mean, "IQM": iqm}
_X_TITLES = {"frames": "environment frames", "hours": "hours of training"}
_Views = set[tuple[str, str]]  # (statistic, x-axis) in which a trace is visible
_BAND = {"mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}


def interactive_figure(groups: Sequence[Group], published: dict[str, np.ndarray] | None) -> str:
    """Return the curves of one task as an HTML fragment, with buttons for mean or IQM, frames or hours.

    Args:
        groups: groups of one task.
        published: published mean, min and max by frame, drawn behind the curves.
    """
    import plotly.graph_objects as go

    traces: list[tuple[_Views, dict[str, Any]]] = [] if published is None else _published_traces(groups, published)
    for i, group in enumerate(groups):
        traces += _group_traces(group, COLOURS[i % len(COLOURS)])
    figure = go.Figure([go.Scatter(visible=("mean", "frames") in views, **trace) for views, trace in traces])
    figure.update_layout(
        template="plotly_white",
        height=460,
        margin={"l": 60, "r": 20, "t": 50, "b": 90},
        legend={"orientation": "h", "y": -0.22, "groupclick": "togglegroup"},
        xaxis={"title": {"text": _X_TITLES["frames"]}, "rangemode": "tozero"},
        yaxis={"title": {"text": "evaluation return"}, "rangemode": "tozero"},
        hovermode="closest",
        updatemenus=[_buttons([views for views, _ in traces])],
    )
    config = {"displaylogo": False, "responsive": True}
    return str(figure.to_html(full_html=False, include_plotlyjs=False, config=config))


def _published_traces(groups: Sequence[Group], published: dict[str, np.ndarray]) -> list[tuple[_Views, dict[str, Any]]]:
    views = {(statistic, "frames") for statistic in _STATISTICS}
    visible = _within_runs(groups, published)
    x = published["frame"][visible]
    name = f"DrQ-v2, published: mean, range of {int(published['n_seeds'].max())} seeds"
    line = {"color": _GREY, "dash": "dot", "width": 2}
    traces: list[dict[str, Any]] = [
        {"y": published["max"][visible], **_BAND},
        {"y": published["min"][visible], "fill": "tonexty", "fillcolor": _faint(_GREY), **_BAND},
        {"y": published["mean"][visible], "line": line, "mode": "lines", "name": name},
    ]
    return [(views, {"x": x, "legendgroup": "published", **trace}) for trace in traces]


def _group_traces(group: Group, colour: str) -> list[tuple[_Views, dict[str, Any]]]:
    name = "<br>".join(_wrapped(group))
    seed_style = {"mode": "lines", "line": {"color": colour, "width": 1}, "opacity": 0.3, "showlegend": False}
    traces: list[tuple[_Views, dict[str, Any]]] = []
    for x_axis in _X_TITLES:
        for run in group.runs if len(group.runs) > 1 else ():
            curve = seed_curve(run, x_axis)
            views = {(statistic, x_axis) for statistic in _STATISTICS}
            traces.append((views, {"x": curve.x, "y": curve.y, "name": utf8_safe(f"seed {run.seed}"), **seed_style}))
        for statistic, function in _STATISTICS.items():
            curve = group_curve(group.runs, function, x_axis)
            views = {(statistic, x_axis)}
            if curve.low is not None:
                traces.append((views, {"x": curve.x, "y": curve.high, **_BAND}))
                fill = {"fill": "tonexty", "fillcolor": _faint(colour)}
                traces.append((views, {"x": curve.x, "y": curve.low, **fill, **_BAND}))
            line = {"color": colour, "width": 2.5}
            traces.append((views, {"x": curve.x, "y": curve.y, "mode": "lines", "line": line, "name": name}))
    return [(views, {"legendgroup": name, **trace}) for views, trace in traces]


def _within_runs(groups: Sequence[Group], published: dict[str, np.ndarray]) -> np.ndarray:
    """Return a mask of the published points up to the longest run's last frame, bool [N]."""
    longest = max((run.frames[-1] for group in groups for run in group.runs if len(run.frames)), default=0)
    return np.asarray(published["frame"] <= max(longest, published["frame"][:2].max()))


def _buttons(traces: Sequence[_Views]) -> dict[str, Any]:
    buttons = []
    for statistic in _STATISTICS:
        for x_axis, title in _X_TITLES.items():
            visible = [(statistic, x_axis) in views for views in traces]
            label = f"{statistic}, {'frames' if x_axis == 'frames' else 'time'}"
            changes = [{"visible": visible}, {"xaxis.title.text": title}]
            buttons.append({"label": label, "method": "update", "args": changes})
    return {"type": "buttons", "direction": "right", "x": 0, "y": 1.13, "xanchor": "left", "buttons": buttons}


def static_figure(groups: Sequence[Group], published: dict[str, np.ndarray] | None) -> bytes:
    """Return an SVG image of the curves over frames: the mean over seeds and its confidence interval."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.2), dpi=100, layout="constrained")
    axes = figure.subplots()
    if published is not None:
        visible = _within_runs(groups, published)
        x = published["frame"][visible]
        axes.fill_between(x, published["min"][visible], published["max"][visible], color=_GREY, alpha=0.2, linewidth=0)
        axes.plot(x, published["mean"][visible], color=_GREY, linestyle=":", label="DrQ-v2, published: mean and range")
    for i, group in enumerate(groups):
        colour = COLOURS[i % len(COLOURS)]
        curve: Curve = group_curve(group.runs, mean, "frames")
        for run in group.runs if len(group.runs) > 1 else ():
            seed = seed_curve(run, "frames")
            axes.plot(seed.x, seed.y, color=colour, alpha=0.25, linewidth=0.8)
        if curve.low is not None and curve.high is not None:
            axes.fill_between(curve.x, curve.low, curve.high, color=colour, alpha=0.2, linewidth=0)
        axes.plot(curve.x, curve.y, color=colour, linewidth=2, label="\n".join(_wrapped(group)))
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
