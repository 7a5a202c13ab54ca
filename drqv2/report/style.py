"""Colours and dashes by which a setting is known in all charts."""

from __future__ import annotations

_COLOURS = ("#1f6feb", "#d9730d", "#2f9e6e", "#8250df", "#c2255c", "#0b7285", "#7c5e10", "#495057")
_DASHES = ("solid", "dash", "dot", "dashdot")  # plotly's names
_LINES = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}  # matplotlib's
GREY = "#8a94a1"
_OTHERS = ("#a3653b", "#5f8f8f", "#9a6fa0", "#8a8f3c", "#b0646c", "#5c7fa8")  # of other methods


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
