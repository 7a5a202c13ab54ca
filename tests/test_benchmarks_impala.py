"""The plain IMPALA learner computes what this project's does, and the benchmark prints what it promises."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks import impala, runs
from benchmarks.baseline.impala import PlainImpala
from drqv2.agents.impala import ImpalaAgent

ROOT = Path(__file__).resolve().parents[1]
SMALL = [replace(sizes, hidden=16, rollouts=6, unroll_length=9) for sizes in impala.LEARNERS]


def two_learners(sizes: impala.Learner) -> tuple[PlainImpala, ImpalaAgent]:
    """The baseline and ours, whose policies are far from uniform: near it, a wrong ratio would not show."""
    torch.manual_seed(0)
    plain, ours = impala.make_plain(sizes), impala.make_agent(sizes, "fp32")
    with torch.no_grad():
        for weights in ours.policy.parameters():
            if weights.ndim > 1:
                weights.normal_(std=weights[0].numel() ** -0.5)  # what each layer puts out is of the size of its input
    return plain, ours


def start_alike(plain: PlainImpala, ours: ImpalaAgent) -> None:
    """Give the baseline our weights and squared gradients: rounding, which differs by processor, cannot grow."""
    with torch.no_grad():
        for mine, other in zip(plain.policy.parameters(), ours.policy.parameters(), strict=True):
            mine.copy_(other)
            if other in ours.optimizer.state:
                plain.optimizer.state[mine]["square_avg"].copy_(ours.optimizer.state[other]["square_avg"])


@pytest.mark.parametrize("sizes", SMALL, ids=lambda sizes: sizes.name)
def test_the_baseline_makes_the_same_update(sizes: impala.Learner) -> None:
    plain, ours = two_learners(sizes)
    for step in (0, 100, 5 * 10**8):
        start_alike(plain, ours)
        batch = impala.random_batch(sizes, ends_at=0.2)
        assert batch["terminated"].any()
        assert batch["truncated"].any()
        expected = ours.update(iter([batch]), step)
        got = plain.update(impala.time_major(batch), step)
        assert set(got) == {"pg_loss", "baseline_loss", "entropy_loss", "total_loss", "grad_norm"}
        assert got == pytest.approx({name: expected[name] for name in got}, rel=1e-3)
        for mine, other in zip(plain.policy.parameters(), ours.policy.parameters(), strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-4)  # an update moves a weight by up to 5e-3


def test_rows_of_the_warm_up_do_not_count(tmp_path: Path) -> None:
    table = tmp_path / "train.csv"
    columns = "total_time,step,policy_lag,performance_actors,performance_evaluation,actors_waiting"
    # An evaluation of 2 s came first; the learner waited in all of the first 4 s, then in 1 of 4.
    rows = ["2,10,,0.5,0.5,1.0", "4,20,9.0,0.6667,0.3333,1.0", "6,60,1.0,0.5625,0.25,0.1", "8,80,4.0,0.5,0.2,0.4"]
    table.write_text("\n".join([columns, *rows, "10,"]))
    assert runs._counted(runs._rows(table), 2.0, 5.0) == []
    counted = runs._counted(runs._rows(table), 2.0, 4.0)
    assert [row["step"] for row in counted] == [20, 60, 80]
    expected = {"SPS": 15.0, "policy_lag": 2.0, "learner_waits": 0.25, "actors_wait": 0.25}
    assert runs._summary(counted) == pytest.approx(expected, abs=1e-3)


@pytest.mark.slow
def test_a_run_that_fails_shows_its_output() -> None:
    with pytest.raises(RuntimeError, match="num_actors=0"):
        runs.speed(["regime=impala", "env_id=gymnasium:CartPole-v1", "num_actors=0"], 0.0, 0.1)


@pytest.mark.slow
def test_the_benchmark_holds_what_it_promises() -> None:
    pytest.importorskip("envpool")
    command = [sys.executable, "-m", "benchmarks.impala", "--quick", "--json"]
    rows = json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout)["impala"]
    assert [row["side"] for row in rows] == ["impala, 1 actor", "ppo", "plain", "fp32"]
    assert all(row["SPS_25"] <= row["SPS"] <= row["SPS_75"] for row in rows)
    assert [row["ratio"] for row in rows[1:3]] == [1.0, 1.0]
    first = rows[0]
    assert first["policy_lag"] >= 0
    assert 0 <= first["learner_waits"] <= 1
    assert 0 <= first["actors_wait"] <= 1
