"""How busy this process, its children and its GPU are."""

from __future__ import annotations

import psutil
import torch


class Usage:
    """Call it now and then: it tells the use since the call before.

    Args:
        device: of the learner.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._processes: dict[int, psutil.Process] = {}

    def __call__(self) -> dict[str, str]:
        """Return CPU (100 % is one core), resident memory and, on a GPU, its use, as text by name."""
        here = psutil.Process()
        found = {process.pid: process for process in (here, *here.children(recursive=True))}
        self._processes = {pid: self._processes.get(pid, process) for pid, process in found.items()}
        cpu, memory = 0.0, 0
        for process in self._processes.values():
            try:
                cpu += process.cpu_percent()
                memory += process.memory_info().rss
            except psutil.Error:  # it has ended meanwhile, or is somebody else's
                continue
        told = {"CPU": f"{cpu:.0f} %", "memory": f"{memory / 1e9:.1f} GB"}
        if self._device.type == "cuda":
            free, total = torch.cuda.mem_get_info(self._device)
            told["GPU"] = f"{_busy(self._device)}{(total - free) / 1e9:.1f} of {total / 1e9:.0f} GB"
        return told


def _busy(device: torch.device) -> str:
    try:
        return f"{torch.cuda.utilization(device)} %, "
    except Exception:  # torch asks nvidia-ml-py, which need not be there, and which not every GPU answers
        return ""
