"""Settings compared at the last frame that all of their runs have reached."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from drqv2.evaluation.over_tasks import (
    improvement_interval,
    iqm_over_tasks,
    mean_over_tasks,
    optimality_gap,
    performance_profile,
    probability_of_improvement,
)
from drqv2.evaluation.statistics import Interval, Strata, stratified_interval
from drqv2.report import charts
from drqv2.report.charts import Chart, Entry
from drqv2.report.curves import Curve
from drqv2.report.scores import CommonFrame, Scores, common_frame

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
