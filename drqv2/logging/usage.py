"""CPU, memory and GPU usage of this process and its children."""

from __future__ import annotations

import time
from pathlib import Path

import psutil
import torch


class Usage:
    """Callable that returns the current usage. Measures every few seconds, so calls are cheap.

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
        """Return CPU (100 % is one core), memory and GPU usage as text by name.

        Only anonymous memory counts, not memory-mapped episodes, which the kernel may drop.
        """
        now = time.monotonic()
        if now >= self._next:
            self._next = now + self._every
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
                memory += _anonymous_memory(process)
            except psutil.Error:  # it has exited, or belongs to another user
                continue
        usage = {"CPU": f"{cpu:.0f} %", "memory": f"{memory / 1e9:.1f} GB"}
        if self._device.type == "cuda":
            free, total = torch.cuda.mem_get_info(self._device)
            usage["GPU"] = f"{_utilization(self._device)}{(total - free) / 1e9:.1f} of {total / 1e9:.0f} GB"
        return usage


def _anonymous_memory(process: psutil.Process) -> int:
    try:
        status = Path(f"/proc/{process.pid}/status").read_text()
        return 1024 * int(status.partition("RssAnon:")[2].split(maxsplit=1)[0])
    except (OSError, IndexError, ValueError):  # not Linux, or it has just exited
        return int(process.memory_info().rss)


def _utilization(device: torch.device) -> str:
    try:
        return f"{torch.cuda.utilization(device)} %, "
    except Exception:  # nvidia-ml-py does not support every GPU or MIG slice
        return ""
