"""Means, interquartile means and bootstrap intervals, against figures worked out by hand and by scipy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from drqv2.evaluation.statistics import interval, iqm, mean, performance_profile, stratified_interval


@pytest.mark.parametrize("n", [4, 8, 40])
def test_iqm_is_the_mean_of_the_middle_half(n: int) -> None:
    values = np.random.default_rng(n).normal(size=(n, 3))
    np.testing.assert_allclose(iqm(values), stats.trim_mean(values, 0.25, axis=0))


def test_iqm_of_any_number() -> None:
    assert iqm(np.array([7.0])) == 7
    assert iqm(np.array([1.0, 3.0])) == 2
    assert iqm(np.array([0.0, 3.0, 100.0])) == pytest.approx((0.25 * 0 + 3 + 0.25 * 100) / 1.5)
    assert iqm(np.array([100.0, 0.0, 2.0, 4.0, -50.0])) == pytest.approx((0.75 * 0 + 2 + 0.75 * 4) / 2.5)


def test_interval_of_equal_values_is_a_point() -> None:
    assert [float(x) for x in interval(np.full(5, 3.0))] == [3.0, 3.0]


def test_interval_fits_scipys() -> None:
    values = np.random.default_rng(0).normal(10, 2, 30)
    theirs = stats.bootstrap((values,), np.mean, method="percentile", rng=np.random.default_rng(1)).confidence_interval
    low, high = interval(values)
    assert float(low) == pytest.approx(theirs.low, abs=0.1)
    assert float(high) == pytest.approx(theirs.high, abs=0.1)
    assert [float(x) for x in interval(values)] == [float(low), float(high)]


def test_interval_of_curves_is_taken_point_by_point() -> None:
    values = np.stack([np.arange(4.0), np.arange(4.0) + 1])
    low, high = interval(values, mean)
    np.testing.assert_allclose(low, np.arange(4.0))
    np.testing.assert_allclose(high, np.arange(4.0) + 1)


def test_performance_profile() -> None:
    scores = np.array([0.0, 0.2, 0.5, 0.5, 1.0])
    thresholds = np.array([0.0, 0.2, 0.49, 0.5, 1.0])
    assert performance_profile(scores, thresholds).tolist() == pytest.approx([0.8, 0.6, 0.6, 0.2, 0.0])
    two = performance_profile(np.stack([scores, 1 - scores], axis=1), thresholds)  # [2, 5]
    assert two[1].tolist() == pytest.approx([0.8, 0.8, 0.8, 0.4, 0.0])


def test_strata_are_resampled_by_themselves() -> None:
    """Two tasks, one easy and one hard, whose seeds agree: only tasks differ, so there is no uncertainty from seeds."""
    easy, hard = np.full(3, 0.9), np.full(3, 0.1)
    assert stratified_interval([easy, hard], mean) == pytest.approx((0.5, 0.5))
    low, high = interval(np.concatenate([easy, hard]), mean)
    assert low < 0.4
    assert high > 0.6


def test_stratified_interval_of_an_interquartile_mean_written_out() -> None:
    """Strata [0, 1] and [4]: the four resamples are {0,0,4}, {0,1,4}, {1,0,4}, {1,1,4}.

    Of three values the middle half is the second, and a quarter of the first and of the third, over 1.5.
    """
    possible = [(0 + 0.25 * 4) / 1.5, (1 + 0.25 * 4) / 1.5, (1 + 0.25 + 0.25 * 4) / 1.5]
    low, high = stratified_interval([np.array([0.0, 1.0]), np.array([4.0])], iqm)
    assert low == pytest.approx(possible[0])
    assert high == pytest.approx(possible[2])
    low, high = stratified_interval([np.array([0.0, 1.0]), np.array([4.0])], iqm, level=0.4)
    assert low == high == pytest.approx(possible[1])  # half of the resamples are in the middle


def test_intervals_of_many_values_at_once_are_those_of_each() -> None:
    values = np.random.default_rng(0).normal(size=(5, 3000))  # resampled in several blocks
    low, high = interval(values, iqm)
    for column in (0, 1234, 2999):
        assert (low[column], high[column]) == pytest.approx(interval(values[:, column], iqm))
