"""Which transitions a batch holds: a pure function of the seed, the batch's number and its window."""

from __future__ import annotations

import math
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
    """

    def __init__(
        self,
        storage: ReplayBufferStorage,
        batch_size: int,
        seed: int,
        balanced: bool = False,
        fading: float | None = None,
    ) -> None:
        self._balanced, self._fading = balanced, None if fading == 1 else fading
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
                episode, start = _drawn_by_task(rng, self._ends_by_task(window), self._batch_size, self._fading)
            else:
                row, start = _drawn(rng, self._ends(window), self._batch_size, self._fading)
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


def _drawn(
    rng: np.random.Generator, ends: np.ndarray, number: int, fading: float | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of `ends`, see `ReplayBufferStorage.ends`, and steps in them of drawn transitions, int64 [number]."""
    total = int(ends[-1])
    index = rng.integers(0, total, number) if fading is None else total - 1 - _ages(rng, total, number, fading)
    row = np.searchsorted(ends, index, side="right")
    return row, index - np.concatenate([[0], ends])[row]


def _ages(rng: np.random.Generator, total: int, number: int, fading: float) -> np.ndarray:
    """Return ages below `total` drawn with weights max(FADED, fading^age), int64 [number]."""
    fresh = min(total, math.ceil(math.log(FADED) / math.log(fading)))  # ages of greater weight
    mass = (1 - fading**fresh) / (1 - fading)  # of all these
    place = rng.random(number) * (mass + FADED * (total - fresh))
    young = np.floor(np.log1p(-np.minimum(place, mass) * (1 - fading)) / math.log(fading))
    old = fresh + np.floor((place - mass) / FADED)
    ages: np.ndarray = np.where(place < mass, np.minimum(young, fresh - 1), old).astype(np.int64)
    return np.minimum(ages, total - 1)  # where rounding exceeds it


def _drawn_by_task(
    rng: np.random.Generator,
    by_task: Sequence[tuple[np.ndarray, np.ndarray]],
    number: int,
    fading: float | None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return episodes and steps of drawn transitions, equally many of each task to within one, int64 [number] each."""
    shares = np.full(len(by_task), number // len(by_task))
    shares[rng.permutation(len(by_task))[: number % len(by_task)]] += 1
    drawn = []
    for (episodes, ends), share in zip(by_task, shares, strict=True):
        row, start = _drawn(rng, ends, share, fading)
        drawn.append((episodes[row], start))
    episode, start = (np.concatenate(parts) for parts in zip(*drawn, strict=True))
    return episode, start
