"""The state of the global random number generators."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


def rng_state() -> dict[str, Any]:
    """Return the state of the global generators of torch (CPU and CUDA), numpy and Python."""
    legacy: Any = np.random.get_state()
    algorithm, keys, *rest = legacy
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "cuda_device": torch.cuda.current_device() if torch.cuda.is_available() else 0,
        "numpy": [algorithm, torch.from_numpy(keys.copy()), *rest],
        "python": random.getstate(),
    }


def set_rng_state(state: dict[str, Any]) -> None:
    """Restore what `rng_state` returned; with other GPUs, that of the GPU which was the current one on today's."""
    torch.set_rng_state(state["torch"])
    if torch.cuda.is_available() and state["cuda"]:
        own = state.get("cuda_device", 0)
        if (len(state["cuda"]), own) == (torch.cuda.device_count(), torch.cuda.current_device()):
            torch.cuda.set_rng_state_all(state["cuda"])
        else:
            torch.cuda.set_rng_state(state["cuda"][own])
    algorithm, keys, *rest = state["numpy"]
    np.random.set_state((algorithm, keys.numpy(), *rest))
    random.setstate(state["python"])
