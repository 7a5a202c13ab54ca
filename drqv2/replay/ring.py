"""Slots for batches that are used over and over: once each has been filled, no page is touched for the first time."""

from __future__ import annotations

import math
import mmap
import warnings
import weakref
from collections import deque
from typing import Any

import numpy as np
import torch

Layout = list[tuple[tuple[int, ...], np.dtype]]
"""Shape and dtype of each array of a batch, those of a dict one after another."""


class Ring:
    """Slots, each for a batch of this layout, in memory that is shared with processes forked later."""

    def __init__(self, layout: Layout, slots: int) -> None:
        sizes = [math.prod(shape) * dtype.itemsize for shape, dtype in layout]
        ends = np.cumsum([-(-size // mmap.PAGESIZE) * mmap.PAGESIZE for size in sizes]).tolist()
        self._slot_bytes = ends[-1]
        self._arrays = list(zip(layout, [0, *ends[:-1]], strict=True))  # each with its offset in a slot
        self._memory = np.frombuffer(mmap.mmap(-1, slots * self._slot_bytes), np.uint8)
        self._free = deque(range(slots))
        self._left: deque[int] = deque()  # slots whose batch has no reference left
        self._page_locked = False
        self._device: torch.device | str | None = None
        self._copying: deque[tuple[Any, list[int]]] = deque()  # free once the GPU has reached the event

    def take(self) -> int | None:
        """Return a free slot, or None when there is none."""
        left = [self._left.popleft() for _ in range(len(self._left))]
        if self._page_locked:
            # The GPU may still have to copy from them: it has done so once it reaches an event recorded now.
            if left:
                self._copying.append((torch.cuda.current_stream(self._device).record_event(), left))
            left = []
            while self._copying and self._copying[0][0].query():
                left += self._copying.popleft()[1]
        self._free.extend(left)
        return self._free.popleft() if self._free else None

    def arrays(self, slot: int) -> list[np.ndarray]:
        """Return the arrays of a slot that was taken, to be written to, in this process or another."""
        start = slot * self._slot_bytes
        return [
            np.frombuffer(self._memory, dtype, math.prod(shape), start + offset).reshape(shape)
            for (shape, dtype), offset in self._arrays
        ]

    def batch(self, slot: int) -> tuple[torch.Tensor, ...]:
        """Return a slot's arrays as tensors; it is free again when these and all their views are gone."""
        place = self._memory[slot * self._slot_bytes :][: self._slot_bytes]
        weakref.finalize(place, self._left.append, slot).atexit = False
        # A tensor made this way references `place`; arrays made of it would reference the whole memory instead.
        return tuple(
            torch.frombuffer(place, dtype=getattr(torch, dtype.name), count=math.prod(shape), offset=offset).view(shape)
            for (shape, dtype), offset in self._arrays
        )

    def page_lock(self, device: torch.device | str | None = None) -> None:
        """Page-lock the slots, so that a GPU, by default the current one, copies from them asynchronously.

        Call once. The GPU must copy on its current stream, or before what that stream does next.
        """
        address = self._memory.ctypes.data
        error = int(torch.cuda.cudart().cudaHostRegister(address, self._memory.nbytes, 0))
        if error:
            warnings.warn(f"batches are not page-locked, copies to the GPU are slow: CUDA error {error}", stacklevel=2)
            return
        self._page_locked, self._device = True, device
        weakref.finalize(self._memory, _unlock, address, device)  # the last batch keeps the memory


def _unlock(address: int, device: torch.device | str | None) -> None:
    torch.cuda.synchronize(device)  # until no copy from there is running
    torch.cuda.cudart().cudaHostUnregister(address)
