"""Differences over pairs of runs, and areas under curves, against numbers computed by hand."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from benchmarks.paired import Difference, area, difference
from drqv2.report import runs
from tests.report.made_runs import make_run


def values(task: str, *returns: float) -> dict[tuple[str, int], float]:
    return {(task, seed): value for seed, value in enumerate(returns, 1)}


def bounds(found: Difference) -> tuple[float, float] | None:
    return None if found.bounds is None else (float(found.bounds[0]), float(found.bounds[1]))


def test_only_pairs_that_both_have_count() -> None:
    first = values("a", 1, 2, 3, math.nan) | values("b", 10)
    other = values("a", 5, math.nan, 4, 9) | values("c", 10)
    assert difference(first, other)[:3] == (2, 1, (4 + 1) / 2)
    assert difference(first, values("d", 1)).pairs == 0


def test_the_interval_of_three_pairs_is_their_range() -> None:
    # A resample is three times the same pair with probability 1/27, more than the 2.5 % beyond a bound.
    found = difference(values("a", 0, 0, 0), values("a", 3, 6, 12))
    assert (found.pairs, found.mean, bounds(found)) == (3, 7, (3, 12))
    assert bounds(difference(values("a", 0, 0, 0), values("a", -3, 6, 12))) == (-3, 12)


def test_seeds_are_resampled_within_tasks() -> None:
    # If tasks were resampled too, a resample might have all pairs of one task, and bounds of 0 and above 4.5.
    first = values("a", 0, 0, 0) | values("b", 100, 100, 100)
    found = difference(first, values("a", 3, 6, 9) | values("b", 100, 100, 100))
    assert (found.pairs, found.mean, bounds(found)) == (6, 3, (1.5, 4.5))


def test_a_task_with_more_pairs_does_not_weigh_more() -> None:
    first = values("a", *[0] * 7) | values("b", 0, 0, 0)
    found = difference(first, values("a", *[-1] * 7) | values("b", 2, 2, 2))
    assert (found.pairs, found.tasks, found.mean, bounds(found)) == (10, 2, 0.5, (0.5, 0.5))
    assert found.better == 0.5


def test_the_probability_that_the_other_is_better() -> None:
    found = difference(values("a", 1, 2, 3), values("a", 2, 3, 4))
    assert found.better == (6 + 0.5 * 2) / 9  # a 2 and a 3 are in both
    assert found.better_bounds is not None
    low, high = found.better_bounds
    assert 0 <= low < found.better < high <= 1


def test_a_task_with_two_pairs_has_no_interval() -> None:
    found = difference(values("a", 0, 0, 0) | values("b", 0, 0), values("a", 1, 2, 3) | values("b", 1, 2))
    assert (found.pairs, found.mean, bounds(found)) == (5, (2 + 1.5) / 2, None)
    assert found.better_bounds is None


def test_area_is_the_mean_over_frames(tmp_path: Path) -> None:
    run = runs.read(make_run(tmp_path / "run", [0, 10, 30]))
    assert area(run, 20_000) == pytest.approx((5 + 20) / 2)
    assert area(run, 10_000) == pytest.approx(5)
    assert area(run, 15_000) == pytest.approx((5 * 10 + 15 * 5) / 15)  # linear between evaluations
    assert math.isnan(area(run, 20_001))
    assert math.isnan(area(run, 0))
