"""How a run spends its time, and what it uses of the machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import psutil
import torch


class TimeShares:
    """Measures the time spent on named activities. Nested time counts for the inner activity only.

    CUDA kernels run asynchronously: their time counts where the host waits for them.

    Args:
        names: activities to list even before they occur.
        clock: returns seconds.
    """

    def __init__(self, *names: str, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._seconds = dict.fromkeys(names, 0.0)
        self._active = ["other"]  # the innermost activity is last
        self._since: float | None = None  # time up to here is in `_seconds`

    def _switch(self) -> None:
        """Count the time since the last switch for the innermost activity."""
        now, name = self._clock(), self._active[-1]
        if self._since is not None:
            self._seconds[name] = self._seconds.get(name, 0.0) + now - self._since
        self._since = now

    def spent_on(self, name: str) -> _SpentOn:
        """Return a context, inside which time counts for `name`."""
        return _SpentOn(self, name)

    def timed_iterator(self, name: str, items: Iterator[Any]) -> Iterator[Any]:
        """Iterate over `items`, counting the time spent waiting for each one for `name`; an error does not end it."""
        return _Timed(self, name, items)

    def seconds(self) -> dict[str, float]:
        """Return the seconds spent on each name so far, activities in progress left out."""
        return dict(self._seconds)

    def add(self, seconds: Mapping[str, float]) -> None:
        """Add what another process has spent."""
        for name, spent in seconds.items():
            self._seconds[name] = self._seconds.get(name, 0.0) + spent

    def pause(self) -> None:
        """Do not count the time until `resume`."""
        self._switch()
        self._since = None

    def resume(self) -> None:
        """Count the time again."""
        self._since = self._clock()

    def shares(self) -> dict[str, float]:
        """Return the fraction of each name in the time since the first activity began; the rest is "other".

        Activities in progress count. Empty before the first activity. May be called from another thread.
        """
        if self._since is None and not any(self._seconds.values()):
            return {}
        seconds, name = dict(self._seconds), self._active[-1]
        if (since := self._since) is not None:
            seconds[name] = seconds.get(name, 0.0) + max(0.0, self._clock() - since)
        seconds["other"] = seconds.pop("other", 0.0)  # last
        total = max(sum(seconds.values()), 1e-9)
        return {name: spent / total for name, spent in seconds.items()}


class _SpentOn:  # contextlib's, from a generator, takes three times as long
    __slots__ = "_name", "_shares"

    def __init__(self, shares: TimeShares, name: str) -> None:
        self._shares, self._name = shares, name

    def __enter__(self) -> None:
        self._shares._switch()
        self._shares._active.append(self._name)

    def __exit__(self, *error: object) -> None:
        self._shares._switch()
        self._shares._active.pop()


class _Timed(Iterator[Any]):
    def __init__(self, shares: TimeShares, name: str, items: Iterator[Any]) -> None:
        self._shares, self._name, self._items = shares, name, items

    def __next__(self) -> Any:
        with self._shares.spent_on(self._name):
            return next(self._items)


class Usage:
    """Callable that returns CPU, memory and GPU usage of this process and its children as text by name.

    100 % CPU is one core. Memory-mapped episodes, which the kernel may drop, do not count as memory.

    Args:
        device: the learner's device.
        every: seconds between measurements. Finding the children requires a scan of all processes on the machine.
    """

    def __init__(self, device: torch.device, every: float = 3.0) -> None:
        self._device = device
        self._every, self._next = every, float("-inf")
        self._usage: dict[str, str] = {}
        self._processes: dict[int, psutil.Process] = {}

    def __call__(self) -> dict[str, str]:
        """Return the newest measurement."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + self._every
            self._usage = self._measure()
        return self._usage

    def _measure(self) -> dict[str, str]:
        here = psutil.Process()
        found = {process.pid: process for process in (here, *here.children(recursive=True))}
        self._processes = {pid: self._processes.get(pid, process) for pid, process in found.items()}
        cpu, memory = 0.0, 0
        for process in self._processes.values():
            try:
                cpu += process.cpu_percent()
                used = process.memory_info()
                memory += used.rss - getattr(used, "shared", 0)  # Linux counts mapped files there
            except psutil.Error:  # it has exited, or belongs to another user
                continue
        usage = {"CPU": f"{cpu:.0f} %", "memory": f"{memory / 1e9:.1f} GB"}
        if self._device.type == "cuda":
            free, total = torch.cuda.mem_get_info(self._device)
            usage["GPU"] = f"{(total - free) / 1e9:.1f} of {total / 1e9:.0f} GB"
            with suppress(Exception):  # nvidia-ml-py does not support every GPU or MIG slice
                usage["GPU"] = f"{torch.cuda.utilization(self._device)} %, {usage['GPU']}"
        return usage
