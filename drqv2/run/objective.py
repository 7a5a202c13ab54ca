"""What a run returns to a sweep: a column of its eval.csv or train.csv."""

from __future__ import annotations

import csv
from collections.abc import Collection
from pathlib import Path

import numpy as np

from drqv2.config.formatting import did_you_mean
from drqv2.errors import UserError


def split(objective: str) -> tuple[str, str]:
    """Return the log, eval or train, and the column that `objective` names."""
    log, _, name = objective.partition("/")
    if log not in ("eval", "train") or not name:
        log, name = "eval", objective
    return log, name.replace("/", "_")


def value(objective: str, work_dir: Path) -> float:
    """Return the newest value of a column of eval.csv, or the mean of one of train.csv after a fifth of the run.

    If the run was stopped early, a fifth of what it has done counts.

    Args:
        objective: the column: NAME or eval/NAME, or train/NAME; slashes in NAME may be underscores.
        work_dir: the run's directory.

    Raises:
        UserError: there is no such column, or nothing in it after a fifth of the run.
    """
    log, name = split(objective)
    rows = _rows(work_dir, log)
    after = 0.0 if log == "eval" or not rows else float(rows[-1]["frame"]) / 5
    values = [float(row[name]) for row in rows if row.get(name) and (log == "eval" or float(row["frame"]) > after)]
    if not values and name in _columns(rows):
        raise UserError(f"objective={objective}: train.csv has no value of {name} after the first fifth of the run")
    if not values:
        raise missing(objective, _columns(rows))
    return values[-1] if log == "eval" else float(np.mean(values))


def columns(work_dir: Path, log: str) -> list[str]:
    """Return the columns of a log, eval or train, that have values so far."""
    return _columns(_rows(work_dir, log))


def _rows(work_dir: Path, log: str) -> list[dict[str, str]]:
    path = work_dir / f"{log}.csv"
    return list(csv.DictReader(path.read_text().splitlines())) if path.is_file() else []


def _columns(rows: list[dict[str, str]]) -> list[str]:
    return list(dict.fromkeys(column for row in rows for column, x in row.items() if x))


def missing(objective: str, columns: Collection[str]) -> UserError:
    """Return the error for a column that a log with these columns does not have."""
    log, name = split(objective)
    near = did_you_mean(name, columns)
    return UserError(f"objective={objective}: {log}.csv has no value of {name}{near}\nIt has {', '.join(columns)}")
