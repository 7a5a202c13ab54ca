"""Differences between two settings, from pairs of runs with the same task and seed, and what is compared: areas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from drqv2.evaluation.statistics import (
    Interval,
    improvement_interval,
    mean_over_tasks,
    probability_of_improvement,
    stratified_interval,
)
from drqv2.report.curves import series
from drqv2.report.runs import Run

Pair = tuple[str, int]  # task and seed


class Difference(NamedTuple):
    """Statistics of two settings from pairs of runs.

    Attributes:
        pairs: how many there are.
        tasks: how many tasks they are of.
        mean: mean over tasks of the mean difference; NaN without a pair.
        bounds: its 95 % bootstrap confidence interval; None with fewer than three pairs of a task.
        better: probability that a run of the other setting is better than one of the first on the same task.
        better_bounds: its interval.
    """

    pairs: int
    tasks: int
    mean: float
    bounds: Interval | None = None
    better: float = float("nan")
    better_bounds: Interval | None = None


def difference(first: Mapping[Pair, float], other: Mapping[Pair, float]) -> Difference:
    """Compare the values of `other` and `first` over the pairs that both have.

    All tasks weigh alike. Seeds are resampled within each task (Agarwal et al., NeurIPS 2021, section 4.1).

    Args:
        first: a value for each task and seed, such as a return; NaN counts as none.
        other: the same.
    """
    strata: dict[str, list[tuple[float, float]]] = {}
    for pair in first.keys() & other.keys():
        if np.isfinite(first[pair]) and np.isfinite(other[pair]):
            strata.setdefault(pair[0], []).append((first[pair], other[pair]))
    if not strata:
        return Difference(0, 0, float("nan"))
    # Sorted, so that the same pairs give the same resamples.
    values = [np.array(sorted(strata[task], key=lambda pair: (pair[1] - pair[0], pair))) for task in sorted(strata)]
    gains = [own[:, 1] - own[:, 0] for own in values]
    before, after = ([own[:, i] for own in values] for i in range(2))
    return Difference(
        sum(map(len, values)),
        len(values),
        float(mean_over_tasks(gains)),
        stratified_interval(gains, mean_over_tasks),
        float(probability_of_improvement(after, before)),
        improvement_interval(after, before),
    )


def area(run: Run, end: float) -> float:
    """Return the area under a run's curve up to frame `end`, divided by these frames: a mean over frames.

    The curve is linear between evaluations and begins with the first. NaN if the run did not get as far as `end`, or
    has no evaluation before it.
    """
    frames, own = series(run, "frames", "returns")
    if not len(frames) or not frames[0] < end <= frames[-1]:
        return float("nan")
    before = frames < end
    x, y = np.append(frames[before], end), np.append(own[before], np.interp(end, frames, own))
    return float(np.trapezoid(y, x) / (end - frames[0]))
