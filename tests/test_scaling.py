"""The scaling plan of IMPALA: closed form and simulation agree where one part is the slowest, buffers bound the lag."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.queueing import PREPARED, Constants, closed_form, limits, simulate, slowest

ROOT = Path(__file__).resolve().parents[1]
KNOWN = Constants(
    learner_sps=20_000,
    actor_sps=500,
    network_gbit=10,
    rollout_steps=80,
    rollout_bytes=2_300_000,
    weight_bytes=4_000_000,
    batch=32,
)
CASES = {
    "actors": (KNOWN, 20),
    "learner": (KNOWN, 300),
    "rollouts in": (replace(KNOWN, network_gbit=1, actors_per_node=64), 300),
    "weights out": (replace(KNOWN, network_gbit=1), 300),
}


@pytest.mark.parametrize("times", ["exponential", "normal"])
@pytest.mark.parametrize("limit", list(CASES))
def test_the_simulation_agrees_with_the_closed_form(limit: str, times: str) -> None:
    known, actors = CASES[limit]
    assert slowest(limits(known, actors)) == limit
    plan, simulated = closed_form(known, actors)._asdict(), simulate(known, actors, times)._asdict()
    assert simulated.pop("mb_out") < 1.02 * plan.pop("mb_out")  # planned for actors that never need the same weights
    assert simulated == pytest.approx(plan, rel=0.06, abs=0.02)


def test_each_node_needs_the_weights() -> None:
    assert simulate(KNOWN, 300).mb_out == pytest.approx(closed_form(KNOWN, 300).mb_out, rel=0.02)


def test_actors_share_what_their_node_has() -> None:
    known = replace(KNOWN, actors_per_node=20)
    assert closed_form(known, 20).mb_out == pytest.approx(closed_form(KNOWN, 20).mb_out / 20)
    assert simulate(known, 20).mb_out == pytest.approx(closed_form(known, 20).mb_out, rel=0.06)


@pytest.mark.parametrize("buffers", [32, 100, 1000])
@pytest.mark.parametrize("actors", [1, 300])
@pytest.mark.parametrize("gbit", [1, 10])
def test_the_lag_is_no_longer_than_the_buffers_allow(buffers: int, actors: int, gbit: float) -> None:
    known = replace(KNOWN, buffers=buffers, network_gbit=gbit)
    assert simulate(known, actors).lag <= buffers / known.batch + PREPARED + 0.01


def test_fewer_buffers_are_less_lag_at_the_same_speed() -> None:
    many, few = simulate(KNOWN, 300), simulate(replace(KNOWN, buffers=332), 300)
    assert few.sps == pytest.approx(many.sps, rel=0.01)
    assert few.lag < 0.6 * many.lag


@pytest.mark.slow
def test_the_program_measures_what_it_is_not_told() -> None:
    pytest.importorskip("envpool")
    command = [sys.executable, "-m", "benchmarks.scaling", "--quick", "--json", "--env=CartPole-v1", "--encoder=mlp"]
    words = [*command, "--hidden=8", "--unroll-length=20", "--batch-size=8", "--envs=2", "--actors=1,3"]
    printed = subprocess.run([*words, "--actor-sps=70"], cwd=ROOT, capture_output=True, check=True).stdout
    found = json.loads(printed)
    known = found["constants"]
    assert (known["actor_sps"], known["batch"], known["rollout_steps"]) == (70, 4, 40)
    assert known["learner_sps"] > 0
    assert known["weight_bytes"] == 4 * (8 * 4 + 8 + 8 * 8 + 8 + 2 * 8 + 2 + 8 + 1)
    assert known["rollout_bytes"] == 2 * 21 * (4 * 4 + 8 + 4 + 4 + 3)
    assert [row["actors"] for row in found["scaling"]] == [1, 3]
    assert [row["SPS"] for row in found["scaling"]] == [70, 210]


@pytest.mark.slow
def test_a_table_for_the_documentation() -> None:
    pytest.importorskip("envpool")
    given = ["--markdown", "--learner-sps=20000", "--actor-sps=500", "--actors=10,1000", "--rollout-bytes=2300000"]
    command = [sys.executable, "-m", "benchmarks.scaling", *given, "--weight-bytes=4000000"]
    first, second, _, head, _, *rows = subprocess.run(
        command, cwd=ROOT, capture_output=True, check=True, text=True
    ).stdout.splitlines()
    assert "learner_sps=20,000, actor_sps=500" in first
    assert second.startswith("Saturated: learner by 40")
    assert head.startswith("| actors | limit | SPS |")
    assert [row.split(" | ")[:2] for row in rows] == [["| 10", "actors"], ["| 1,000", "learner"]]
