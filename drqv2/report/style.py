"""How charts look: colours and dashes by which a setting is known, and the style of all static plots."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

INK, SOFT, GRID, EDGE = "#1c2430", "#68727f", "#e6e9ed", "#c3c9d0"
GREY = "#8a94a1"
_COLOURS = ("#1f6feb", "#d9730d", "#2f9e6e", "#8250df", "#c2255c", "#0b7285", "#7c5e10", "#495057")
_DASHES = ("solid", "dash", "dot", "dashdot")  # plotly's names
_LINES = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}  # matplotlib's
_OTHERS = ("#a3653b", "#5f8f8f", "#9a6fa0", "#8a8f3c", "#b0646c", "#5c7fa8")  # of other methods

# matplotlib's settings for every static plot, those of tools/ and of pages: plt.rcParams.update(MATPLOTLIB)
MATPLOTLIB: dict[Any, Any] = {
    "axes.prop_cycle": f"cycler('color', {list(_COLOURS)})",
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


def colour(index: int) -> str:
    """Return the colour of setting `index`."""
    return _COLOURS[index % len(_COLOURS)]


def colour_of_method(index: int) -> str:
    """Return the colour of the curves of another method."""
    return _OTHERS[index % len(_OTHERS)]


def dash(index: int) -> str:
    """Return the dash of setting `index`, which tells it from earlier ones of the same colour."""
    return _DASHES[index // len(_COLOURS) % len(_DASHES)]


def line(name: str) -> str:
    """Return matplotlib's name of a dash."""
    return _LINES[name]


def seeds(numbers: Iterable[int]) -> str:
    """Return which seeds these are, for a title: "seed 1", "seeds 1, 2, 3"."""
    every = sorted(set(numbers))
    return f"seed{'s' if len(every) > 1 else ''} {', '.join(map(str, every))}"


def thousands(value: float, _: object = None) -> str:
    """Return a number of frames in few characters, as an axis shows it: 20k, 1.1M."""
    return f"{value / 1e6:g}M" if abs(value) >= 1e6 else f"{value / 1e3:g}k" if abs(value) >= 1e3 else f"{value:g}"


def draw_published(axes: Any, curve: Any, label: str) -> Any:
    """Draw DrQ-v2's published curve as in every chart: the mean dotted, over the range of the seeds.

    Args:
        axes: matplotlib's.
        curve: arrays or lists by the names frame, mean, min and max.
        label: of the mean in the legend.

    Returns:
        The line of the mean.
    """
    axes.fill_between(curve["frame"], curve["min"], curve["max"], color=GREY, alpha=0.2, linewidth=0)
    return axes.plot(curve["frame"], curve["mean"], color=GREY, linestyle=":", linewidth=1.2, label=label)[0]
