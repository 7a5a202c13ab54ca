"""Differences between two settings, from pairs of runs with the same task and seed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from drqv2.evaluation.statistics import mean, stratified_interval

LEAST_PAIRS = 3  # of each task; fewer have no interval
Pair = tuple[str, int]  # task and seed


class Difference(NamedTuple):
    """A mean difference over pairs.

    Attributes:
        pairs: how many there are.
        mean: of their differences; NaN without a pair.
        low: lower bound of its 95 % bootstrap confidence interval; None with fewer than three pairs of a task.
        high: upper bound.
    """

    pairs: int
    mean: float
    low: float | None = None
    high: float | None = None

    @property
    def contains_zero(self) -> bool | None:
        """Whether the interval contains 0; None without an interval."""
        return None if self.low is None or self.high is None else self.low <= 0 <= self.high


def difference(first: Mapping[Pair, float], other: Mapping[Pair, float]) -> Difference:
    """Return the mean of `other` minus `first` over the pairs that both have.

    Seeds are resampled within each task (Agarwal et al., NeurIPS 2021, section 4.1), with all pairs weighted equally.

    Args:
        first: a value for each task and seed, such as a return; NaN counts as none.
        other: the same.
    """
    strata: dict[str, list[float]] = {}
    for task, seed in first.keys() & other.keys():
        found = other[task, seed] - first[task, seed]
        if np.isfinite(found):
            strata.setdefault(task, []).append(found)
    # Sorted, so that the same pairs give the same resamples.
    values = [np.sort(strata[task]) for task in sorted(strata)]
    if not values:
        return Difference(0, float("nan"))
    pooled = np.concatenate(values)
    made = Difference(len(pooled), float(pooled.mean()))
    if min(map(len, values)) < LEAST_PAIRS:
        return made
    low, high = stratified_interval(values, mean)
    return made._replace(low=float(low), high=float(high))
