"""Which transitions a batch holds: a pure function of the seed, the batch's number and its window."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from itertools import count
from typing import Any

import numpy as np
from torch.utils.data import Sampler

from drqv2.replay.gather import Request
from drqv2.replay.levels import RewardLevels
from drqv2.replay.storage import ReplayBufferStorage, Window

LOOKAHEAD = 16  # batches; at least every prefetch depth of the loader
FADED = 0.1  # least weight of a transition, however old


class ReplaySampler(Sampler[Request]):
    """Yields the requests of successive batches: transitions drawn from each batch's window.

    Args:
        storage: says which episodes there are.
        batch_size: samples in a batch.
        seed: of the indices. Batch k draws from a counter-based generator keyed by (seed, k).
        balanced: draw equally many from each task, to within one.
        fading: None draws uniformly. Else a transition's weight is max(0.1, fading^age), and its age the number of
            those in the window, of its own task if `balanced`, that came after it: the older experience fades, as in
            DR.Q (TD errors play no part, so that a batch depends on seed, number and window alone).
        by_reward: share of a batch, on average, that is drawn by reward instead, see `RewardLevels`, from the window,
            or each task's part of it if `balanced`. Such a sample begins with the drawn transition or up to reach - 1
            before it. UNREAL samples so where it predicts rewards (Jaderberg et al., arXiv 1611.05397, section 3.2).
        reach: transitions of a sample.
    """

    def __init__(
        self,
        storage: ReplayBufferStorage,
        batch_size: int,
        seed: int,
        balanced: bool = False,
        fading: float | None = None,
        by_reward: float = 0.0,
        reach: int = 1,
    ) -> None:
        self._balanced, self._fading = balanced, None if fading == 1 else fading
        self._by_reward, self._reach = by_reward, reach
        self._storage = storage
        self._batch_size = batch_size
        self._seed = seed
        self._taken = 0  # batches that the learner has taken
        self._windows: deque[Window] = deque()  # of batches taken, taken + 1, ..., taken + LOOKAHEAD - 1
        self._parts = lru_cache(maxsize=2 * LOOKAHEAD)(self._parts_of)
        self._levels = lru_cache(maxsize=2)(self._levels_of)  # of successive windows
        self._rewards: dict[int, np.ndarray] = {}  # of episodes

    @contextmanager
    def taking(self) -> Iterator[None]:
        """Context in which the learner takes the next batch: fixes the window of the one LOOKAHEAD after it.

        Raises:
            RuntimeError: no episode has been committed.
        """
        window = self._storage.window
        if not len(self._storage):
            raise RuntimeError("the replay holds no finished episode yet: there is nothing to sample from")
        while len(self._windows) <= LOOKAHEAD:  # it is longer if the last attempt to take this batch failed
            self._windows.append(window)
        yield
        self._windows.popleft()
        self._taken += 1
        self._storage.pin("batches", min(w.first for w in self._windows))

    def __iter__(self) -> Iterator[Request]:
        """Yield requests, starting with the first batch not taken yet."""
        for k in count(self._taken):
            window = self._windows[k - self._taken]
            rng = np.random.Generator(np.random.Philox(key=np.array([self._seed, k], np.uint64)))
            yield Request(window.first, *self._drawn(rng, window))

    def _parts_of(self, window: Window) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return what batches are divided among: episodes and `ReplayBufferStorage.ends` of each task, or all."""
        if self._balanced:
            return self._storage.ends_by_task(window)
        return [(np.arange(*window), self._storage.ends(window))]

    def _levels_of(self, window: Window) -> list[RewardLevels]:
        for e in [e for e in self._rewards if e < window.first]:
            del self._rewards[e]
        for e in range(*window):
            if e not in self._rewards and self._storage.lengths[e]:
                self._rewards[e] = self._storage.load_rewards(e)[0]
        return [
            RewardLevels(np.concatenate([self._rewards[e] for e in episodes if e in self._rewards]), self._batch_size)
            for episodes, _ in self._parts(window)
        ]

    def _drawn(self, rng: np.random.Generator, window: Window) -> tuple[np.ndarray, np.ndarray]:
        """Return episodes and steps of drawn transitions, equally many of each part to within one, int64 [B] each."""
        parts = self._parts(window)
        shares = np.full(len(parts), self._batch_size // len(parts))
        if self._balanced:
            shares[rng.permutation(len(parts))[: self._batch_size % len(parts)]] += 1
        drawn = []
        for i, ((episodes, ends), share) in enumerate(zip(parts, shares.tolist(), strict=True)):
            by_reward = int(self._by_reward * share + rng.random()) if self._by_reward else 0
            index = _drawn_by_age(rng, int(ends[-1]), share - by_reward, self._fading)
            if by_reward:
                index = np.concatenate([index, self._levels(window)[i].draw(rng, by_reward)])
            row = np.searchsorted(ends, index, side="right")
            start = index - np.concatenate([[0], ends])[row]
            if by_reward:
                start[-by_reward:] -= rng.integers(0, self._reach, by_reward)
            drawn.append((episodes[row], start.clip(min=0)))
        episode, start = (np.concatenate(column) for column in zip(*drawn, strict=True))
        return episode, start

    def state_dict(self) -> dict[str, Any]:
        """Return the number of batches taken and the windows of those that follow."""
        return {"taken": self._taken, "windows": [list(w) for w in self._windows]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a `state_dict`."""
        self._parts.cache_clear()
        self._levels.cache_clear()
        self._rewards.clear()
        self._taken = state["taken"]
        windows = [Window(*w) for w in state["windows"]]
        # If all files of a window are damaged, nothing can be sampled from it: start anew from the current one.
        self._windows = deque(windows if all(self._storage.ends(w)[-1] for w in windows) else [])
        if self._windows:
            self._storage.pin("batches", min(w.first for w in self._windows))


def _drawn_by_age(rng: np.random.Generator, total: int, number: int, fading: float | None) -> np.ndarray:
    """Return indices below `total` of drawn transitions, the oldest first, int64 [number]."""
    return rng.integers(0, total, number) if fading is None else total - 1 - _ages(rng, total, number, fading)


def _ages(rng: np.random.Generator, total: int, number: int, fading: float) -> np.ndarray:
    """Return ages below `total` drawn with weights max(FADED, fading^age), int64 [number]."""
    fresh = min(total, math.ceil(math.log(FADED) / math.log(fading)))  # ages of greater weight
    mass = (1 - fading**fresh) / (1 - fading)  # of all these
    place = rng.random(number) * (mass + FADED * (total - fresh))
    young = np.floor(np.log1p(-np.minimum(place, mass) * (1 - fading)) / math.log(fading))
    old = fresh + np.floor((place - mass) / FADED)
    ages: np.ndarray = np.where(place < mass, np.minimum(young, fresh - 1), old).astype(np.int64)
    return np.minimum(ages, total - 1)  # where rounding exceeds it
