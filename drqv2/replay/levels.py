"""Transitions by their reward, so that rare rewards are drawn as often as frequent ones."""

from __future__ import annotations

import numpy as np

LEVELS = 8  # of equal width, from the least reward to the greatest


class RewardLevels:
    """Draws transitions of which each level of reward has an equal share.

    A level with fewer than `most` transitions has a share in proportion to them, so that a single one is not drawn all
    the time.

    Args:
        rewards: of all transitions, [N] with N > 0.
        most: transitions above which a level's share does not grow.
    """

    def __init__(self, rewards: np.ndarray, most: int) -> None:
        low, high = float(rewards.min()), float(rewards.max())
        level = np.zeros(len(rewards), np.int8)
        if high > low:
            level = np.minimum((rewards - low) * (LEVELS / (high - low)), LEVELS - 1).astype(np.int8)
        self._order = np.argsort(level, kind="stable")
        self._counts = np.bincount(level, minlength=LEVELS)
        self._first = np.cumsum(self._counts) - self._counts
        self._shares = np.cumsum(np.minimum(self._counts, most))

    def draw(self, rng: np.random.Generator, number: int) -> np.ndarray:
        """Return indices of drawn transitions, int64 [number]."""
        level = np.searchsorted(self._shares, rng.integers(0, self._shares[-1], number), side="right")
        drawn: np.ndarray = self._order[self._first[level] + rng.integers(0, self._counts[level])]
        return drawn
