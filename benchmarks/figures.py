"""Static figures: the style of all of them, and what several of them share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt

from drqv2.report.charts import COLOURS, GREY

INK, SOFT, GRID, EDGE = "#1c2430", "#68727f", "#e6e9ed", "#c3c9d0"
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
