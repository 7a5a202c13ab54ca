"""Means, interquartile means and bootstrap intervals, against figures worked out by hand and by scipy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from drqv2.evaluation.statistics import interval, iqm, mean


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
