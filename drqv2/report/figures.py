"""Learning curves, drawn for a browser by plotly and for paper by matplotlib."""

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
_FIGURES = {"mean": mean, "IQM": iqm}
_AGAINST = {"frames": "environment frames", "hours": "hours of training"}


def interactive_figure(groups: Sequence[Group], published: dict[str, np.ndarray] | None, height: int = 460) -> str:
    """Return the curves of one task's groups as an HTML fragment; buttons choose mean or IQM, frames or hours.

    Args:
        groups: of one task.
        published: mean, min and max by frame, to stand behind the curves.
        height: pixels.
    """
    import plotly.graph_objects as go

    traces: list[Any] = []
    shown: list[set[tuple[str, str]]] = []  # of each trace: where it is seen

    def add(where: set[tuple[str, str]], **kwargs: Any) -> None:
        traces.append(go.Scatter(visible=("mean", "frames") in where, **kwargs))
        shown.append(where)

    if published is not None:
        where = {(figure, "frames") for figure in _FIGURES}
        longest = max((run.frames[-1] for g in groups for run in g.runs if len(run.frames)), default=0)
        seen = published["frame"] <= max(longest, published["frame"][:2].max())
        x = published["frame"][seen]
        about = {"legendgroup": "published", "line": {"width": 0}, "hoverinfo": "skip", "mode": "lines"}
        add(where, x=x, y=published["max"][seen], showlegend=False, **about)
        add(where, x=x, y=published["min"][seen], fill="tonexty", fillcolor=_faint(_GREY), showlegend=False, **about)
        line = {"color": _GREY, "dash": "dot", "width": 2}
        seeds = f"{int(published['n_seeds'].max())} seeds"
        add(
            where,
            x=x,
            y=published["mean"][seen],
            line=line,
            mode="lines",
            name=f"DrQ-v2, published: mean, range of {seeds}",
            legendgroup="published",
        )
    for i, group in enumerate(groups):
        colour = COLOURS[i % len(COLOURS)]
        name = "<br>".join(_wrapped(group))
        for against in _AGAINST:
            for run in group.runs if len(group.runs) > 1 else ():
                curve = seed_curve(run, against)
                add(
                    {(figure, against) for figure in _FIGURES},
                    x=curve.x,
                    y=curve.y,
                    mode="lines",
                    line={"color": colour, "width": 1},
                    opacity=0.3,
                    legendgroup=name,
                    showlegend=False,
                    name=utf8_safe(f"seed {run.seed}"),
                )
            for figure, function in _FIGURES.items():
                curve = group_curve(group.runs, function, against)
                here = {(figure, against)}
                if curve.low is not None:
                    edge = {"mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "legendgroup": name}
                    add(here, x=curve.x, y=curve.high, showlegend=False, **edge)
                    add(
                        here, x=curve.x, y=curve.low, fill="tonexty", fillcolor=_faint(colour), showlegend=False, **edge
                    )
                line = {"color": colour, "width": 2.5}
                add(here, x=curve.x, y=curve.y, mode="lines", line=line, name=name, legendgroup=name)
    figure_ = go.Figure(traces)
    figure_.update_layout(
        template="plotly_white",
        height=height,
        margin={"l": 60, "r": 20, "t": 50, "b": 90},
        legend={"orientation": "h", "y": -0.22, "groupclick": "togglegroup"},
        xaxis={"title": {"text": _AGAINST["frames"]}, "rangemode": "tozero"},
        yaxis={"title": {"text": "evaluation return"}, "rangemode": "tozero"},
        hovermode="closest",
        updatemenus=[_buttons(shown)],
    )
    return str(
        figure_.to_html(full_html=False, include_plotlyjs=False, config={"displaylogo": False, "responsive": True})
    )


def _buttons(shown: Sequence[set[tuple[str, str]]]) -> dict[str, Any]:
    choices = []
    for figure in _FIGURES:
        for against, title in _AGAINST.items():
            visible = [(figure, against) in where for where in shown]
            label = f"{figure}, {'frames' if against == 'frames' else 'time'}"
            choices.append(
                {"label": label, "method": "update", "args": [{"visible": visible}, {"xaxis.title.text": title}]}
            )
    return {"type": "buttons", "direction": "right", "x": 0, "y": 1.13, "xanchor": "left", "buttons": choices}


def static_figure(groups: Sequence[Group], published: dict[str, np.ndarray] | None, kind: str = "svg") -> bytes:
    """Return the curves against frames as a picture, "svg" or "png": the mean over seeds and its interval."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.2), dpi=100, layout="constrained")
    axes = figure.subplots()
    if published is not None:
        longest = max((run.frames[-1] for g in groups for run in g.runs if len(run.frames)), default=0)
        seen = published["frame"] <= max(longest, published["frame"][:2].max())
        x = published["frame"][seen]
        axes.fill_between(x, published["min"][seen], published["max"][seen], color=_GREY, alpha=0.2, linewidth=0)
        axes.plot(x, published["mean"][seen], color=_GREY, linestyle=":", label="DrQ-v2, published: mean and range")
    for i, group in enumerate(groups):
        colour = COLOURS[i % len(COLOURS)]
        curve: Curve = group_curve(group.runs, mean, "frames")
        for run in group.runs if len(group.runs) > 1 else ():
            own = seed_curve(run, "frames")
            axes.plot(own.x, own.y, color=colour, alpha=0.25, linewidth=0.8)
        if curve.low is not None and curve.high is not None:
            axes.fill_between(curve.x, curve.low, curve.high, color=colour, alpha=0.2, linewidth=0)
        axes.plot(curve.x, curve.y, color=colour, linewidth=2, label="\n".join(_wrapped(group)))
    axes.set_xlabel("environment frames")
    axes.set_ylabel("evaluation return")
    axes.set_ylim(bottom=min(0, axes.get_ylim()[0] if axes.dataLim.y0 < 0 else 0))
    axes.grid(color="#e6e9ed")
    axes.spines[["top", "right"]].set_visible(False)
    for text in figure.legend(loc="outside lower left", fontsize=8, frameon=False).get_texts():
        text.set_parse_math(False)  # a label is no formula, whatever dollars it holds
    out = io.BytesIO()
    figure.savefig(out, format=kind, metadata={"Date": None} if kind == "svg" else None)
    return out.getvalue()


def _wrapped(group: Group) -> list[str]:
    return textwrap.wrap(f"{group.label} ({len(group.runs)} seed{'s' if len(group.runs) > 1 else ''})", 90)


def _faint(colour: str) -> str:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.18)"
