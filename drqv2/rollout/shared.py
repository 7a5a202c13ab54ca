"""Arrays and weights in memory that the learner shares with the processes of actors; nothing in it is locked."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from drqv2.errors import UserError
from drqv2.system import machine

Layout = Mapping[str, tuple[tuple[int, ...], Any]]
"""Shape and dtype of each array."""

_ALIGNMENT = 64  # bytes: of a cache line


class SharedArrays:
    """Zeroed arrays by name. Processes that get this object as an argument see the same memory.

    Args:
        layout: of the arrays.

    Raises:
        UserError: the machine does not have so much shared memory.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = {name: (tuple(shape), np.dtype(dtype)) for name, (shape, dtype) in layout.items()}
        sizes = [math.prod(shape) * dtype.itemsize for shape, dtype in self._layout.values()]
        total = sum(-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes)
        free = shutil.disk_usage(machine.SHARED_MEMORY).free if machine.SHARED_MEMORY.exists() else math.inf
        if total > free:
            raise UserError(
                f"the actors need {total / 1e6:.0f} MB of shared memory, {machine.SHARED_MEMORY} has {free / 1e6:.0f} "
                "MB free: use a smaller num_buffers or unroll_length (in Docker, a larger --shm-size)"
            )
        self._memory = torch.zeros(max(total, 1), dtype=torch.uint8).share_memory_()
        self._arrays: dict[str, np.ndarray] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_layout": self._layout, "_memory": self._memory, "_arrays": None}

    def __getitem__(self, name: str) -> np.ndarray:
        if self._arrays is None:
            self._arrays, begin = {}, 0
            for key, (shape, dtype) in self._layout.items():
                count = math.prod(shape)
                array = np.frombuffer(self._memory.numpy(), dtype, count, begin) if count else np.empty(0, dtype)
                self._arrays[key] = array.reshape(shape)
                begin += -(-count * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
        return self._arrays[name]

    @property
    def names(self) -> list[str]:
        """The names of the arrays."""
        return list(self._layout)

    def row(self, index: int) -> dict[str, np.ndarray]:
        """Return the arrays at an index of their first dimension, as views."""
        return {name: self[name][index] for name in self._layout}


class SharedWeights:
    """The weights of a module, published by the learner in versions 1, 2, ... and read by actors.

    There are two places, used in turn: a reader that was overtaken by two versions reads again. No process waits for
    another, so that none can be killed while others wait for it.

    Args:
        module: the learner's; version 0 are its current weights.
    """

    def __init__(self, module: nn.Module) -> None:
        layout = {name: ((2, *x.shape), _numpy_dtype(x)) for name, x in module.state_dict().items()}
        self._weights = SharedArrays(layout)
        self._versions = SharedArrays({"begun": ((1,), np.int64), "done": ((1,), np.int64)})
        self._names = list(layout)
        self._write(module, 0)

    @property
    def version(self) -> int:
        """The newest version."""
        return int(self._versions["done"][0])

    def publish(self, module: nn.Module) -> int:
        """Make the module's weights the next version; return its number."""
        version = self.version + 1
        self._versions["begun"][0] = version
        self._write(module, version)
        self._versions["done"][0] = version
        return version

    def read(self, module: nn.Module) -> int:
        """Load the newest version into a module of the same shape; return its number."""
        state = module.state_dict()
        while True:
            version = self.version
            for name in self._names:
                state[name].copy_(torch.from_numpy(self._weights[name][version % 2, ...]))
            if self._versions["begun"][0] <= version + 1:
                return version

    @torch.no_grad()
    def _write(self, module: nn.Module, version: int) -> None:
        for name, x in module.state_dict().items():
            torch.from_numpy(self._weights[name][version % 2, ...]).copy_(x)


def _numpy_dtype(x: torch.Tensor) -> Any:
    return torch.empty(0, dtype=x.dtype).numpy().dtype
