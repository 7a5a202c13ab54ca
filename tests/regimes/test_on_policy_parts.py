"""Whole runs of regime=ppo and regime=impala on images and vectors: they learn from both, and resume the same."""

from __future__ import annotations

import itertools
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import train
from drqv2.agents.impala import ImpalaAgent
from drqv2.agents.ppo import PPOAgent
from drqv2.launch.command_line import launch
from drqv2.snapshot import file as snapshot
from tests.short_run import IMPALA, IN_TURN, PPO, assert_same, resume, rows

pytestmark = pytest.mark.slow

OWN = "env_id=null env._target_=tests.parts_env.make image_size=20 agent.encoder=small num_eval_episodes=1".split()
SHORT = ["total_timesteps=288", "eval_every_frames=144"]


def run(run_dir: Path, *words: str) -> Path:
    launch(train.main, "cfgs", argv=[*words, f"hydra.run.dir={run_dir}"])
    return run_dir


def stops_at(count: int, agent: Any) -> Any:
    """Return an `update` of an agent that asks the process to stop when it is called for the `count`th time."""
    update, calls = agent.update, itertools.count(1)

    def update_and_signal(self: Any, batches: Any, step: int) -> dict[str, float]:
        if next(calls) == count:
            os.kill(os.getpid(), signal.SIGTERM)
        learnt: dict[str, float] = update(self, batches, step)
        return learnt

    return update_and_signal


@pytest.mark.parametrize(("agent", "words"), [(PPOAgent, PPO), (ImpalaAgent, [*IMPALA, *IN_TURN])])
def test_an_interrupted_run_ends_in_the_same_bits(
    agent: Any,
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    whole = run(tmp_path / "whole", *words, *OWN, *SHORT)
    assert "the agent sees image uint8 [1, 20, 20], clock float32 [1], goal float32 [3]" in capsys.readouterr().out
    with monkeypatch.context() as m:
        m.setattr(agent, "update", stops_at(3, agent))
        with pytest.raises(SystemExit):
            run(tmp_path / "run", *words, *OWN, *SHORT)
    assert snapshot.load(tmp_path / "run" / "snapshot.pt")["frame"] < 288
    resume(tmp_path / "run")
    assert_same(whole, tmp_path / "run")


@pytest.mark.parametrize("batched", ["false", "true"])
def test_actors_in_processes_and_their_resume(batched: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = [*IMPALA, *OWN, *SHORT, f"batched_inference={batched}"]
    with monkeypatch.context() as m:
        m.setattr(ImpalaAgent, "update", stops_at(3, ImpalaAgent))
        with pytest.raises(SystemExit):
            run(tmp_path / "run", *words)
    resume(tmp_path / "run")
    assert [int(row["frame"]) for row in rows(tmp_path / "run", "train")] == list(range(48, 289, 48))


def test_ppo_learns_what_only_image_and_vector_tell(tmp_path: Path) -> None:
    words = "regime=ppo vector=serial total_timesteps=16384 log_every_seconds=0 save_video=false use_tb=false".split()
    done = run(tmp_path / "run", *words, *OWN, "eval_every_frames=16384", "agent.hidden_dim=64")
    returns = [float(row["episode_reward"]) for row in rows(done, "train")]
    assert returns[0] < 3  # of 7; a third of the actions are right by chance
    assert np.mean(returns[-2:]) > 5.5
