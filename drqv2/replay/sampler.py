"""Which transitions a batch holds: a pure function of the seed, the batch's number and its window."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
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
    """

    def __init__(self, storage: ReplayBufferStorage, batch_size: int, seed: int) -> None:
        self._storage = storage
        self._batch_size = batch_size
        self._seed = seed
        self._taken = 0  # batches that the learner has taken
        self._windows: deque[Window] = deque()  # of batches taken, taken + 1, ..., taken + LOOKAHEAD - 1
        self._ends = lru_cache(maxsize=2 * LOOKAHEAD)(storage.ends)

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
            ends = self._ends(window)
            rng = np.random.Generator(np.random.Philox(key=np.array([self._seed, k], np.uint64)))
            index = rng.integers(0, ends[-1], self._batch_size)
            row = np.searchsorted(ends, index, side="right")
            yield Request(window.first, window.first + row, index - np.concatenate([[0], ends])[row])

    def state_dict(self) -> dict[str, Any]:
        """Return the number of batches taken and the windows of those that follow."""
        return {"taken": self._taken, "windows": [list(w) for w in self._windows]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a `state_dict`."""
        self._ends.cache_clear()
        self._taken = state["taken"]
        windows = [Window(*w) for w in state["windows"]]
        # If all files of a window are damaged, nothing can be sampled from it: start anew from the current one.
        self._windows = deque(windows if all(self._storage.ends(w)[-1] for w in windows) else [])
        if self._windows:
            self._storage.pin("batches", min(w.first for w in self._windows))
