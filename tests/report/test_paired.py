"""Differences over pairs of runs, against numbers computed by hand."""

from __future__ import annotations

import math

from drqv2.report.paired import difference


def values(task: str, *returns: float) -> dict[tuple[str, int], float]:
    return {(task, seed): value for seed, value in enumerate(returns, 1)}


def test_only_pairs_that_both_have_count() -> None:
    first = values("a", 1, 2, 3, math.nan) | values("b", 10)
    other = values("a", 5, math.nan, 4, 9) | values("c", 10)
    assert difference(first, other)[:2] == (2, (4 + 1) / 2)
    assert difference(first, values("d", 1)).pairs == 0


def test_the_interval_of_three_pairs_is_their_range() -> None:
    # A resample is three times the same pair with probability 1/27, more than the 2.5 % beyond a bound.
    found = difference(values("a", 0, 0, 0), values("a", 3, 6, 12))
    assert (found.pairs, found.mean, found.low, found.high) == (3, 7, 3, 12)
    assert found.contains_zero is False
    assert difference(values("a", 0, 0, 0), values("a", -3, 6, 12)).contains_zero is True


def test_seeds_are_resampled_within_tasks() -> None:
    # If tasks were resampled too, a resample might have all pairs of one task, and bounds of 0 and above 4.5.
    first = values("a", 0, 0, 0) | values("b", 100, 100, 100)
    found = difference(first, values("a", 3, 6, 9) | values("b", 100, 100, 100))
    assert (found.pairs, found.mean, found.low, found.high) == (6, 3, 1.5, 4.5)


def test_a_task_with_two_pairs_has_no_interval() -> None:
    found = difference(values("a", 0, 0, 0) | values("b", 0, 0), values("a", 1, 2, 3) | values("b", 1, 2))
    assert (found.pairs, found.mean, found.low, found.high) == (5, 9 / 5, None, None)
    assert found.contains_zero is None
