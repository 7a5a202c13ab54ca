"""Aggregate statistics over the returns of episodes or seeds."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

_RESAMPLES = 2000


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


def interval(
    values: np.ndarray, statistic: Callable[[np.ndarray], np.ndarray] = mean, level: float = 0.95, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Return the bounds of a percentile bootstrap confidence interval of a statistic over the first axis.

    Args:
        values: [N, ...]; resampled 2,000 times along the first axis.
        statistic: `mean` or `iqm`.
        level: confidence level.
        seed: seed of the resampling; the same values give the same bounds.
    """
    values = np.asarray(values, float)
    draws = np.random.default_rng(seed).integers(0, len(values), (_RESAMPLES, len(values)))
    resampled = np.stack([statistic(values[draw]) for draw in draws])
    low, high = np.quantile(resampled, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return low, high
