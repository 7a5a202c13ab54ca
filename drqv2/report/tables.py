"""Read tables and JSON lines that may be damaged, half written or absent."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from drqv2.config.formatting import counted


def read_table(path: Path, names: Sequence[str], faults: list[str]) -> list[tuple[dict[str, str], list[float]]]:
    """Return the rows of a CSV file, each with its columns `names` as numbers; none if the file does not exist.

    Lines that start with # are comments. Rows in which one of these is not a finite number are skipped and added to
    `faults`.
    """
    good, bad = [], 0
    try:
        rows = list(csv.DictReader(line for line in _lines(path, faults) if not line.startswith("#")))
    except csv.Error as e:
        faults.append(f"{path.name} is damaged ({e})")
        rows = []
    for row in rows:
        try:
            values = [float(row[name]) for name in names]
        except (KeyError, TypeError, ValueError):
            values = [math.nan]
        if all(map(math.isfinite, values)):
            good.append((row, values))
        else:
            bad += 1
    if bad:
        faults.append(f"{counted(bad, 'damaged row')} in {path.name}")
    return good


def number(row: dict[str, str], name: str) -> float:
    """Return a row's number in a column; NaN where there is no such column, or no finite number in it."""
    try:
        value = float(row.get(name) or "nan")
    except (TypeError, ValueError):
        return math.nan
    return value if math.isfinite(value) else math.nan


def read_json_lines(path: Path, faults: list[str]) -> list[dict[str, Any]]:
    """Return the objects in a file of JSON lines; none if it does not exist. Other lines are added to `faults`."""
    good: list[dict[str, Any]] = []
    bad = 0
    for line in _lines(path, faults):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict):
            good.append(value)
        else:
            bad += 1
    if bad:
        faults.append(f"{counted(bad, 'damaged line')} in {path.name}")
    return good


def _lines(path: Path, faults: list[str]) -> list[str]:
    try:
        return path.read_text("utf-8", errors="replace").splitlines()
    except FileNotFoundError:  # the run has just started
        return []
    except OSError as e:
        faults.append(f"{path.name} cannot be read ({e.strerror})")
        return []
