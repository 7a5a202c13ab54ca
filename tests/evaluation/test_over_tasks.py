"""Statistics over tasks, against values of the package rliable.

The numbers under RLIABLE were computed with rliable 1.2.0 and arch 7.2.0, intervals with 50,000 resamples (that of the
probability of improvement with 20,000). The package is not needed here. Where it can be imported, one more test
compares other matrices with it:

    pip install --target DIR --no-deps rliable==1.2.0 arch==7.2.0 'pandas<3' pytz absl-py statsmodels patsy
    PYTHONPATH=DIR:. pytest tests/evaluation/test_over_tasks.py
"""

from __future__ import annotations

import numpy as np
import pytest

from drqv2.evaluation.statistics import (
    improvement_interval,
    iqm_over_tasks,
    mean_over_tasks,
    optimality_gap,
    performance_profile,
    probability_of_improvement,
    stratified_interval,
)


def matrix(seeds: int, tasks: int, offset: int) -> np.ndarray:
    """Return scores between 0 and 1 that are easy to write down again, [seeds, tasks]."""
    n, t = np.ogrid[:seeds, :tasks]
    return np.asarray((17 * n**2 + 31 * t * (n + 1) + offset) % 101 / 100)


def by_task(scores: np.ndarray) -> list[np.ndarray]:
    """Return the scores [seeds] of each task."""
    return list(scores.T)


FIRST, OTHER = matrix(5, 4, 20), matrix(3, 4, 0)
RLIABLE = {  # metrics.aggregate_NAME(FIRST), aggregate_NAME(OTHER), and get_interval_estimates of FIRST
    "iqm": (0.614, 0.4816666666666667, (0.452, 0.756)),
    "mean": (0.595, 0.4558333333333333, (0.485, 0.7)),
    "optimality_gap": (0.405, 0.5441666666666665, (0.3, 0.515)),
}
OURS = {"iqm": iqm_over_tasks, "mean": mean_over_tasks, "optimality_gap": optimality_gap}


@pytest.mark.parametrize("name", OURS)
def test_statistics_of_full_matrices_are_those_of_rliable(name: str) -> None:
    first, other, (low, high) = RLIABLE[name]
    assert OURS[name](by_task(FIRST)) == pytest.approx(first, abs=1e-12)
    assert OURS[name](by_task(OTHER)) == pytest.approx(other, abs=1e-12)
    bounds = stratified_interval(by_task(FIRST), OURS[name])
    assert bounds is not None
    assert [float(bound) for bound in bounds] == pytest.approx([low, high], abs=0.015)  # of 2,000 resamples


def test_scores_above_1_do_not_make_up_for_others() -> None:
    assert optimality_gap(by_task(2 * FIRST)) == pytest.approx(0.16, abs=1e-12)  # aggregate_optimality_gap(2 * FIRST)


def test_the_profile_is_that_of_rliable() -> None:
    thresholds = np.array([0, 0.2, 0.5, 0.8])  # library.score_distributions(FIRST, thresholds)
    assert performance_profile(by_task(FIRST), thresholds).tolist() == pytest.approx([1, 0.85, 0.6, 0.3])


def test_the_probability_of_improvement_is_that_of_rliable() -> None:
    assert probability_of_improvement(by_task(FIRST), by_task(OTHER)) == pytest.approx(
        0.7
    )  # with unequal numbers of seeds
    assert probability_of_improvement(by_task(OTHER), by_task(FIRST)) == pytest.approx(0.3)
    bounds = improvement_interval(by_task(FIRST), by_task(OTHER))
    assert bounds is not None
    assert [float(bound) for bound in bounds] == pytest.approx([0.5, 0.88333333], abs=0.02)


def test_equal_scores_count_half() -> None:
    assert probability_of_improvement([np.array([1.0, 2])], [np.array([1.0, 2])]) == 0.5
    assert probability_of_improvement([np.array([1.0, 2])], [np.array([1.0])]) == 0.75
    assert probability_of_improvement([np.ones(3)], [np.ones(2)]) == 0.5


def test_other_matrices_with_the_package() -> None:
    metrics = pytest.importorskip("rliable.metrics")
    rng = np.random.default_rng(0)
    for _ in range(100):
        seeds, others, tasks = rng.integers(1, 9, 3)
        first, other = rng.normal(size=(seeds, tasks)), rng.integers(-1, 2, (others, tasks)).astype(float)
        for name, ours in OURS.items():
            assert ours(by_task(first)) == pytest.approx(getattr(metrics, f"aggregate_{name}")(first)), (seeds, tasks)
        for one, two in ((first, other), (other, first), (other, other)):
            theirs = metrics.probability_of_improvement(one, two)
            assert probability_of_improvement(by_task(one), by_task(two)) == pytest.approx(theirs)


# Unequal numbers of seeds


def test_unequal_seeds_are_repeated_until_all_tasks_have_as_many() -> None:
    rng = np.random.default_rng(1)
    for counts in ([1, 2], [2, 3, 4], [1, 1, 6, 4], [5, 3]):
        scores = [rng.normal(size=(count, 7)) for count in counts]
        most = int(np.lcm.reduce(counts))
        full = [np.repeat(own, most // len(own), axis=0) for own in scores]
        for ours in OURS.values():
            np.testing.assert_allclose(ours(scores), ours(full))
        one = [own[:, 0] for own in scores]
        repeated = np.concatenate([own[:, 0] for own in full])
        assert iqm_over_tasks(one) == pytest.approx(
            np.sort(repeated)[len(repeated) // 4 :][: -(len(repeated) // 4)].mean()
        )


def test_a_setting_that_is_better_on_every_task_is_better_over_all() -> None:
    """With pooled seeds the worse setting was ahead, since it was run more often on the easy task."""
    better = [np.full(2, 0.95), np.full(6, 0.15)]
    worse = [np.full(6, 0.9), np.full(2, 0.1)]
    pooled = [float(iqm_over_tasks([np.concatenate(scores)])) for scores in (better, worse)]
    assert pooled == pytest.approx([0.15, 0.9])
    for statistic in (iqm_over_tasks, mean_over_tasks):
        assert [float(statistic(scores)) for scores in (better, worse)] == pytest.approx([0.55, 0.5])
    assert optimality_gap(better) < optimality_gap(worse)
    assert probability_of_improvement(better, worse) == 1
    assert (performance_profile(better, np.array([0.12, 0.92])) == [1, 0.5]).all()
    assert (performance_profile(worse, np.array([0.12, 0.92])) == [0.5, 0]).all()


def test_a_task_with_two_seeds_leaves_no_interval() -> None:
    assert stratified_interval([np.arange(3.0), np.arange(2.0)], iqm_over_tasks) is None
    assert improvement_interval([np.arange(3.0)], [np.arange(2.0)]) is None
    assert improvement_interval([np.arange(2.0)], [np.arange(3.0)]) is None
