"""Interactive charts as data: charts.js draws them with plotly, below them a legend of HTML."""

from __future__ import annotations

import html
import json
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

import numpy as np

from drqv2.config.formatting import counted
from drqv2.evaluation.statistics import iqm, mean
from drqv2.report.curves import MAX_POINTS, Curve, group_curve, series, thinned
from drqv2.report.groups import Group
from drqv2.report.published import DRQV2, Published, Reference, within

STATISTICS = {"mean": mean, "IQM": iqm}
X_AXES = {"frames": "frames", "hours": "time"}  # -> name of the button
X_TITLES = {"frames": "environment frames", "time": "hours of training"}
Y_TITLES = {"return": "evaluation return", "success": "success rate"}
METRICS = {"return": "returns", "success": "success"}  # -> attribute of a run
_FEW_GROUPS = 6  # up to here a chart shows the curve of each seed from the start
_DIGITS = 5  # of a number in a chart
GREY = "#8a94a1"
COLOURS = ("#1f6feb", "#d9730d", "#2f9e6e", "#8250df", "#c2255c", "#0b7285", "#7c5e10", "#495057")
DASHES = ("solid", "dash", "dot", "dashdot")  # plotly's names; they tell settings of the same colour apart
_OTHERS = ("#a3653b", "#5f8f8f", "#9a6fa0", "#8a8f3c", "#b0646c", "#5c7fa8")  # of other methods


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

    @classmethod
    def of(cls, group: Group, title: str = "") -> Entry:
        """Return the entry of a group; its title is the group's, if none is given."""
        colour, dash = colour_of_setting(group.setting)
        return cls(group.short, title or group.title, colour, dash)


@dataclass
class Trace:
    """One curve, with its interval.

    Attributes:
        entry: index of its legend entry.
        name: text shown by hovering.
        view: the choices under which it is drawn, such as {"metric": "return"}; other choices do not matter to it.
        x: [N]; numbers, or the names of categories.
        y: [N].
        low: [N], or empty without an interval.
        high: [N], or empty.
        kind: "curve", "beyond" (dotted: what not all seeds have reached), "seed" (thin), "steps" (each value
            holds until the next), "points" (with a marker at each value).
    """

    entry: int
    name: str
    view: dict[str, str]
    x: list[float] | list[str]
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
        entries.append(Entry(DRQV2, f"{DRQV2}: mean and range of {count}", GREY, "dot"))
        traces += _reference_traces(0, DRQV2, within(published, last))
    for group in groups:
        entries.append(Entry.of(group))
        traces += _group_traces(group, len(entries) - 1, metrics)
    for reference in references:
        colour, on = colour_of_method(reference.number), reference.method in shown
        entries.append(Entry(reference.short, reference.title, colour, "dot", on))
        traces += _reference_traces(len(entries) - 1, reference.short, within(reference.curve, last))
    several = any(len(group.runs) > 1 for group in groups)
    choices = {"metric": metrics} if has_success else {}
    choices |= {"statistic": list(STATISTICS), "x": list(X_AXES.values())}
    if several:
        names = ["seeds", "no seeds"]
        choices["seeds"] = names if len(groups) <= _FEW_GROUPS else names[::-1]
    y_titles = Y_TITLES if has_success else {"": Y_TITLES["return"]}
    return Chart(entries, traces, choices, X_TITLES, y_titles)


def history_chart(series: Mapping[str, Sequence[tuple[str, float]]]) -> Chart | None:
    """Return the ratios of benchmarks by their names, each with its day; None without any."""
    entries = [Entry(name, name, *colour_of_setting(i)) for i, name in enumerate(series)]
    traces = [
        Trace(i, name, {}, [day for day, _ in points], [ratio for _, ratio in points], kind="points")
        for i, (name, points) in enumerate(series.items())
    ]
    return Chart(entries, traces, {}, {"": ""}, {"": "times the baseline"}) if traces else None


def colour_of_setting(number: int) -> tuple[str, str]:
    """Return colour and dash of a setting by its number."""
    return COLOURS[number % len(COLOURS)], DASHES[number // len(COLOURS) % len(DASHES)]


def colour_of_method(number: int) -> str:
    """Return the colour of the curves of another method by its number."""
    return _OTHERS[number % len(_OTHERS)]


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
