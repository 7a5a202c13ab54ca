"""How busy this process, its children and its GPU are."""

from __future__ import annotations

import time
from pathlib import Path

import psutil
import torch


class Usage:
    """Call it as often as you like: it looks every few seconds, and tells the use since it looked before.

    Args:
        device: of the learner.
        every: seconds from one look to the next. To find one's children is to go through all the machine's processes.
    """

    def __init__(self, device: torch.device, every: float = 3.0) -> None:
        self._device = device
        self._every, self._next = every, float("-inf")
        self._told: dict[str, str] = {}
        self._processes: dict[int, psutil.Process] = {}

    def __call__(self) -> dict[str, str]:
        """Return CPU (100 % is one core), memory and, on a GPU, its use, as text by name.

        Memory is what the processes have of their own: mapped episodes, which the kernel may drop, are not counted.
        """
        now = time.monotonic()
        if now >= self._next:
            self._next = now + self._every
            self._told = self._look()
        return self._told

    def _look(self) -> dict[str, str]:
        here = psutil.Process()
        found = {process.pid: process for process in (here, *here.children(recursive=True))}
        self._processes = {pid: self._processes.get(pid, process) for pid, process in found.items()}
        cpu, memory = 0.0, 0
        for process in self._processes.values():
            try:
                cpu += process.cpu_percent()
                memory += _own_memory(process)
            except psutil.Error:  # it has ended meanwhile, or is somebody else's
                continue
        told = {"CPU": f"{cpu:.0f} %", "memory": f"{memory / 1e9:.1f} GB"}
        if self._device.type == "cuda":
            free, total = torch.cuda.mem_get_info(self._device)
            told["GPU"] = f"{_busy(self._device)}{(total - free) / 1e9:.1f} of {total / 1e9:.0f} GB"
        return told


def _own_memory(process: psutil.Process) -> int:
    try:
        status = Path(f"/proc/{process.pid}/status").read_text()
        return 1024 * int(status.partition("RssAnon:")[2].split(maxsplit=1)[0])
    except (OSError, IndexError, ValueError):  # not Linux, or it has just ended
        return int(process.memory_info().rss)


def _busy(device: torch.device) -> str:
    try:
        return f"{torch.cuda.utilization(device)} %, "
    except Exception:  # not every GPU, nor every part of one, answers nvidia-ml-py, which torch asks
        return ""
