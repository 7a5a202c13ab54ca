"""All tasks together: which settings and tasks can be compared, and the interquartile mean of scores against frames.

Agarwal et al., Deep RL at the Edge of the Statistical Precipice (NeurIPS 2021).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from drqv2.config.formatting import counted
from drqv2.evaluation.statistics import (
    Interval,
    Strata,
    improvement_interval,
    iqm_over_tasks,
    mean_over_tasks,
    optimality_gap,
    performance_profile,
    probability_of_improvement,
    stratified_interval,
)
from drqv2.report import charts
from drqv2.report.charts import Chart, Entry
from drqv2.report.curves import Curve, curve_over_seeds
from drqv2.report.groups import Group
from drqv2.report.scores import CommonFrame, Scores, common_frame, score_of, scores_of

_POINTS = 50  # of a curve
_THRESHOLDS = np.linspace(0, 1, 101)
_STATISTICS = (iqm_over_tasks, mean_over_tasks, optimality_gap)


class Row(NamedTuple):
    """A row of the table: a setting's statistics over tasks, with their intervals.

    Attributes:
        short: the setting's short label.
        label: its full label.
        seeds: the number of seeds of each task.
        cells: interquartile mean, mean, optimality gap.
        better: the probability that a run is better than one of the first setting; "" of the first itself.
    """

    short: str
    label: str
    seeds: str
    cells: list[str]
    better: str


class Comparison(NamedTuple):
    """Settings at a common frame.

    Attributes:
        common: the frame.
        profile: the fraction of scores above a threshold.
        rows: one for each setting.
    """

    common: CommonFrame
    profile: Chart
    rows: list[Row]


@dataclass
class Aggregate:
    """The aggregate over all tasks that the page shows.

    Attributes:
        tasks: the tasks that count, with what their score is.
        curve: interquartile mean of the scores against frames.
        comparison: the settings at the last frame that all runs have reached; None if there is no such frame.
        unscored: tasks without a known score.
        left_out: settings and tasks that are left out, and why.
    """

    tasks: dict[str, str]
    curve: Chart
    comparison: Comparison | None
    unscored: list[str]
    left_out: list[str] = field(default_factory=list)


def aggregate(tasks: Mapping[str, Sequence[Group]]) -> Aggregate | None:
    """Return the aggregate of all settings over the tasks that most of them share; None with fewer than two tasks.

    Only settings with the same tasks can be compared. So the tasks are those of as many settings as possible, at least
    two, and settings that lack one of them are left out.

    Args:
        tasks: groups by task.
    """
    kinds = {task: score_of(groups) for task, groups in tasks.items()}
    unscored = sorted(task for task, kind in kinds.items() if not kind)
    settings = scores_of(tasks, kinds)
    sets = Counter(frozenset(scores.tasks) for scores in settings if len(scores.tasks) > 1)
    if not sets:
        return None
    chosen = max(sets, key=lambda names: (sum(names <= set(s.tasks) for s in settings), len(names), sorted(names)))
    counted = {task: kinds[task] for task in tasks if task in chosen}
    left_out = _left_out(tasks, settings, chosen)
    if others := sorted({task for task, kind in kinds.items() if kind} - chosen):
        left_out.append(f"the tasks {_some(others)}: not all of the settings shown have them")
    shown = [Scores(s.group, {task: s.tasks[task] for task in counted}) for s in settings if chosen <= set(s.tasks)]
    entries = [_entry(scores) for scores in shown]
    curves = []
    for i, scores in enumerate(shown):
        curve = curve_over_seeds(scores.strata, iqm_over_tasks, _POINTS)
        curves += charts.curve_traces(i, scores.group.label, {}, curve)
    titles = {"": charts.X_TITLES["frames"]}, {"": "IQM of scores"}
    chart = Chart(entries, curves, {}, *titles, height=320)
    return Aggregate(counted, chart, compare(shown, entries), unscored, left_out)


def _left_out(tasks: Mapping[str, Sequence[Group]], settings: Sequence[Scores], chosen: frozenset[str]) -> list[str]:
    """Return which settings are not compared on the chosen tasks, and why."""
    lacking = [(s.group.short, chosen - set(s.tasks)) for s in settings]
    scored = {s.group.setting for s in settings}
    without = {g.setting: g.short for groups in tasks.values() for g in groups if g.setting not in scored}
    found = [f"{name}: no scores on {_some(missing)}" for name, missing in lacking if missing]
    return found + [f"{name}: no scores" for _, name in sorted(without.items())]


def _entry(scores: Scores) -> Entry:
    group = scores.group
    title = f"{group.label} ({counted(len(scores.tasks), 'task')}, seeds of each: {scores.described()})"
    return Entry.of(group, title)


def _some(names: Sequence[str] | set[str] | frozenset[str]) -> str:
    ordered = sorted(names)
    return ", ".join(ordered[:5]) + (f" and {len(ordered) - 5} more" if len(ordered) > 5 else "")


def compare(settings: Sequence[Scores], entries: Sequence[Entry]) -> Comparison | None:
    """Return the comparison of settings with the same tasks; None if there is no frame that all runs have.

    Args:
        settings: their scores.
        entries: their legend entries.
    """
    common = common_frame(settings)
    if common is None:
        return None
    rows, traces = [], []
    first = settings[0].at(common.frame)
    for i, one in enumerate(settings):
        scores = one.at(common.frame)
        cells = [written(float(of(scores)), stratified_interval(scores, of), 2) for of in _STATISTICS]
        better = _improvement(scores, first) if i else ""
        rows.append(Row(one.group.short, one.group.label, one.described(), cells, better))
        traces += charts.curve_traces(i, one.group.label, {}, _profile(scores), "steps")
    titles = {"": "score τ"}, {"": "fraction of runs above τ"}
    return Comparison(common, Chart(list(entries), traces, {}, *titles, height=320), rows)


def improvement(first: Scores, other: Scores) -> tuple[str, float | None]:
    """Return the probability that a run of `other` is better than one of `first`, and the frame of the comparison.

    Args:
        first: values of one setting.
        other: those of another on the same tasks.

    Returns:
        The probability with its interval at the last frame that the runs of both have reached, and this frame; "" and
        None if there is none.
    """
    common = common_frame([first, other])
    if common is None:
        return "", None
    return _improvement(other.at(common.frame), first.at(common.frame)), common.frame


def written(value: float, bounds: Interval | None, digits: int) -> str:
    """Return a value with its interval, if there is one."""
    between = "" if bounds is None else f" [{', '.join(f'{bound:.{digits}f}' for bound in bounds)}]"
    return f"{value:.{digits}f}{between}"


def _improvement(scores: Strata, first: Strata) -> str:
    return written(float(probability_of_improvement(scores, first)), improvement_interval(scores, first), 2)


def _profile(scores: Strata) -> Curve:
    def profile(strata: Strata) -> np.ndarray:
        return performance_profile(strata, _THRESHOLDS)

    low, high = stratified_interval(scores, profile) or (None, None)
    return Curve(_THRESHOLDS, profile(scores), low, high)
