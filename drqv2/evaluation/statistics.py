"""Statistics of returns over episodes or seeds, with bootstrap intervals, as defined by the package rliable.

Agarwal et al., Deep RL at the Edge of the Statistical Precipice (NeurIPS 2021). Statistics over several tasks are in
`over_tasks.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

LEAST = 3  # values of each stratum for an interval; one or two hardly tell how seeds vary
_RESAMPLES = 2000
_MOST_VALUES = 400_000  # resampled at once, which bounds the memory and fits into caches
Statistic = Callable[[np.ndarray], np.ndarray]  # [N, ...] -> [...]
Strata = Sequence[np.ndarray]  # [N_i, ...] each
StrataStatistic = Callable[[Strata], np.ndarray]  # -> [...]
Interval = tuple[np.ndarray, np.ndarray]  # lower and upper bound, [...] each


def mean(values: np.ndarray) -> np.ndarray:
    """Return the mean over the first axis."""
    return np.asarray(np.mean(values, axis=0))


def iqm(values: np.ndarray) -> np.ndarray:
    """Return the interquartile mean over the first axis: the mean without the lowest and the highest quarter.

    As in rliable and `scipy.stats.trim_mean(values, 0.25)`, a quarter is rounded down to whole values. So three values
    or fewer all count, and their IQM is their mean.
    """
    ordered = np.sort(np.asarray(values, float), axis=0)
    cut = len(ordered) // 4
    return mean(ordered[cut : len(ordered) - cut])


def interval(values: np.ndarray, statistic: Statistic = mean, level: float = 0.95, seed: int = 0) -> Interval | None:
    """Return a percentile bootstrap confidence interval of a statistic over the first axis; None of fewer than LEAST.

    Args:
        values: [N, ...]; resampled 2,000 times along the first axis.
        statistic: `mean` or `iqm`, or another function that reduces the first axis of an array of any shape.
        level: confidence level.
        seed: seed of the resampling; the same values give the same bounds.
    """
    return stratified_interval([values], lambda strata: statistic(strata[0]), level, seed)


def stratified_interval(
    strata: Strata, statistic: StrataStatistic, level: float = 0.95, seed: int = 0
) -> Interval | None:
    """Return a stratified percentile bootstrap confidence interval; None if a stratum has fewer than LEAST values.

    Each stratum is resampled by itself, so every resample has as many values of each as the data. With the scores of
    a task's seeds as a stratum, this is the interval of Agarwal et al., section 4.1: it tells how the statistic varies
    with seeds, not with the choice of tasks.

    Args:
        strata: arrays [N_i, ...], such as the scores of a task's seeds; each is resampled 2,000 times.
        statistic: reduces the first axis of all strata together, as those of `over_tasks.py` do.
        level: confidence level.
        seed: seed of the resampling; the same values give the same bounds.
    """
    strata = [np.asarray(values, float) for values in strata]
    if min(map(len, strata)) < LEAST:
        return None
    rng = np.random.default_rng(seed)
    draws = [rng.integers(0, len(values), (_RESAMPLES, len(values))) for values in strata]
    at_once = max(1, _MOST_VALUES // max(1, sum(values.size for values in strata)))
    resampled = []
    for start in range(0, _RESAMPLES, at_once):
        parts = [values[draw[start : start + at_once].T] for values, draw in zip(strata, draws, strict=True)]
        resampled.append(statistic(parts))  # [at_once, ...]
    low, high = np.quantile(np.concatenate(resampled), [(1 - level) / 2, (1 + level) / 2], axis=0)
    return low, high
