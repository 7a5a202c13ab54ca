"""The tables that eval.py prints, with intervals and without."""

from __future__ import annotations

import pytest

from drqv2.evaluation.tables import episodes_table, tasks_table
from drqv2.run.stats import EpisodeResult


def episodes(*returns: float) -> list[EpisodeResult]:
    return [EpisodeResult(value, 500) for value in returns]


def test_the_table_of_a_task() -> None:
    lines = {line.split()[0]: line.split()[1:] for line in episodes_table(episodes(444, 998, 1000), 2)}
    assert lines["0"] == ["444.0", "1000"]
    assert lines["mean"] == lines["IQM"] == "814.0 95 % bootstrap interval 444.0 to 1000.0".split()


@pytest.mark.parametrize("number", [1, 2])
def test_fewer_than_three_episodes_have_no_interval(number: int) -> None:
    lines = {line.split()[0]: line.split()[1:] for line in episodes_table(episodes(*[7.0] * number), 2)}
    assert lines["mean"] == lines["IQM"] == "7.0 no interval from fewer than 3 episodes".split()
    *rows, last = tasks_table(["a", "b"], [episodes(*[7.0] * number), episodes(*[9.0] * number)])
    assert [row.split() for row in rows[1:]] == [["a", "7.0", "-"], ["b", "9.0", "-"], ["mean", "8.0", "-"]]
    assert last == "no interval from fewer than 3 episodes"


def test_the_mean_over_tasks_has_an_interval_over_the_episodes_of_each() -> None:
    rows = tasks_table(["a", "b"], [episodes(0, 3, 6), episodes(100, 100, 100)])
    assert [" ".join(row.split()) for row in rows[1:]] == [
        "a 3.0 0.0 to 6.0",
        "b 100.0 100.0 to 100.0",
        "mean 51.5 50.0 to 53.0",
    ]
