"""Statistics over tasks and their seeds, as defined by the package rliable, in which all tasks weigh alike.

Scores are a list of arrays [N_t, ...], one for each task, with a value for each of its N_t seeds. With equally many
seeds of each task, these are the metrics of rliable for the matrix of seeds and tasks. With unequal numbers they are
those of the matrix in which the seeds of each task are repeated until all tasks have as many: no seed is dropped, and
no task counts more because it was run more often.

Agarwal et al., Deep RL at the Edge of the Statistical Precipice (NeurIPS 2021), section 4.
"""

from __future__ import annotations

import math

import numpy as np

from drqv2.evaluation.statistics import Interval, Strata, iqm, mean, stratified_interval


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
