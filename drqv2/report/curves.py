"""Curves over the seeds of a group, and values at given frames."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from drqv2.evaluation.statistics import Interval, Statistic, Strata, StrataStatistic, stratified_interval
from drqv2.report.runs import Run

MAX_POINTS = 400  # per curve
Series = tuple[np.ndarray, np.ndarray]  # of a seed: frames or hours [M], and values [M]


class Curve(NamedTuple):
    """A metric over frames or hours.

    Attributes:
        x: frames or hours that all seeds have reached, [N].
        y: the metric, [N].
        low: lower bound of its interval, [N]; None without one.
        high: upper bound.
        beyond: x and y [M] from the last of these points on, where only some of the seeds have arrived; empty where
            all end together.
    """

    x: np.ndarray
    y: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    beyond: tuple[np.ndarray, np.ndarray] = (np.zeros(0), np.zeros(0))


def group_curve(runs: Sequence[Run], statistic: Statistic, x_axis: str, metric: str = "returns") -> Curve:
    """Return a statistic over seeds with its 95 % bootstrap confidence interval.

    Args:
        runs: runs of one group; those without an evaluation are ignored.
        statistic: `statistics.mean` or `iqm`.
        x_axis: "frames" or "hours".
        metric: "returns" or "success".
    """
    seeds = [seed for run in runs if len((seed := series(run, x_axis, metric))[0])]
    if not seeds:
        return Curve(np.zeros(0), np.zeros(0))
    return curve_over_seeds([seeds], lambda strata: statistic(strata[0]), MAX_POINTS)


def curve_over_seeds(
    tasks: Sequence[Sequence[Series]],
    statistic: StrataStatistic,
    most: int,
    interval: Callable[[Strata], Interval | None] | None = None,
) -> Curve:
    """Return the curve of a statistic over the seeds of one or more tasks, linear between a seed's evaluations.

    A seed that has not arrived yet could move the curve by its absence alone. So the curve, with its interval, begins
    where all seeds have begun and ends where the first of them ends. It continues, as `beyond`, as far as half of the
    seeds of every task.

    Args:
        tasks: the seeds of each task, at least one.
        statistic: over seeds and tasks.
        most: number of points at most.
        interval: of the statistic, from values [seeds, N] of each task; None: a bootstrap over the seeds.
    """
    begin, end = max(x[0] for seeds in tasks for x, _ in seeds), min(map(_half, tasks))
    x = np.unique(np.concatenate([x for seeds in tasks for x, _ in seeds]))
    x = thinned(x[(begin <= x) & (x <= end)], most)
    strata = [interpolated(seeds, x) for seeds in tasks]
    arrived = ~np.isnan(np.concatenate(strata)).any(0)
    common = [own[:, arrived] for own in strata]
    y = statistic(common)
    low, high = (interval(common) if interval else stratified_interval(common, statistic)) or (None, None)
    if arrived.all():
        return Curve(x, y, low, high)
    left = [[own[~np.isnan(own[:, i]), i] for own in strata] for i in np.flatnonzero(~arrived)]
    beyond = np.append(x[arrived][-1:], x[~arrived]), np.append(y[-1:], [statistic(own) for own in left])
    return Curve(x[arrived], y, low, high, beyond)


def interpolated(seeds: Sequence[Series], x: np.ndarray) -> np.ndarray:
    """Return the values of seeds at x [N], NaN before the first and beyond the last evaluation, [seeds, N]."""
    return np.stack([np.interp(x, own, values, left=np.nan, right=np.nan) for own, values in seeds])


def _half(seeds: Sequence[Series]) -> float:
    """Return the last x that half of the seeds have reached."""
    ends = sorted(x[-1] for x, _ in seeds)
    return float(ends[(len(ends) - 1) // 2])


def series(run: Run, x_axis: str, metric: str) -> Series:
    """Return the evaluations of a run that have a metric."""
    values: np.ndarray = getattr(run, metric)
    known = np.isfinite(values)
    return getattr(run, x_axis)[known], values[known]


def thinned(values: np.ndarray, most: int) -> np.ndarray:
    """Return at most `most` of the values, evenly chosen, the first and the last among them."""
    if len(values) <= most:
        return values
    return values[np.unique(np.linspace(0, len(values) - 1, most).round().astype(int))]


def value_at(run: Run, frame: int, metric: str = "returns") -> float:
    """Return the value at a run's last evaluation up to `frame`; NaN if the run did not get that far.

    A run that stop_return has ended keeps its last value: otherwise the seeds that were good enough would not count.
    """
    frames, own = series(run, "frames", metric)
    slack = run.frames_per_round  # an evaluation may be this late, and the last one this early
    index = int(np.searchsorted(frames, frame + slack, side="right")) - 1
    return float(own[index]) if index >= 0 and (run.stopped or frames[-1] >= frame - slack) else float("nan")


def values_at(runs: Sequence[Run], frame: int, metric: str = "returns") -> np.ndarray:
    """Return the values at the last evaluation up to `frame` of the runs that got that far, [runs]."""
    values = np.array([value_at(run, frame, metric) for run in runs])
    return values[np.isfinite(values)]


def last_common(runs: Iterable[Run], metric: str = "returns") -> int | None:
    """Return the last frame that all runs with a metric have reached; None if none has it."""
    ends = [frames[-1] for run in runs if len(frames := series(run, "frames", metric)[0])]
    return int(min(ends)) if ends else None
