"""How a run spends its time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class TimeShares:
    """Measures the time spent on named activities. Nested time counts for the inner activity only.

    CUDA kernels run asynchronously: their time counts where the host waits for them.

    Args:
        names: activities to list even before they occur.
        clock: returns seconds.
    """

    def __init__(self, *names: str, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._start: float | None = None
        self._seconds = dict.fromkeys(names, 0.0)
        self._open: list[tuple[str, float, list[float]]] = []  # name, start, seconds of finished inner activities

    @contextmanager
    def spent_on(self, name: str) -> Iterator[None]:
        """Count the time inside the context for `name`."""
        start = self._clock()
        self._start = start if self._start is None else self._start
        self._open.append((name, start, []))
        try:
            yield
        finally:
            taken = self._clock() - start
            inner = sum(self._open.pop()[2])
            self._seconds[name] = self._seconds.get(name, 0.0) + taken - inner
            if self._open:
                self._open[-1][2].append(taken)

    def timed_iterator(self, name: str, items: Iterator[Any]) -> Iterator[Any]:
        """Iterate over `items`, counting the time spent waiting for each one for `name`."""
        while True:
            with self.spent_on(name):
                item = next(items)
            yield item

    def shares(self) -> dict[str, float]:
        """Return the fraction of each name in the time since the first activity began; the rest is "other".

        Activities in progress count. Empty before the first activity. May be called from another thread.
        """
        if self._start is None:
            return {}
        seconds, now, inside = dict(self._seconds), self._clock(), 0.0
        for name, start, inner in reversed(list(self._open)):
            seconds[name] = seconds.get(name, 0.0) + now - start - inside - sum(inner)
            inside = now - start
        total = max(now - self._start, 1e-9)
        known = {name: max(0.0, spent / total) for name, spent in seconds.items()}
        return known | {"other": max(0.0, 1 - sum(known.values()))}
