"""Runs of one task and one setting together: their curves, returns at given frames, and what looks wrong."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from drqv2.config.schema import show
from drqv2.errors import UserError
from drqv2.evaluation.statistics import interval
from drqv2.report.runs import Run, is_plausible, utf8_safe

Figure = Callable[[np.ndarray], np.ndarray]
_POINTS = 400  # of one curve, at most
_DEAD = 0.2  # share of what the others reach below which a seed is said not to learn


@dataclass
class Group:
    """Runs that differ in nothing but their seed.

    Attributes:
        task: their task.
        label: the keys in which they differ from most settings of the task.
        runs: in the order of their seeds.
    """

    task: str
    label: str
    runs: list[Run]


@dataclass
class Curve:
    """Return against frames or hours: x [N], y [N], and an interval [N] around it where there are several seeds."""

    x: np.ndarray
    y: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None


def group(runs: Iterable[Run]) -> list[Group]:
    """Return the runs by task and by setting, in the order of task names and of first runs."""
    tasks: dict[str, list[Run]] = {}
    for run in runs:
        tasks.setdefault(run.task, []).append(run)
    groups = []
    for task in sorted(tasks):
        names = sorted({name for run in tasks[task] for name in run.setting})
        differing = [n for n in names if len({show(run.setting.get(n)) for run in tasks[task]}) > 1]
        settings: dict[str, list[Run]] = {}
        for run in tasks[task]:
            settings.setdefault(repr([show(run.setting.get(n)) for n in differing]), []).append(run)
        # What most settings have goes without saying.
        usual = {
            n: Counter(show(s[0].setting.get(n)) for s in settings.values()).most_common(1)[0][0] for n in differing
        }
        for members in settings.values():
            values = {n: show(members[0].setting.get(n)) for n in differing}
            said = {n: value for n, value in values.items() if value != usual[n]}
            said = {
                n: v for n, v in said.items() if not (n.startswith("agent.") and said.get(n[6:]) == v)
            }  # lr, agent.lr
            label = ", ".join(f"{n}={value}" for n, value in said.items()) or ("all runs" if not values else "as most")
            groups.append(Group(task, utf8_safe(label), sorted(members, key=lambda run: _order(run.seed))))
    return groups


def _order(seed: Any) -> tuple[float, str]:
    return (float(seed), "") if is_plausible(seed) else (float("inf"), str(seed))


def seed_curve(run: Run, against: str) -> Curve:
    """Return a run's own curve, against "frames" or "hours", thinned."""
    return Curve(*downsample(getattr(run, against), run.returns))


def group_curve(runs: Sequence[Run], figure: Figure, against: str) -> Curve:
    """Return a figure over seeds with its 95 % bootstrap interval.

    Args:
        runs: of one group; those without an evaluation are left out.
        figure: `statistics.mean` or `iqm`.
        against: "frames" or "hours". A seed counts from its first evaluation to its last, in between along straight
            lines; the curve goes as far as at least half of the seeds do.
    """
    runs = [run for run in runs if len(run.frames)]
    if not runs:
        return Curve(np.zeros(0), np.zeros(0))
    ends = sorted(getattr(run, against)[-1] for run in runs)
    end = ends[(len(ends) - 1) // 2]
    x = np.unique(np.concatenate([getattr(run, against) for run in runs]))
    x = x[x <= end]
    if len(x) > _POINTS:
        x = x[np.unique(np.linspace(0, len(x) - 1, _POINTS).round().astype(int))]
    y = np.stack([np.interp(x, getattr(run, against), run.returns, right=np.nan) for run in runs])
    middle, low, high = np.empty(len(x)), np.empty(len(x)), np.empty(len(x))
    there = ~np.isnan(y)
    for pattern in np.unique(there, axis=1).T:  # stretches that the same seeds have come to
        places = (there == pattern[:, None]).all(0)
        values = y[pattern][:, places]
        middle[places] = figure(values)
        low[places], high[places] = interval(values, figure)
    return Curve(x, middle, low, high) if len(runs) > 1 else Curve(x, middle)


def downsample(x: np.ndarray, y: np.ndarray, most: int = _POINTS) -> tuple[np.ndarray, np.ndarray]:
    """Return at most `most` points of a curve, first, last and the extremes of each stretch among them."""
    if len(x) <= most:
        return x, y
    kept = {0, len(x) - 1}
    for stretch in np.array_split(np.arange(len(x)), (most - 2) // 2):
        kept |= {int(stretch[np.argmin(y[stretch])]), int(stretch[np.argmax(y[stretch])])}
    places = sorted(kept)
    return x[places], y[places]


def returns_at(runs: Sequence[Run], frame: int) -> np.ndarray:
    """Return the seeds' returns at the last evaluation up to a frame, [seeds that have come that far]."""
    values = []
    for run in runs:
        late = run.round  # an evaluation comes up to so much late, a run's end as early
        place = int(np.searchsorted(run.frames, frame + late, side="right")) - 1
        if place >= 0 and run.frames[-1] >= frame - late:
            values.append(run.returns[place])
    return np.array(values)


def read_published(path: Path, faults: list[str]) -> dict[str, dict[str, np.ndarray]]:
    """Return the published curves by task: arrays frame, mean, min, max and n_seeds, each [N].

    Args:
        path: the file.
        faults: gets a line about the rows that are left out because they cannot be read.

    Raises:
        UserError: the file cannot be read, or is another table.
    """
    names = ("frame", "mean", "min", "max", "n_seeds")
    found: dict[str, list[list[float]]] = {}
    bad = 0
    try:
        with path.open(newline="", encoding="utf-8", errors="replace") as f:
            table = csv.DictReader(f)
            if lacking := [name for name in ("task", *names) if name not in (table.fieldnames or ())]:
                raise UserError(f"published={path}: no table of task, {', '.join(names)} (no {', '.join(lacking)})")
            for row in table:
                try:
                    values = [float(row[name]) for name in names]
                except (TypeError, ValueError):  # the row ends early, or holds no number
                    values = []
                if values and all(map(is_plausible, values)):
                    found.setdefault(row["task"], []).append(values)
                else:
                    bad += 1
    except (OSError, csv.Error) as e:
        raise UserError(f"published={path}: cannot be read ({e})") from e
    if bad:
        faults.append(f"published={path}: {bad} damaged rows")
    return {task: dict(zip(names, np.array(rows).T, strict=True)) for task, rows in found.items()}


def warnings(group: Group, published: dict[str, np.ndarray] | None) -> list[str]:
    """Return what a reader of the group's curves should know, a sentence each."""
    found = []
    for run in group.runs:
        name = f"seed {run.seed} ({run.path.name})"
        if dead := _never_learnt(run, group.runs, published):
            found.append(f"{name} has not learnt: {dead}")
        for before, start in zip(run.starts, run.starts[1:], strict=False):
            words = (
                f"{name} was gone on with at frame {start.get('frame', 0):,} ({start.get('time', 'at no known time')})"
            )
            if before.get("commit") != start.get("commit"):
                words += f", by other code: {_short(before)} before, {_short(start)} after"
            found.append(words)
        if any(start.get("dirty") for start in run.starts):
            found.append(f"{name} was run by code that no commit holds")
        found += [f"{name}: {fault}" for fault in run.faults]
        if not len(run.frames):
            found.append(f"{name} has no evaluation yet")
    commits = {_short(run.starts[-1]) for run in group.runs if run.starts}
    if len(commits) > 1:
        found.append(f"its seeds were run by different commits: {', '.join(sorted(commits))}")
    seeds = [run.seed for run in group.runs]  # in their order
    if twice := dict.fromkeys(str(seed) for seed in seeds if seeds.count(seed) > 1):
        found.append(f"seed {', '.join(twice)} is there more than once")
    return found


def _never_learnt(run: Run, runs: Sequence[Run], published: dict[str, np.ndarray] | None) -> str:
    """Return why a seed is taken for dead, "" if it is not."""
    if len(run.frames) < 3:
        return ""
    end, own = run.frames[-1], float(run.returns[-3:].mean())
    others = [r for r in runs if r is not run and len(r.frames) >= 3]
    if others:
        theirs = float(np.median([np.interp(end, r.frames, r.returns) for r in others]))
        begun = float(np.median([r.returns[0] for r in others]))
        if theirs > begun and own - begun < _DEAD * (theirs - begun):
            return f"{own:.0f} where the other seeds have {theirs:.0f}"
    if published is not None and len(published["frame"]) > 1 and end >= published["frame"][1]:
        theirs = float(np.interp(end, published["frame"], published["mean"]))
        if theirs > 50 and own < _DEAD * theirs:
            return f"{own:.0f} where the published mean is {theirs:.0f}"
    return ""


def _short(start: dict[str, Any]) -> str:
    return str(start.get("commit") or "unknown")[:9]
