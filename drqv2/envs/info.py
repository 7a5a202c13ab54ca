"""Numbers in an environment's `info`: which of them are kept, and their means over steps and episodes.

A number's mean is taken over the steps of an episode that have it, then over episodes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Sums = dict[str, tuple[float, int]]
"""Sum and count of each number, by its key."""

_NUMBERS = (int, float, np.integer, np.floating, np.bool)
_OTHERWISE_LOGGED = ("success", "is_success", "episode")


def is_kept(key: Any) -> bool:
    """Return whether a key of `info` may name a number, and nothing that logs or a time step's flags already hold."""
    return isinstance(key, str) and key not in _OTHERWISE_LOGGED and not key.startswith("TimeLimit.")


def numbers(info: Mapping[str, Any]) -> dict[str, float] | None:
    """Return the finite numbers and flags in the `info` of a step; None if there are none."""
    if not info:
        return None
    found = {key: _as_float(x) for key, x in info.items() if isinstance(x, _NUMBERS) and is_kept(key)}
    return {key: x for key, x in found.items() if math.isfinite(x)} or None


def _as_float(number: Any) -> float:
    try:
        return float(number)
    except OverflowError:  # an integer that no float holds
        return math.inf


def stacked(steps: Sequence[Mapping[str, float] | None]) -> dict[str, np.ndarray] | None:
    """Return the numbers of the steps of N environments, float64 [N] each, NaN where there is none."""
    if not any(steps):
        return None
    keys = dict.fromkeys(key for step in steps if step for key in step)
    return {key: np.array([step.get(key, math.nan) if step else math.nan for step in steps]) for key in keys}


def joined(steps: Sequence[Mapping[str, np.ndarray] | None], rows: Sequence[int]) -> dict[str, np.ndarray]:
    """Return the numbers of several steps, one after another, NaN where there is none.

    Args:
        steps: of each, the numbers of its rows.
        rows: how many each has.
    """
    keys = dict.fromkeys(key for step in steps if step for key in step)
    gaps = {number: np.full(number, math.nan) for number in set(rows)}
    return {
        key: np.concatenate([(step or {}).get(key, gaps[n]) for step, n in zip(steps, rows, strict=True)])
        for key in keys
    }


def summed(numbers: Mapping[str, np.ndarray], start: int, stop: int) -> Sums:
    """Return the sums of a range of steps, of those that have a number."""
    found = {key: x[start:stop] for key, x in numbers.items()}
    known = {key: x[~np.isnan(x)] for key, x in found.items()}
    return {key: (float(x.sum()), len(x)) for key, x in known.items() if len(x)}


def mean_of(steps: Sequence[Mapping[str, float]]) -> Mapping[str, float]:
    """Return the mean of each number over steps."""
    if len(steps) == 1:
        return steps[0]
    sums: Sums = {}
    for step in steps:
        add(sums, step)
    return means(sums)


def add(sums: Sums, values: Mapping[str, float] | None) -> None:
    """Add one value of each number."""
    merge(sums, {key: (value, 1) for key, value in (values or {}).items()})


def merge(sums: Sums, others: Sums) -> None:
    """Add the values in other sums."""
    for key, (value, number) in others.items():
        total, count = sums.get(key, (0.0, 0))
        sums[key] = total + value, count + number


def means(sums: Sums) -> dict[str, float]:
    """Return the mean of each number."""
    return {key: total / count for key, (total, count) in sums.items()}


def metrics(sums: Sums) -> dict[str, float]:
    """Return the means as metrics, `environment/KEY`."""
    return {f"environment/{key}": value for key, value in means(sums).items()}
