"""Runs that are killed end as if they had not been; `make soak` is the long form."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.faults.harness import BOUNDARIES, differences, finish, kill_at_boundary, kill_at_random

pytestmark = pytest.mark.slow


def kill_twice_and_finish(run_dir: Path, mode: str, boundary: str, count: int) -> None:
    rng = random.Random(mode)
    assert kill_at_boundary(run_dir, mode, boundary, count)
    kills = 1
    for _ in range(9):
        if kills == 2:
            break
        kills += kill_at_random(run_dir, mode, rng, seconds=1.0)
    finish(run_dir, mode)


def test_a_killed_run_ends_in_the_same_bits(whole: Path, tmp_path: Path) -> None:
    """With workers and overlap, which change nothing, so that its reference is the plain run."""
    assert set(BOUNDARIES) >= {".pt: old one moved", ".csv: row written"}
    kill_twice_and_finish(tmp_path / "victim", "overlap", ".pt: old one moved", 2)
    assert differences(whole, tmp_path / "victim") == []


def test_a_killed_run_of_ppo_ends_in_the_same_bits(tmp_path: Path) -> None:
    finish(tmp_path / "reference", "PPO")
    kill_twice_and_finish(tmp_path / "victim", "PPO", ".csv: row written", 9)
    assert differences(tmp_path / "reference", tmp_path / "victim") == []


def test_a_killed_run_of_several_environments_ends_in_the_same_bits(whole: Path, tmp_path: Path) -> None:
    mode = "3 environments"
    finish(tmp_path / "reference", mode)
    kill_twice_and_finish(tmp_path / "victim", mode, ".csv: row written", 3)
    assert differences(tmp_path / "reference", tmp_path / "victim") == []
    # The comparison does see a difference, where there is one.
    assert {"agent", "train.csv", "TensorBoard"} <= set(differences(whole, tmp_path / "victim"))
