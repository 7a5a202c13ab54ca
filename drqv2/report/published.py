"""Curves that others published: DrQ-v2's own, and those of other methods."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from drqv2.config.formatting import counted
from drqv2.errors import UserError
from drqv2.report.tables import number, read_table

Published = dict[str, np.ndarray]  # frame, mean, min, max and n_seeds, each [N]; of other methods, also std
DRQV2 = "DrQ-v2, published"  # in every legend and table
_NAMES = {"dreamerv3": "DreamerV3", "drqv2": "DrQ-v2", "mrq": "MR.Q", "tdmpc2": "TD-MPC2"}
_ALIASES = {"ball_in_cup_catch": "cup_catch"}  # dm_control's name, and that of cfgs/task


class Reference(NamedTuple):
    """The curve of a method on a task.

    Attributes:
        method: its name.
        source: where the curve is from, as the head of the file says.
        curve: its values.
        number: of the method in the file, by which it gets its colour.
    """

    method: str
    source: str
    curve: Published
    number: int

    @property
    def short(self) -> str:
        """The method, for a legend."""
        return f"{_NAMES.get(self.method, self.method.upper())}, published"

    @property
    def long(self) -> str:
        """The method, its source and the number of seeds, for a table."""
        return f"{self.short} ({', '.join([*self.source.split()[:1], self.seeds])})"

    @property
    def seeds(self) -> str:
        """How many seeds there are, in words."""
        return counted(int(self.curve["n_seeds"].max()), "seed")

    @property
    def title(self) -> str:
        """The same with the whole source, in words."""
        return f"{self.short}: mean and range of {self.seeds}. Source: {self.source or 'unknown'}"


def read_published(path: Path, faults: list[str]) -> dict[str, Published]:
    """Return the published curves by task: arrays frame, mean, min, max and n_seeds, each [N].

    Args:
        path: CSV file.
        faults: receives a line about skipped rows.

    Raises:
        UserError: the file has no such curves.
    """
    names = ("frame", "mean", "min", "max", "n_seeds")
    found: dict[str | None, list[list[float]]] = {}
    for row, values in read_table(path, names, faults):
        found.setdefault(row.get("task"), []).append(values)
    tasks = {task: dict(zip(names, np.array(rows).T, strict=True)) for task, rows in found.items() if task}
    if not tasks:
        raise UserError(f"published={path}: must have the columns task, {', '.join(names)}")
    return tasks


def read_references(path: Path, wanted: Sequence[str], faults: list[str]) -> dict[str, list[Reference]]:
    """Return curves of other methods by task, each task's ordered by method.

    Args:
        path: CSV file with the columns method, task, frames, seeds, mean, min and max, perhaps std (NaN without it).
            A comment at its head names the sources, as in `# ... Sources: METHOD SOURCE; METHOD SOURCE. ...`.
        wanted: methods of which there must be curves.
        faults: receives a line about skipped rows.

    Raises:
        UserError: the file has no such curves, or none of a method that is wanted.
    """
    names = ("frames", "mean", "min", "max", "seeds")
    found: dict[tuple[str, str], list[list[float]]] = {}
    for row, values in read_table(path, names, faults):
        if row.get("task") and row.get("method"):
            std = number(row, "std")
            found.setdefault((_ALIASES.get(row["task"], row["task"]), row["method"]), []).append([*values, std])
    methods = sorted({method for _, method in found})
    if missing := [method for method in wanted if method not in methods]:
        raise UserError(f"reference={missing[0]}: there is no such method; there are {', '.join(methods) or 'none'}")
    sources = _sources(path)
    columns = ("frame", "mean", "min", "max", "n_seeds", "std")
    tasks: dict[str, list[Reference]] = {}
    for (task, method), rows in sorted(found.items()):
        curve = dict(zip(columns, np.array(sorted(rows)).T, strict=True))
        tasks.setdefault(task, []).append(Reference(method, sources.get(method, ""), curve, methods.index(method)))
    return tasks


def within(curve: Published, last: float) -> Published:
    """Return a curve's points up to a frame, but at least two."""
    visible = curve["frame"] <= max(last, curve["frame"][:2].max())
    return {name: values[visible] for name, values in curve.items()}


def _sources(path: Path) -> dict[str, str]:
    """Return the source of each method that the comment at the head of a file names."""
    try:
        head = path.read_text("utf-8", errors="replace").partition("\n")[0]
    except OSError:
        return {}
    listed = head.partition("Sources:")[2].partition(". ")[0]
    pairs = (entry.strip().partition(" ") for entry in listed.split(";"))
    return {method: source for method, _, source in pairs if head.startswith("#")}
