"""Means, interquartile means and bootstrap intervals, against figures worked out by hand and by scipy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from drqv2.evaluation.statistics import (
    Interval,
    interval,
    iqm,
    iqm_over_tasks,
    mean,
    mean_over_tasks,
    performance_profile,
    stratified_interval,
)


def found(bounds: Interval | None) -> Interval:
    """Return an interval, which has to be there."""
    assert bounds is not None
    return bounds


@pytest.mark.parametrize("n", range(1, 42))
def test_iqm_is_the_trimmed_mean_of_scipy(n: int) -> None:
    """Which rliable uses: `scipy.stats.trim_mean(scores, 0.25)`."""
    values = np.random.default_rng(n).normal(size=(n, 3))
    np.testing.assert_allclose(iqm(values), stats.trim_mean(values, 0.25, axis=0), rtol=1e-12)


def test_only_whole_values_are_trimmed() -> None:
    assert iqm(np.array([7.0])) == 7
    assert iqm(np.array([1.0, 3.0])) == 2
    assert iqm(np.array([444, 998, 1000])) == 814  # a quarter of three is less than one value, so all count
    assert iqm(np.array([100.0, 0.0, 2.0, 4.0, -50.0])) == 2  # without 100 and -50


@pytest.mark.parametrize("n", [1, 2])
def test_fewer_than_three_values_have_no_interval(n: int) -> None:
    assert interval(np.arange(float(n))) is None
    assert interval(np.zeros((n, 7)), iqm) is None


def test_interval_of_equal_values_is_a_point() -> None:
    assert [float(x) for x in found(interval(np.full(5, 3.0)))] == [3.0, 3.0]


def test_interval_fits_scipys() -> None:
    values = np.random.default_rng(0).normal(10, 2, 30)
    theirs = stats.bootstrap((values,), np.mean, method="percentile", rng=np.random.default_rng(1)).confidence_interval
    low, high = found(interval(values))
    assert float(low) == pytest.approx(theirs.low, abs=0.1)
    assert float(high) == pytest.approx(theirs.high, abs=0.1)
    assert [float(x) for x in found(interval(values))] == [float(low), float(high)]


def test_interval_of_curves_is_taken_point_by_point() -> None:
    values = np.stack([np.arange(4.0), np.arange(4.0) + 1, np.arange(4.0) + 2])
    low, high = found(interval(values, mean))
    np.testing.assert_allclose(low, np.arange(4.0))
    np.testing.assert_allclose(high, np.arange(4.0) + 2)


def test_performance_profile() -> None:
    scores = np.array([0.0, 0.2, 0.5, 0.5, 1.0])
    thresholds = np.array([0.0, 0.2, 0.49, 0.5, 1.0])
    assert performance_profile([scores], thresholds).tolist() == pytest.approx([0.8, 0.6, 0.6, 0.2, 0.0])
    two = performance_profile([np.stack([scores, 1 - scores], axis=1)], thresholds)  # [2, 5]
    assert two[1].tolist() == pytest.approx([0.8, 0.8, 0.8, 0.4, 0.0])


def test_strata_are_resampled_by_themselves() -> None:
    """Two tasks, one easy and one hard, whose seeds agree: only tasks differ, so there is no uncertainty from seeds."""
    easy, hard = np.full(3, 0.9), np.full(3, 0.1)
    assert found(stratified_interval([easy, hard], mean_over_tasks)) == pytest.approx((0.5, 0.5))
    low, high = found(interval(np.concatenate([easy, hard]), mean))
    assert low < 0.4
    assert high > 0.6


def test_stratified_interval_of_an_interquartile_mean_written_out() -> None:
    """Strata [0, 0, 1] and [4, 4, 4]: a resample has none to three ones, with probabilities 8, 12, 6 and 1 of 27.

    Of six values the lowest and the highest are cut. Left are the upper two of the zeros and ones, and two fours.
    """
    strata = [np.array([0.0, 0, 1]), np.full(3, 4.0)]
    possible = [(ones + 8) / 4 for ones in (0, 1, 2, 2)]
    assert found(stratified_interval(strata, iqm_over_tasks)) == pytest.approx((possible[0], possible[2]))


def test_intervals_of_many_values_at_once_are_those_of_each() -> None:
    values = np.random.default_rng(0).normal(size=(5, 3000))  # resampled in several blocks
    low, high = found(interval(values, iqm))
    for column in (0, 1234, 2999):
        assert (low[column], high[column]) == pytest.approx(found(interval(values[:, column], iqm)))
