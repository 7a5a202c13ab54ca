"""Interactive charts as data: charts.js draws them with plotly, below them a legend of HTML."""

from __future__ import annotations

import html
import json
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

import numpy as np

from drqv2.config.formatting import counted
from drqv2.evaluation.statistics import iqm, mean
from drqv2.report import style
from drqv2.report.curves import MAX_POINTS, Curve, group_curve, series, thinned
from drqv2.report.groups import Group
from drqv2.report.published import DRQV2, Published, Reference, within

STATISTICS = {"mean": mean, "IQM": iqm}
X_AXES = {"frames": "frames", "hours": "time"}  # -> name of the button
X_TITLES = {"frames": "environment frames", "time": "hours of training"}
Y_TITLES = {"return": "evaluation return", "success": "success rate"}
METRICS = {"return": "returns", "success": "success"}  # -> attribute of a run
_FEW_GROUPS = 6  # up to here a chart shows the curve of each seed from the start
_SPEED_POINTS = 300  # per run
_DIGITS = 5  # of a number in a chart


@dataclass
class Entry:
    """One entry of a legend, which shows or hides its traces.

    Attributes:
        name: short label.
        title: full text, shown by hovering.
        colour: of its curves.
        dash: of its curves, as plotly names it.
        on: whether it is shown from the start.
    """

    name: str
    title: str
    colour: str
    dash: str = "solid"
    on: bool = True


@dataclass
class Trace:
    """One curve, with its interval.

    Attributes:
        entry: index of its legend entry.
        name: text shown by hovering.
        view: the choices under which it is drawn, such as {"metric": "return"}; other choices do not matter to it.
        x: [N].
        y: [N].
        low: [N], or empty without an interval.
        high: [N], or empty.
        kind: "curve", "beyond" (dotted: what not all seeds have reached), "seed" (thin), "run" (thin, each value holds
            since the one before), "steps" (each value holds until the next).
    """

    entry: int
    name: str
    view: dict[str, str]
    x: list[float]
    y: list[float]
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    kind: str = "curve"


@dataclass
class Chart:
    """A chart with buttons.

    Attributes:
        entries: the legend.
        traces: what is drawn.
        choices: names of the buttons by choice; the first is chosen.
        x_titles: title of the x-axis by the choice "x"; "" is that of all.
        y_titles: title of the y-axis by the choice "metric"; "" is that of all.
        height: of the plot in pixels, without buttons and legend.
    """

    entries: list[Entry]
    traces: list[Trace]
    choices: dict[str, list[str]]
    x_titles: dict[str, str]
    y_titles: dict[str, str]
    height: int = 380

    @property
    def unfinished(self) -> bool:
        """Whether a curve continues beyond what all of its seeds have reached."""
        return any(trace.kind == "beyond" for trace in self.traces)

    @property
    def data(self) -> str:
        """The chart as JSON that may stand in a page: no < ends its element."""
        return json.dumps(asdict(self), separators=(",", ":")).replace("<", "\\u003c")


def curves_chart(
    groups: Sequence[Group], published: Published | None, references: Sequence[Reference], shown: Sequence[str]
) -> Chart:
    """Return the curves of one task, with buttons for return or success, mean or IQM, frames or hours, and seeds.

    Args:
        groups: groups of one task.
        published: DrQ-v2's published curve, drawn behind the others.
        references: curves of other methods, hidden at first.
        shown: the methods of these that are not.
    """
    has_success = any(group.has_success for group in groups)
    metrics = ["success", "return"] if has_success else ["return"]  # success is what benchmarks that report it compare
    entries: list[Entry] = []
    traces: list[Trace] = []
    last = max((run.frames[-1] for group in groups for run in group.runs if len(run.frames)), default=0.0)
    if published is not None:
        count = counted(int(published["n_seeds"].max()), "seed")
        entries.append(Entry(DRQV2, f"{DRQV2}: mean and range of {count}", style.GREY, "dot"))
        traces += _reference_traces(0, DRQV2, within(published, last))
    for group in groups:
        entries.append(Entry(group.short, group.title, style.colour(group.setting), style.dash(group.setting)))
        traces += _group_traces(group, len(entries) - 1, metrics)
    for reference in references:
        colour = style.colour_of_method(reference.number)
        entries.append(Entry(reference.short, reference.title, colour, "dot", reference.method in shown))
        traces += _reference_traces(len(entries) - 1, reference.short, within(reference.curve, last))
    several = any(len(group.runs) > 1 for group in groups)
    choices = {"metric": metrics} if has_success else {}
    choices |= {"statistic": list(STATISTICS), "x": list(X_AXES.values())}
    if several:
        names = ["seeds", "no seeds"]
        choices["seeds"] = names if len(groups) <= _FEW_GROUPS else names[::-1]
    y_titles = Y_TITLES if has_success else {"": Y_TITLES["return"]}
    return Chart(entries, traces, choices, X_TITLES, y_titles)


def speed_chart(groups: Sequence[Group]) -> Chart | None:
    """Return the speed of each run of one task over its hours of training, None if there is none."""
    entries: list[Entry] = []
    traces: list[Trace] = []
    for group in groups:
        timed = [run for run in group.runs if len(run.speeds)]
        if not timed:
            continue
        entries.append(Entry(group.short, group.title, style.colour(group.setting), style.dash(group.setting)))
        for run in timed:  # a row tells the speed since the one before
            x, y = (_numbers(medians(values)) for values in (run.speed_hours, run.speeds))
            traces.append(Trace(len(entries) - 1, hover_text(run.path.name), {}, x, y, kind="run"))
    titles = {"": X_TITLES["time"]}, {"": "frames per second"}
    return Chart(entries, traces, {}, *titles, height=250) if traces else None


def medians(values: np.ndarray) -> np.ndarray:
    """Return the medians of at most 300 windows of consecutive values, [M] -> [min(M, 300)]."""
    windows = np.array_split(values, min(len(values), _SPEED_POINTS))
    return np.array([np.median(window) for window in windows])


def curve_traces(entry: int, name: str, view: dict[str, str], curve: Curve, kind: str = "curve") -> list[Trace]:
    """Return a curve as traces: what all seeds have reached, and what lies beyond, if anything."""
    made = Trace(entry, hover_text(name), view, _numbers(curve.x), _numbers(curve.y), kind=kind)
    if curve.low is not None and curve.high is not None:
        made.low, made.high = _numbers(curve.low), _numbers(curve.high)
    x, y = curve.beyond
    beyond = Trace(entry, hover_text(f"{name}: not all seeds"), view, _numbers(x), _numbers(y), kind="beyond")
    return [one for one in (made, beyond) if one.x]


def hover_text(text: str) -> str:
    """Return a text as plotly shows it when hovering: wrapped, and none of it taken for markup or a template."""
    lines = textwrap.wrap(text.replace("%{", "% {"), 80)
    return "<br>".join(html.escape(line, quote=False) for line in lines)


def _group_traces(group: Group, entry: int, metrics: Sequence[str]) -> list[Trace]:
    found = []
    for metric in metrics:
        for x_axis, x_name in X_AXES.items():
            view = {"metric": metric, "x": x_name}
            for name, function in STATISTICS.items():
                curve = group_curve(group.runs, function, x_axis, METRICS[metric])
                found += curve_traces(entry, group.title, view | {"statistic": name}, curve)
            for run in group.runs if len(group.runs) > 1 else ():
                x, y = (_numbers(thinned(values, MAX_POINTS)) for values in series(run, x_axis, METRICS[metric]))
                name = hover_text(f"seed {run.seed}, {run.path.name}")
                found.append(Trace(entry, name, view | {"seeds": "seeds"}, x, y, kind="seed"))
    return found


def _reference_traces(entry: int, name: str, curve: Published) -> list[Trace]:
    view = {"metric": "return", "x": "frames"}
    return curve_traces(entry, name, view, Curve(curve["frame"], curve["mean"], curve["min"], curve["max"]))


def _numbers(values: np.ndarray) -> list[float]:
    """Return numbers as JSON shows them in few characters."""
    rounded = (float(f"{value:.{_DIGITS}g}") if abs(value) < 1e5 else round(float(value)) for value in values)
    return [int(value) if float(value).is_integer() else value for value in rounded]
