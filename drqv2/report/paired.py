"""Differences between two settings, from pairs of runs with the same task and seed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from drqv2.evaluation.over_tasks import improvement_interval, mean_over_tasks, probability_of_improvement
from drqv2.evaluation.statistics import Interval, stratified_interval

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
