"""Runs that are killed end as if they had not been; `make soak` is the long form."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.faults.harness import BOUNDARIES, differences, finish, kill_at_boundary, kill_at_random

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("mode", ["plain", "overlap", "3 environments"])
def test_killed_and_gone_on_with(tmp_path: Path, mode: str) -> None:
    rng = random.Random(mode)
    finish(tmp_path / "reference", mode)
    victim, kills = tmp_path / "victim", 0
    for boundary in rng.sample(BOUNDARIES, 4):
        kills += kill_at_boundary(victim, mode, boundary, rng.randint(1, 3))
        kills += kill_at_random(victim, mode, rng, seconds=1.5)
    finish(victim, mode)
    assert kills >= 4
    assert differences(tmp_path / "reference", victim) == []


def test_the_comparison_sees_a_difference(tmp_path: Path) -> None:
    for name, mode in (("a", "plain"), ("b", "bf16")):
        finish(tmp_path / name, mode)
    assert {"agent", "train.csv", "TensorBoard"} <= set(differences(tmp_path / "a", tmp_path / "b"))
