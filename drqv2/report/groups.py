"""Groups of runs with the same task and settings: curves over seeds, returns at given frames, warnings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from drqv2.config.formatting import show
from drqv2.errors import UserError
from drqv2.evaluation.statistics import interval
from drqv2.report.runs import Run, read_table

Statistic = Callable[[np.ndarray], np.ndarray]
_MAX_POINTS = 400  # per curve
_NOT_LEARNT = 0.2  # a seed below this fraction of the others' return counts as not learning


@dataclass
class Group:
    """Runs that differ only in their seed.

    Attributes:
        task: name of the task.
        label: the keys in which the group differs from most groups of the task.
        runs: ordered by seed.
    """

    task: str
    label: str
    runs: list[Run]


class Curve(NamedTuple):
    """Return over frames or hours: x [N], y [N] and, with several seeds, a confidence interval, low and high [N]."""

    x: np.ndarray
    y: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None


def group(runs: Iterable[Run]) -> list[Group]:
    """Group the runs by task and settings, ordered by task name, then by first run."""
    tasks: dict[str, list[Run]] = {}
    for run in runs:
        tasks.setdefault(run.task, []).append(run)
    groups = []
    for task in sorted(tasks):
        names = sorted({name for run in tasks[task] for name in run.setting})
        differing = [n for n in names if len({show(run.setting.get(n)) for run in tasks[task]}) > 1]
        settings: dict[tuple[str, ...], list[Run]] = {}
        for run in tasks[task]:
            settings.setdefault(tuple(show(run.setting.get(n)) for n in differing), []).append(run)
        usual = [Counter(column).most_common(1)[0][0] for column in zip(*settings, strict=True)]
        for values, members in settings.items():
            row = zip(differing, values, usual, strict=True)
            unusual = {name: value for name, value, most_common in row if value != most_common}
            repeated = {n for n in unusual if n.startswith("agent.") and unusual.get(n[6:]) == unusual[n]}  # agent.lr
            label = ", ".join(f"{n}={value}" for n, value in unusual.items() if n not in repeated)
            label = label or ("default settings" if differing else "all runs")
            groups.append(Group(task, label, sorted(members, key=lambda run: run.seed)))
    return groups


def group_curve(runs: Sequence[Run], statistic: Statistic, x_axis: str) -> Curve:
    """Return a statistic over seeds with its 95 % bootstrap confidence interval.

    Args:
        runs: runs of one group; those without an evaluation are ignored.
        statistic: `statistics.mean` or `iqm`.
        x_axis: "frames" or "hours". Each seed is interpolated linearly from its first to its last evaluation. The
            curve extends as far as at least half of the seeds.
    """
    runs = [run for run in runs if len(run.frames)]
    if not runs:
        return Curve(np.zeros(0), np.zeros(0))
    ends = sorted(getattr(run, x_axis)[-1] for run in runs)
    end = ends[(len(ends) - 1) // 2]
    x = np.unique(np.concatenate([getattr(run, x_axis) for run in runs]))
    x = x[x <= end]
    if len(x) > _MAX_POINTS:
        x = x[np.unique(np.linspace(0, len(x) - 1, _MAX_POINTS).round().astype(int))]
    y = np.stack([np.interp(x, getattr(run, x_axis), run.returns, right=np.nan) for run in runs])  # [seeds, N]
    centre, low, high = np.empty(len(x)), np.empty(len(x)), np.empty(len(x))
    present = ~np.isnan(y)
    for pattern in np.unique(present, axis=1).T:  # ranges of x covered by the same seeds
        covered = (present == pattern[:, None]).all(0)
        values = y[pattern][:, covered]
        centre[covered] = statistic(values)
        low[covered], high[covered] = interval(values, statistic)
    return Curve(x, centre, low, high) if len(runs) > 1 else Curve(x, centre)


def returns_at(runs: Sequence[Run], frame: int) -> np.ndarray:
    """Return the returns at the last evaluation up to `frame` of the runs that got that far, [runs]."""
    values = []
    for run in runs:
        slack = run.frames_per_round  # an evaluation may be this late, and the last one this early
        index = int(np.searchsorted(run.frames, frame + slack, side="right")) - 1
        if index >= 0 and run.frames[-1] >= frame - slack:
            values.append(run.returns[index])
    return np.array(values)


def read_published(path: Path, faults: list[str]) -> dict[str, dict[str, np.ndarray]]:
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


def warnings(group: Group, published: dict[str, np.ndarray] | None) -> list[str]:
    """Return what a reader of the group's curves should know, one sentence each."""
    found = []
    for run in group.runs:
        name = f"seed {run.seed} ({run.path.name})"
        if reason := _not_learnt(run, group.runs, published):
            found.append(f"{name} has not learnt: {reason}")
        for before, start in zip(run.starts, run.starts[1:], strict=False):
            message = f"{name} was resumed at frame {start.get('frame', 0):,} ({start.get('time', 'at unknown time')})"
            if before.get("commit") != start.get("commit"):
                message += f" with different code: {_short(before)} before, {_short(start)} after"
            found.append(message)
        if any(start.get("dirty") for start in run.starts):
            found.append(f"{name} was run with uncommitted changes")
        found += [f"{name}: {fault}" for fault in run.faults]
        if not len(run.frames):
            found.append(f"{name} has no evaluation yet")
    commits = {_short(run.starts[-1]) for run in group.runs if run.starts}
    if len(commits) > 1:
        found.append(f"its seeds were run with different commits: {', '.join(sorted(commits))}")
    if repeated := [str(seed) for seed, count in Counter(run.seed for run in group.runs).items() if count > 1]:
        found.append(f"seed {', '.join(repeated)} occurs more than once")
    return found


def _not_learnt(run: Run, runs: Sequence[Run], published: dict[str, np.ndarray] | None) -> str:
    """Return why a seed counts as not learning; "" if it learns."""
    if len(run.frames) < 3:
        return ""
    end, own = run.frames[-1], float(run.returns[-3:].mean())
    others = [r for r in runs if r is not run and len(r.frames) >= 3]
    if others:
        theirs = float(np.median([np.interp(end, r.frames, r.returns) for r in others]))
        initial = float(np.median([r.returns[0] for r in others]))
        if theirs > initial and own - initial < _NOT_LEARNT * (theirs - initial):
            return f"its return is {own:.0f}, that of the other seeds {theirs:.0f}"
    if published is not None and len(published["frame"]) > 1 and end >= published["frame"][1]:
        theirs = float(np.interp(end, published["frame"], published["mean"]))
        if theirs > 50 and own < _NOT_LEARNT * theirs:
            return f"its return is {own:.0f}, the published mean {theirs:.0f}"
    return ""


def _short(start: dict[str, Any]) -> str:
    return str(start.get("commit") or "unknown")[:9]
