"""Figures that sum up returns of episodes or seeds."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

_RESAMPLES = 2000


def mean(values: np.ndarray) -> np.ndarray:
    """Return the mean over the first axis."""
    return np.asarray(np.mean(values, axis=0))


def iqm(values: np.ndarray) -> np.ndarray:
    """Return the interquartile mean over the first axis: of the middle half, the values at its edges by their share.

    Agarwal et al., Deep RL at the Edge of the Statistical Precipice (NeurIPS 2021), section 4.3. With a number of
    values that is no multiple of four, those at the edges count by the share of them that lies within.
    """
    ordered = np.sort(np.asarray(values, float), axis=0)
    n = len(ordered)
    places = np.arange(n)
    weights = np.clip(np.minimum(places + 1, 3 * n / 4) - np.maximum(places, n / 4), 0, 1)
    return np.asarray(np.tensordot(weights / weights.sum(), ordered, axes=1))


def interval(
    values: np.ndarray, figure: Callable[[np.ndarray], np.ndarray] = mean, level: float = 0.95, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Return the bounds of a percentile bootstrap interval of a figure over the first axis.

    Args:
        values: [N, ...]; resampled along the first axis, 2,000 times.
        figure: `mean` or `iqm`.
        level: share that lies within.
        seed: of the resampling; the same values give the same bounds.
    """
    values = np.asarray(values, float)
    draws = np.random.default_rng(seed).integers(0, len(values), (_RESAMPLES, len(values)))
    figures = np.stack([figure(values[draw]) for draw in draws])
    low, high = np.quantile(figures, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return low, high
