"""Aggregate statistics over the returns of episodes or seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

_RESAMPLES = 2000
_MOST_VALUES = 4_000_000  # resampled at once, which bounds the memory
Statistic = Callable[[np.ndarray], np.ndarray]  # [N, ...] -> [...]


def mean(values: np.ndarray) -> np.ndarray:
    """Return the mean over the first axis."""
    return np.asarray(np.mean(values, axis=0))


def iqm(values: np.ndarray) -> np.ndarray:
    """Return the interquartile mean over the first axis.

    If the number of values is not a multiple of four, the values at the edges of the middle half are weighted by the
    fraction inside. Agarwal et al., Deep RL at the Edge of the Statistical Precipice (NeurIPS 2021), section 4.3.
    """
    ordered = np.sort(np.asarray(values, float), axis=0)
    n = len(ordered)
    ranks = np.arange(n)
    weights = np.clip(np.minimum(ranks + 1, 3 * n / 4) - np.maximum(ranks, n / 4), 0, 1)
    return np.asarray(np.tensordot(weights / weights.sum(), ordered, axes=1))


def performance_profile(scores: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """Return the fraction of scores above each threshold, over the first axis.

    Agarwal et al., Deep RL at the Edge of the Statistical Precipice (NeurIPS 2021), section 4.2.

    Args:
        scores: [N, ...], such as the scores of all seeds on all tasks.
        thresholds: [T].

    Returns:
        Fractions, [..., T].
    """
    return np.asarray((np.asarray(scores)[..., None] > thresholds).mean(0))


def interval(
    values: np.ndarray, statistic: Statistic = mean, level: float = 0.95, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Return the bounds of a percentile bootstrap confidence interval of a statistic over the first axis.

    Args:
        values: [N, ...]; resampled 2,000 times along the first axis.
        statistic: `mean` or `iqm`, or another function that reduces the first axis of an array of any shape.
        level: confidence level.
        seed: seed of the resampling; the same values give the same bounds.
    """
    return stratified_interval([values], statistic, level, seed)


def stratified_interval(
    strata: Sequence[np.ndarray], statistic: Statistic = iqm, level: float = 0.95, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Return the bounds of a stratified bootstrap confidence interval of a statistic over the values of all strata.

    Each stratum is resampled by itself, so every resample has as many values of each as the data. With the scores of
    a task as a stratum, this is the interval of Agarwal et al. (NeurIPS 2021), section 4.1: it tells how the statistic
    varies with seeds, not with the choice of tasks.

    Args:
        strata: arrays [N_i, ...], such as the scores of a task's seeds; each is resampled 2,000 times.
        statistic: as in `interval`; it gets the values of all strata together, [N_1 + N_2 + ..., ...].
        level: confidence level.
        seed: seed of the resampling; the same values give the same bounds.
    """
    strata = [np.asarray(values, float) for values in strata]
    rng = np.random.default_rng(seed)
    draws = [rng.integers(0, len(values), (_RESAMPLES, len(values))) for values in strata]
    at_once = max(1, _MOST_VALUES // max(1, sum(values.size for values in strata)))
    resampled = []
    for start in range(0, _RESAMPLES, at_once):
        parts = [values[draw[start : start + at_once].T] for values, draw in zip(strata, draws, strict=True)]
        resampled.append(statistic(np.concatenate(parts)))  # [at_once, ...]
    low, high = np.quantile(np.concatenate(resampled), [(1 - level) / 2, (1 + level) / 2], axis=0)
    return low, high
