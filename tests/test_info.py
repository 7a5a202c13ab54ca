"""Numbers in an environment's `info`: means of them in the logs of all regimes, through resumes, and for sweeps."""

from __future__ import annotations

import csv
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import train
from drqv2.agents.drqv2 import DrQV2Agent
from drqv2.agents.impala import ImpalaAgent
from drqv2.agents.ppo import PPOAgent
from drqv2.envs import make
from drqv2.envs.info import numbers
from drqv2.errors import UserError
from drqv2.launch.command_line import launch
from drqv2.run import objective
from drqv2.snapshot import file as snapshot
from tests.short_run import ROOT, assert_same, resume
from tests.walk_env import Walk

ALL = "env._target_=tests.walk_env.Walk obs_type=state action_repeat=1 num_eval_episodes=3 save_video=false".split()
REPLAY = (
    "num_train_frames=60 num_seed_frames=20 eval_every_frames=30 batch_size=8 replay_buffer_num_workers=0 "
    "replay_buffer_size=300 agent.hidden_dim=8 save_train_video=false overlap=false"
).split()
POLICY = "num_envs=3 total_timesteps=144 eval_every_frames=50 agent.hidden_dim=8 log_every_seconds=0".split()
REGIMES = {
    "drqv2": [*REPLAY, "num_envs=2"],
    "multitask": [*REPLAY, "regime=multitask", "tasks=[one,two]", "env._target_=tests.test_info.walk_of_task"],
    "ppo": [*POLICY, "regime=ppo", "vector=serial", "horizon=8"],
    "ppo, a vector": [*POLICY, "regime=ppo", "horizon=8", "env._target_=tests.walk_env.vector", "+env.mode=SAME_STEP"],
    "impala": [*POLICY, "regime=impala", "num_actors=3", "batch_size=3", "unroll_length=8"],
    "impala, in turn": [*POLICY, "regime=impala", "deterministic=true", "batch_size=3", "unroll_length=8"],
}
REGIMES["impala, in turn"].append("num_actors=1")
SLOW = pytest.mark.slow  # actors in processes


def walk_of_task(task_name: str) -> Walk:
    return Walk(longest=3 if task_name == "one" else 6)


def run(run_dir: Path, regime: str, *overrides: str) -> Path:
    launch(train.main, "cfgs", argv=[*ALL, *REGIMES[regime], f"hydra.run.dir={run_dir}", *overrides])
    return run_dir


def rows(run_dir: Path, log: str) -> Iterator[dict[str, float]]:
    with open(run_dir / f"{log}.csv", newline="") as file:
        for row in csv.DictReader(file):
            yield {name: float(x) for name, x in row.items() if x}


@pytest.mark.parametrize("regime", [pytest.param(name, marks=SLOW if name == "impala" else ()) for name in REGIMES])
def test_means_over_steps_and_then_over_episodes(regime: str, tmp_path: Path) -> None:
    run(tmp_path / "run", regime)
    suffixes = ["_one", "_two", ""] if regime == "multitask" else [""]
    for log in ("train", "eval"):
        known = 0
        for row in rows(tmp_path / "run", log):
            for suffix in suffixes:
                if (length := row.get(f"episode_length{suffix}")) is None:
                    assert f"environment_t{suffix}" not in row
                    continue
                known += 1
                assert row[f"environment_at_end{suffix}"] == pytest.approx(length)
                assert row[f"environment_t{suffix}"] == pytest.approx((length + 1) / 2)
                assert 0 < row[f"environment_flag{suffix}"] <= 1
            assert not [name for name in row if name.startswith(("environment_success", "environment_only_at"))]
        assert known > 1


def stop_at(agent: Any, count: int) -> Callable[..., Any]:
    """Return an `update` that asks the process to stop when it is called for the `count`th time."""
    update, calls = agent.update, iter(range(1, 1000))

    def update_and_signal(self: Any, batches: Any, step: int) -> Any:
        if next(calls) == count:
            os.kill(os.getpid(), signal.SIGTERM)
        return update(self, batches, step)

    return update_and_signal


@pytest.mark.slow
@pytest.mark.parametrize(
    ("regime", "agent"),
    [("drqv2", DrQV2Agent), ("ppo", PPOAgent), ("impala, in turn", ImpalaAgent)],
)
def test_a_resume_within_an_episode_continues_its_means(
    regime: str, agent: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    longer = "+env.longest=40", "log_every_seconds=1000" if regime != "drqv2" else "num_train_frames=90"
    run(tmp_path / "whole", regime, *longer)
    with monkeypatch.context() as m:
        m.setattr(agent, "update", stop_at(agent, 3 if regime != "drqv2" else 30))
        with pytest.raises(SystemExit):
            run(tmp_path / "run", regime, *longer)
    saved = snapshot.load(tmp_path / "run" / "snapshot.pt")
    partial = {
        "drqv2": lambda: saved["progress"]["episode_info"],
        "ppo": lambda: saved["collector"]["totals"]["infos"],
        "impala, in turn": lambda: saved["actor"]["unroller"]["totals"]["infos"],
    }[regime]()
    assert any(sums.get("t", (0, 0))[1] > 1 for sums in partial), "no episode was under way"
    resume(tmp_path / "run")
    assert_same(tmp_path / "whole", tmp_path / "run")


@pytest.mark.slow
def test_the_objective_of_a_sweep_is_any_column(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = []
    for name in ("environment/t", "eval/episode_length", "train/environment_at_end"):
        launch(
            lambda cfg, work_dir: values.append(train.main(cfg, work_dir)),
            ROOT / "cfgs",
            argv=[*ALL, *REGIMES["drqv2"], f"hydra.run.dir={tmp_path / name}", f"objective={name}"],
        )
    *_, last = rows(tmp_path / "environment/t", "eval")
    after = [row for row in rows(tmp_path / "environment/t", "train") if row["frame"] > 60 / 5]
    expected = [last["environment_t"], last["episode_length"], np.mean([row["environment_at_end"] for row in after])]
    assert values == pytest.approx(expected)

    capsys.readouterr()
    with pytest.raises(SystemExit) as leaving:
        run(tmp_path / "run", "drqv2", "objective=environment/tt")
    assert leaving.value.code == 2
    told = capsys.readouterr()
    assert told.out.count("warning: objective=environment/tt: eval.csv has no value of environment_tt; nearest:") == 1
    assert "error: objective=environment/tt: eval.csv has no value" in told.err
    with pytest.raises(SystemExit):
        run(tmp_path / "other", "drqv2", "objective=environment/t", "eval_every_frames=null")
    assert "with eval_every_frames=null: it needs evaluations" in capsys.readouterr().err


def written(run_dir: Path, log: str, text: str) -> Path:
    (run_dir / f"{log}.csv").write_text(text)
    return run_dir


def test_a_run_that_was_stopped_early_has_a_value_too(tmp_path: Path) -> None:
    run_dir = written(tmp_path, "train", "frame,fps,x\n10,1,7\n20,2,\n30,3,\n100,4,\n")
    assert objective.value("train/fps", run_dir) == pytest.approx(np.mean([3, 4]))
    with pytest.raises(UserError, match=r"train.csv has no value of x after the first fifth of the run"):
        objective.value("train/x", run_dir)
    with pytest.raises(UserError, match=r"no value of y\nIt has frame, fps, x$"):
        objective.value("train/y", run_dir)


@pytest.mark.slow
def test_a_column_that_train_csv_lacks_is_reported_before_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as leaving:
        run(tmp_path / "run", "ppo", "objective=train/episode_rewrad", "stop_return=-1e9", "eval_at_start=false")
    assert leaving.value.code == 2
    words = "objective=train/episode_rewrad: train.csv has no value of episode_rewrad; nearest: episode_reward"
    told = capsys.readouterr()
    assert (told.out.count(f"warning: {words}"), told.err.count(words)) == (1, 1)
    run(tmp_path / "frames", "ppo", "objective=frame")
    run(tmp_path / "speed", "ppo", "objective=train/fps", "stop_return=-1e9", "total_timesteps=1e6")
    assert "warning: objective" not in capsys.readouterr().out


def test_the_value_of_ppo_without_a_finished_episode_is_another_one_and_it_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path / "run", "ppo", "+env.longest=100000", "max_episode_steps=1000", "eval_every_frames=null")
    assert "no training episode ended after the first fifth of the run: its value to a sweep" in capsys.readouterr().out


def test_which_numbers_are_kept() -> None:
    info: dict[Any, Any] = {
        "a": 1,
        "b": np.float32(0.5),
        "c": np.bool_(True),
        "d": False,
        "nan": float("nan"),
        "array": np.ones(2),
        "text": "1",
        "dict": {"x": 1},
        "success": True,
        "is_success": 1.0,
        "episode": {"r": 1.0},
        "TimeLimit.truncated": True,
        "complex": 1j,
        "huge": 10**400,
        7: 7.0,
    }
    assert numbers(info) == {"a": 1.0, "b": 0.5, "c": 1.0, "d": 0.0}
    assert numbers({}) is numbers({"text": "1"}) is None


def test_repeats_of_an_action_are_averaged() -> None:
    env = make("walk", 1, 4, 0, factory=lambda: Walk(longest=40), obs_type="state")
    env.reset()
    while not (step := env.step([0.1, 0.2])).last():
        assert step.info is not None
        assert step.info["t"] % 4 == 2.5
        assert "at_end" not in step.info
    assert step.info is not None
    assert make("cartpole_balance", 1, 1, 0, obs_type="state").reset().info is None
