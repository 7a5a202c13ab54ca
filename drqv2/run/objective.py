"""What a run returns to a sweep: a column of its eval.csv or train.csv."""

from __future__ import annotations

import csv
from collections.abc import Collection
from pathlib import Path
from typing import Protocol

import numpy as np

from drqv2.config.formatting import did_you_mean
from drqv2.errors import UserError
from drqv2.run import protocol
from drqv2.run.stats import EvalStats


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


class Run(protocol.Run, Protocol):
    """What the check needs of a run."""

    collect_phases: tuple[str, ...]


class ColumnCheck:
    """Warns once if the logs do not have what a sweep wants: at the end of the run it would be too late.

    Args:
        objective: the column; None: nothing is checked.
    """

    def __init__(self, objective: str | None) -> None:
        self._objective = objective
        self._checked = False

    def after(self, run: Run, stats: EvalStats) -> None:
        """Check after an evaluation."""
        if not self._objective or self._checked:
            return
        log, column = split(self._objective)
        if log == "eval":
            found = [*(key.replace("/", "_") for key in stats.metrics), "frame", "total_time", "episode", "step"]
        else:
            found = columns(run.work_dir, log)
            learns = bool(found) and run.progress.gradient_step > 0
            ended = any(name.startswith("episode_reward") for name in found)
            if column not in found and not (learns and (ended or not run.collect_phases)):
                return  # more columns are to come
        self._checked = True
        if column not in found:
            print(f"warning: {missing(self._objective, found)}")
