"""Curves over the seeds of a group, and values at given frames."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from drqv2.evaluation.statistics import Statistic, interval
from drqv2.report.runs import Run

MAX_POINTS = 400  # per curve


class Curve(NamedTuple):
    """A metric over frames or hours: x [N], y [N] and, with several seeds, a confidence interval, low and high [N]."""

    x: np.ndarray
    y: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None


def group_curve(
    runs: Sequence[Run], statistic: Statistic, x_axis: str, metric: str = "returns", most: int = MAX_POINTS
) -> Curve:
    """Return a statistic over seeds with its 95 % bootstrap confidence interval.

    Args:
        runs: runs of one group; those without an evaluation are ignored.
        statistic: `statistics.mean` or `iqm`.
        x_axis: "frames" or "hours". Each seed is interpolated linearly from its first to its last evaluation. The
            curve extends as far as at least half of the seeds.
        metric: "returns" or "success".
        most: number of points of the curve at most.
    """
    seeds = [seed for run in runs if len((seed := series(run, x_axis, metric))[0])]
    if not seeds:
        return Curve(np.zeros(0), np.zeros(0))
    ends = sorted(x[-1] for x, _ in seeds)
    end = ends[(len(ends) - 1) // 2]
    x = np.unique(np.concatenate([x for x, _ in seeds]))
    x = thinned(x[x <= end], most)
    y = np.stack([np.interp(x, own, values, right=np.nan) for own, values in seeds])  # [seeds, N]
    centre, low, high = np.empty(len(x)), np.empty(len(x)), np.empty(len(x))
    present = ~np.isnan(y)
    for pattern in np.unique(present, axis=1).T:  # ranges of x covered by the same seeds
        covered = (present == pattern[:, None]).all(0)
        values = y[pattern][:, covered]
        centre[covered] = statistic(values)
        low[covered], high[covered] = interval(values, statistic)
    return Curve(x, centre, low, high) if len(seeds) > 1 else Curve(x, centre)


def series(run: Run, x_axis: str, metric: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the evaluations of a run that have a metric: frames or hours [M], and values [M]."""
    values: np.ndarray = getattr(run, metric)
    known = np.isfinite(values)
    return getattr(run, x_axis)[known], values[known]


def thinned(values: np.ndarray, most: int) -> np.ndarray:
    """Return at most `most` of the values, evenly chosen, the first and the last among them."""
    if len(values) <= most:
        return values
    return values[np.unique(np.linspace(0, len(values) - 1, most).round().astype(int))]


def value_at(run: Run, frame: int, metric: str = "returns") -> float:
    """Return the value at a run's last evaluation up to `frame`; NaN if the run did not get that far."""
    frames, own = series(run, "frames", metric)
    slack = run.frames_per_round  # an evaluation may be this late, and the last one this early
    index = int(np.searchsorted(frames, frame + slack, side="right")) - 1
    return float(own[index]) if index >= 0 and frames[-1] >= frame - slack else float("nan")


def values_at(runs: Sequence[Run], frame: int, metric: str = "returns") -> np.ndarray:
    """Return the values at the last evaluation up to `frame` of the runs that got that far, [runs]."""
    values = np.array([value_at(run, frame, metric) for run in runs])
    return values[np.isfinite(values)]


def area(run: Run, end: float, metric: str = "returns") -> float:
    """Return the area under a run's curve up to frame `end`, divided by these frames: a mean over frames.

    The curve is linear between evaluations and begins with the first. NaN if the run did not get as far as `end`, or
    has no evaluation before it.
    """
    frames, own = series(run, "frames", metric)
    if not len(frames) or not frames[0] < end <= frames[-1]:
        return float("nan")
    before = frames < end
    x, y = np.append(frames[before], end), np.append(own[before], np.interp(end, frames, own))
    return float(np.trapezoid(y, x) / (end - frames[0]))


def last_values(runs: Sequence[Run], metric: str = "returns") -> np.ndarray:
    """Return the newest value of each run that has one, [runs]."""
    every = [series(run, "frames", metric)[1] for run in runs]
    return np.array([own[-1] for own in every if len(own)])
