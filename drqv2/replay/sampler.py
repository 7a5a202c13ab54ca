"""Which transitions a batch holds: a pure function of the seed, the batch's number and its window."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import count
from typing import Any

import numpy as np
from torch.utils.data import Sampler

from drqv2.replay.gather import Request
from drqv2.replay.storage import ReplayBufferStorage, Window

LOOKAHEAD = 16  # batches; at least every prefetch depth of the loader


class ReplaySampler(Sampler[Request]):
    """Yields the requests of successive batches: transitions drawn uniformly from each batch's window.

    Args:
        storage: says which episodes there are.
        batch_size: samples in a batch.
        seed: of the indices. Batch k draws from a counter-based generator keyed by (seed, k).
        balanced: draw as many from each task, to within one, and uniformly among its transitions.
    """

    def __init__(self, storage: ReplayBufferStorage, batch_size: int, seed: int, balanced: bool = False) -> None:
        self._balanced = balanced
        self._storage = storage
        self._batch_size = batch_size
        self._seed = seed
        self._taken = 0  # batches that the learner has taken
        self._windows: deque[Window] = deque()  # of batches taken, taken + 1, ..., taken + LOOKAHEAD - 1
        self._ends = lru_cache(maxsize=2 * LOOKAHEAD)(storage.ends)
        self._ends_by_task = lru_cache(maxsize=2 * LOOKAHEAD)(storage.ends_by_task)

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
            if self._balanced:
                episode, start = _drawn_by_task(rng, self._ends_by_task(window), self._batch_size)
            else:
                row, start = _drawn(rng, self._ends(window), self._batch_size)
                episode = window.first + row
            yield Request(window.first, episode, start)

    def state_dict(self) -> dict[str, Any]:
        """Return the number of batches taken and the windows of those that follow."""
        return {"taken": self._taken, "windows": [list(w) for w in self._windows]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a `state_dict`."""
        self._ends.cache_clear()
        self._ends_by_task.cache_clear()
        self._taken = state["taken"]
        windows = [Window(*w) for w in state["windows"]]
        # If all files of a window are damaged, nothing can be sampled from it: start anew from the current one.
        self._windows = deque(windows if all(self._storage.ends(w)[-1] for w in windows) else [])
        if self._windows:
            self._storage.pin("batches", min(w.first for w in self._windows))


def _drawn(rng: np.random.Generator, ends: np.ndarray, number: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows in `ends` and the steps of transitions drawn uniformly, int64 [number] each.

    Args:
        rng: draws.
        ends: of each of a row of episodes, the number of transitions up to its end.
        number: of transitions.
    """
    index = rng.integers(0, ends[-1], number)
    row = np.searchsorted(ends, index, side="right")
    return row, index - np.concatenate([[0], ends])[row]


def _drawn_by_task(
    rng: np.random.Generator, by_task: Sequence[tuple[np.ndarray, np.ndarray]], number: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return episodes and steps of transitions, equally many of each task to within one, int64 [number] each.

    Args:
        rng: draws; also which tasks get one more.
        by_task: of each task its episodes' numbers, and their ends as in `_drawn`.
        number: of transitions.
    """
    shares = np.full(len(by_task), number // len(by_task))
    shares[rng.permutation(len(by_task))[: number % len(by_task)]] += 1
    drawn = []
    for (episodes, ends), share in zip(by_task, shares, strict=True):
        row, start = _drawn(rng, ends, share)
        drawn.append((episodes[row], start))
    episode, start = (np.concatenate(parts) for parts in zip(*drawn, strict=True))
    return episode, start
