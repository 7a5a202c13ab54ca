"""Transitions by their reward, so that rare rewards are drawn as often as frequent ones."""

from __future__ import annotations

import numpy as np

LEVELS = 8  # of equal width, from the least reward to the greatest


class RewardLevels:
    """Draws transitions of which each level of reward with at least `enough` transitions has an equal share.

    The share of one with fewer is in proportion to them, so that a single transition is not drawn all the time.

    Args:
        rewards: of all transitions, finite, [N] with N > 0.
        enough: transitions for a full share.
    """

    def __init__(self, rewards: np.ndarray, enough: int) -> None:
        rewards = rewards.astype(np.float64)  # in which no range of float32 numbers overflows
        low, high = float(rewards.min()), float(rewards.max())
        level = np.zeros(len(rewards), np.int8)
        if high > low:
            level = np.minimum((rewards - low) * (LEVELS / (high - low)), LEVELS - 1).astype(np.int8)
        self._order = np.argsort(level, kind="stable")
        self._counts = np.bincount(level, minlength=LEVELS)
        self._first = np.cumsum(self._counts) - self._counts
        self._shares = np.cumsum(np.minimum(self._counts, enough))

    def draw(self, rng: np.random.Generator, number: int) -> np.ndarray:
        """Return indices of drawn transitions, int64 [number]."""
        level = np.searchsorted(self._shares, rng.integers(0, self._shares[-1], number), side="right")
        drawn: np.ndarray = self._order[self._first[level] + rng.integers(0, self._counts[level])]
        return drawn
