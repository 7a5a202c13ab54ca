"""An episode as it is stored here, and what can be wrong with one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

Arrays = Mapping[str, np.ndarray]
_OBSERVED = ("frame", "observation")  # the first part of the names of what is observed, see drqv2.replay.observations


class Episode(NamedTuple):
    """One episode of a data set.

    Attributes:
        where: its file, and the first of its rows if the file holds several.
        arrays: as in an episode file of this project, [T + 1, ...] each: `frame` uint8 [C, H, W] or `observation`;
            `action` in [-1, 1], `reward` and `discount` [1] of the step that led to the row; row 0 is the reset.
    """

    where: str
    arrays: Arrays

    @property
    def length(self) -> int:
        """Transitions."""
        return len(self.arrays["reward"]) - 1

    @property
    def total(self) -> float:
        """Undiscounted return."""
        return float(self.arrays["reward"][1:].sum(dtype=np.float64))


def problems(arrays: Arrays) -> Iterator[str]:
    """Yield what is wrong with an episode's arrays, with the row, counted from the reset."""
    missing = [name for name in ("action", "reward", "discount") if name not in arrays]
    if not any(name.partition(".")[0] in _OBSERVED for name in arrays):
        missing.append("observation")
    if missing:
        yield f"{' and '.join(missing)} missing; it has {', '.join(sorted(arrays)) or 'nothing'}"
        return
    if odd := [_odd_form(name, array) for name, array in sorted(arrays.items()) if _odd_form(name, array)]:
        yield from odd
        return
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        yield "rows differ in number: " + ", ".join(f"{name} {n}" for name, n in sorted(lengths.items()))
        return
    if lengths["reward"] < 2:
        yield f"has {lengths['reward']} rows: at least a reset and a step are needed"
        return
    for name, array in arrays.items():
        if np.issubdtype(array.dtype, np.floating) and len(bad := _rows(~np.isfinite(array))):
            yield f"row {bad[0]}: {name} is {array[bad[0]].ravel()[~np.isfinite(array[bad[0]].ravel())][0]}"
    for name, low in (("action", -1.0), ("discount", 0.0)):
        values = arrays[name]
        if np.issubdtype(values.dtype, np.floating) and len(bad := _rows((values < low) | (values > 1.0))):
            yield f"row {bad[0]}: {name} {np.array2string(values[bad[0]], precision=3)} is not within [{low:g}, 1]"


def _odd_form(name: str, array: np.ndarray) -> str:
    """Return what is wrong with the dtype or the shape of an array; empty if nothing is."""
    found = f"{name} is {array.dtype} {list(array.shape)}"
    if array.ndim == 0:
        return f"{found}: must have a row for each step"
    if name in ("reward", "discount") and (array.dtype != np.float32 or array.shape[1:] != (1,)):
        return f"{found}: must be float32 [rows, 1]"
    if name.partition(".")[0] == "frame" and (array.dtype != np.uint8 or array.ndim != 4):
        return f"{found}: must be uint8 [rows, channels, height, width]"
    if name in ("action", "observation") and array.dtype == np.float64:
        return f"{found}: must be float32"
    return ""


def _rows(wrong: np.ndarray) -> np.ndarray:
    """Return the numbers of the rows in which something is wrong."""
    return np.flatnonzero(wrong.reshape(len(wrong), -1).any(1))
