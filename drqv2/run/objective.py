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


def value(objective: str, work_dir: Path, num_frames: int) -> float:
    """Return the newest value of a column of eval.csv, or the mean of one of train.csv after a fifth of the run.

    Args:
        objective: the column: NAME or eval/NAME, or train/NAME; slashes in NAME may be underscores.
        work_dir: the run's directory.
        num_frames: environment frames of the whole run.

    Raises:
        UserError: there is no such column.
    """
    log, name = split(objective)
    path = work_dir / f"{log}.csv"
    rows = list(csv.DictReader(path.read_text().splitlines())) if path.is_file() else []
    if log == "train":
        rows = [row for row in rows if 5 * float(row["frame"]) > num_frames]
    values = [float(row[name]) for row in rows if row.get(name)]
    if not values:
        raise missing(objective, [column for column, x in rows[-1].items() if x] if rows else [])
    return values[-1] if log == "eval" else float(np.mean(values))


def missing(objective: str, columns: Collection[str]) -> UserError:
    """Return the error for a column that a log with these columns does not have."""
    log, name = split(objective)
    near = did_you_mean(name, columns)
    return UserError(f"objective={objective}: {log}.csv has no value of {name}{near}\nIt has {', '.join(columns)}")
