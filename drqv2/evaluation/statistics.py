"""Statistics over episodes, seeds and tasks, with bootstrap intervals, as defined by the package rliable.

In statistics over tasks all of these weigh alike. Scores are a list of arrays [N_t, ...], one for each task, with a
value for each of its N_t seeds. With equally many seeds of each task, these are the metrics of rliable for the matrix
of seeds and tasks. With unequal numbers they are those of the matrix in which the seeds of each task are repeated until
all tasks have as many: no seed is dropped, and no task counts more because it was run more often.

Agarwal et al., Deep RL at the Edge of the Statistical Precipice (NeurIPS 2021), section 4.
"""

from __future__ import annotations

import math
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


def interval(values: np.ndarray, statistic: Statistic = mean) -> Interval | None:
    """Return a 95 % percentile bootstrap confidence interval over the first axis; None of fewer than LEAST.

    Args:
        values: [N, ...]; resampled 2,000 times along the first axis.
        statistic: `mean` or `iqm`, or another function that reduces the first axis of an array of any shape.
    """
    return stratified_interval([values], lambda strata: statistic(strata[0]))


def stratified_interval(strata: Strata, statistic: StrataStatistic) -> Interval | None:
    """Return a stratified 95 % percentile bootstrap confidence interval; None if a stratum has fewer than LEAST values.

    The same values give the same bounds.
    Each stratum is resampled by itself, so every resample has as many values of each as the data. With the scores of
    a task's seeds as a stratum, this is the interval of Agarwal et al., section 4.1: it tells how the statistic varies
    with seeds, not with the choice of tasks.

    Args:
        strata: arrays [N_i, ...], such as the scores of a task's seeds; each is resampled 2,000 times.
        statistic: reduces the first axis of all strata together, as `mean_over_tasks` does.
    """
    strata = [np.asarray(values, float) for values in strata]
    if min(map(len, strata)) < LEAST:
        return None
    rng = np.random.default_rng(0)
    draws = [rng.integers(0, len(values), (_RESAMPLES, len(values))) for values in strata]
    at_once = max(1, _MOST_VALUES // max(1, sum(values.size for values in strata)))
    resampled = []
    for start in range(0, _RESAMPLES, at_once):
        parts = [values[draw[start : start + at_once].T] for values, draw in zip(strata, draws, strict=True)]
        resampled.append(statistic(parts))  # [at_once, ...]
    low, high = np.quantile(np.concatenate(resampled), [0.025, 0.975], axis=0)
    return low, high


def mean_over_tasks(scores: Strata) -> np.ndarray:
    """Return the mean over tasks of the mean over seeds."""
    return mean(np.stack([mean(own) for own in scores]))


def iqm_over_tasks(scores: Strata) -> np.ndarray:
    """Return the interquartile mean of all scores, a quarter of which is cut off on either side."""
    counts = [len(own) for own in scores]
    values = np.concatenate([np.asarray(own, float) for own in scores])
    if len(set(counts)) == 1:
        return iqm(values)
    repeated = math.lcm(*counts)  # seeds of each task in the matrix
    total = float(repeated * len(counts))
    cut = total // 4
    order = np.argsort(values, axis=0)
    weights = np.repeat([float(repeated // count) for count in counts], counts)[order]  # repetitions of each value
    ends = np.cumsum(weights, axis=0)
    kept = np.clip(np.minimum(ends, total - cut) - np.maximum(ends - weights, cut), 0, None)
    return np.asarray((kept * np.take_along_axis(values, order, axis=0)).sum(0) / (total - 2 * cut))


def optimality_gap(scores: Strata) -> np.ndarray:
    """Return how far the mean score is below 1, with scores above 1 counted as 1."""
    return 1 - mean_over_tasks([np.minimum(own, 1) for own in scores])


def performance_profile(scores: Strata, thresholds: np.ndarray) -> np.ndarray:
    """Return the fraction of scores above each threshold.

    Args:
        scores: [N_t, ...] for each task.
        thresholds: [T].

    Returns:
        Fractions, [..., T].
    """
    return mean_over_tasks([np.asarray(own)[..., None] > thresholds for own in scores])


def probability_of_improvement(first: Strata, other: Strata) -> np.ndarray:
    """Return how probably a run of `first` is better than one of `other` on the same task, as a mean over tasks.

    On each task this is the Mann-Whitney statistic over the number of pairs: the fraction of pairs of a run of each
    setting in which that of `first` has the higher score; equal scores count half.

    Args:
        first: [N_t, ...] for each task.
        other: [M_t, ...] for each task.
    """
    found = []
    for mine, theirs in zip(first, other, strict=True):
        # A run at a time, since all pairs of all resamples would not fit in memory.
        wins = [mean(np.asarray(run > theirs, float) + 0.5 * (run == theirs)) for run in np.asarray(mine)]
        found.append(mean(np.stack(wins)))
    return mean(np.stack(found))


def improvement_interval(first: Strata, other: Strata) -> Interval | None:
    """Return the interval of `probability_of_improvement`: the runs of each setting are resampled by themselves."""
    tasks = len(first)

    def statistic(strata: Strata) -> np.ndarray:
        return probability_of_improvement(strata[:tasks], strata[tasks:])

    return stratified_interval([*first, *other], statistic)
