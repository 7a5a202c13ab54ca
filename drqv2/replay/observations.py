"""How observations are stored: images as single frames that are stacked when read, everything else as it is.

An observation is one array or a dict of arrays, and an episode file has a tensor for each. Its name says how it is
stored: `frame` or `frame.KEY` for images, `observation` or `observation.KEY` for the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

OBSERVATION, _FRAME = "observation", "frame"


@dataclass(frozen=True)
class StoredArray:
    """One array of the observation.

    Attributes:
        key: its key in the observation, None where the observation is this array alone.
        stacked: whether it is frames stacked along the channels, of which a file holds the newest.
    """

    key: str | None
    stacked: bool

    @property
    def tensor(self) -> str:
        """Its name in an episode file."""
        kind = _FRAME if self.stacked else OBSERVATION
        return kind if self.key is None else f"{kind}.{self.key}"

    def newest(self, observation: Any, spec: Any, frame_stack: int) -> np.ndarray:
        """Return a copy of what is stored of an observation: the newest frame [C, H, W], or all of it."""
        value = np.asarray(observation if self.key is None else observation[self.key], spec.dtype)
        return value[-(len(value) // frame_stack) :].copy() if self.stacked else value.copy()


def stored_arrays(spec: Any, frame_stack: int) -> dict[StoredArray, Any]:
    """Return the arrays of an observation with their specs; uint8 [frame_stack * C, H, W] are stacked frames.

    Raises:
        ValueError: the channels of an image are no multiple of frame_stack.
    """
    found = {}
    for key, each in spec.items() if isinstance(spec, Mapping) else [(None, spec)]:
        stacked = np.dtype(each.dtype) == np.uint8 and len(each.shape) == 3
        if stacked and each.shape[0] % frame_stack:
            raise ValueError(f"{each}: its channels must be a multiple of frame_stack={frame_stack}")
        found[StoredArray(key, stacked)] = each
    return found


def stored_in(tensors: Iterable[str]) -> tuple[StoredArray, ...]:
    """Return the arrays of the observation that an episode file with these tensors holds."""
    names = [name.partition(".") for name in sorted(tensors)]
    return tuple(
        StoredArray(key if dot else None, kind == _FRAME) for kind, dot, key in names if kind in (_FRAME, OBSERVATION)
    )
