"""Whole runs: what they write, the same bits for the same seed, and numbers that are not finite."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dm_control.rl import control
from omegaconf import OmegaConf

import train
from drqv2.agents import loading
from drqv2.agents.drqv2 import DrQV2Agent
from drqv2.run import evaluation
from drqv2.snapshot import file as snapshot
from drqv2.system import files
from tests.compare import assert_equal
from tests.short_run import ROOT, assert_same, resume, rows, run


def test_a_run_writes_everything(reference: Path) -> None:
    train_rows, eval_rows = rows(reference, "train"), rows(reference, "eval")
    assert [r["frame"] for r in train_rows] == [str(60 * (i + 1)) for i in range(8)]
    assert [r["frame"] for r in eval_rows] == ["0", "160", "320", "480"]
    last = train_rows[-1]
    for metric in (
        "batch_reward critic_target_q critic_q1 critic_q2 critic_loss actor_loss actor_logprob actor_ent "
        "encoder_grad_norm actor_grad_norm critic_grad_norm dormant_share q_mean mc_return_mean q_bias"
    ).split():
        assert np.isfinite(float(last[metric])), metric
    assert sorted(p.name for p in (reference / "eval_video").iterdir()) == ["0.mp4", "160.mp4", "320.mp4", "480.mp4"]
    assert {"60.mp4", "180.mp4"} <= {p.name for p in (reference / "train_video").iterdir()}
    assert list((reference / "tb").iterdir())
    stored = OmegaConf.load(reference / "config.yaml")
    assert stored.task_name == "cartpole_balance_sparse"
    assert stored.device == "cpu" or stored.device.startswith("cuda")
    assert not [p for p in reference.rglob("*") if "tmp" in p.name]


def test_only_a_long_evaluation_is_announced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for seconds, times in ((0.0, 1), (float("inf"), 0)):
        monkeypatch.setattr(evaluation, "_LONG", seconds)
        run(tmp_path / str(times), "num_train_frames=60", "eval_every_frames=60", "console=plain")
        said = capsys.readouterr().out
        for frame in (0, 60):
            assert said.count(f"evaluating at frame {frame}, episodes: 2\n") == times


def test_old_episodes_leave_the_disk(straight: Path) -> None:
    needed = min(snapshot.load(straight / name)["needs"] for name in files.SNAPSHOTS)
    assert 0 < needed < 5
    kept = [f"episode_{number:08}.safetensors" for number in range(needed, 8)]
    assert sorted(path.name for path in (straight / "buffer").iterdir()) == kept


def test_a_milestone_at_an_evaluation_is_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    save = snapshot.save

    def counted(path: Path, *args: Any, **kwargs: Any) -> None:
        written.append(path.name)
        save(path, *args, **kwargs)

    monkeypatch.setattr(snapshot, "save", counted)
    run(tmp_path / "run", "num_train_frames=160", "snapshot_keep=1", "snapshot_every_seconds=1000")
    assert sorted(name for name in written if "weights" in name) == ["weights_0.pt", "weights_160.pt"]
    assert written.count("snapshot.pt") == 3  # before each evaluation, and at the end


def test_episodes_of_a_run_without_snapshots_are_not_deleted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = run(tmp_path / "run", "num_train_frames=130", "save_snapshot=false")
    before = {path: path.read_bytes() for path in (run_dir / "buffer").iterdir()}
    assert before
    with pytest.raises(SystemExit) as leaving:
        run(run_dir, "num_train_frames=130")
    assert leaving.value.code == 2
    assert "a new run would delete them" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in (run_dir / "buffer").iterdir()} == before


def test_another_seed_gives_another_run(straight: Path, tmp_path: Path) -> None:
    other = run(tmp_path / "other", "seed=2", "num_train_frames=60")
    assert rows(other, "train")[0] != rows(straight, "train")[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "processes",
    [
        ["replay_buffer_num_workers=3"],
        ["replay_buffer_num_workers=1", "overlap=true", "num_eval_envs=2"],
    ],
)
def test_the_same_seed_gives_the_same_run_whatever_the_processes(
    straight: Path, tmp_path: Path, processes: list[str]
) -> None:
    assert_same(straight, run(tmp_path / "run", *processes))


@pytest.mark.slow
def test_several_environments_are_resumed_within_their_episodes(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", "num_envs=3", "num_train_frames=360")
    assert [r["frame"] for r in rows(whole, "train")[:3]] == ["180"] * 3  # three episodes of 60 frames side by side
    assert float(rows(whole, "train")[3]["critic_loss"]) > 0  # means since the last row: in the first of the next three
    parts = run(tmp_path / "parts", "num_envs=3", "num_train_frames=240")  # ends within episodes
    resume(parts, "num_train_frames=360")
    assert rows(whole, "train") == rows(parts, "train")
    saved = [snapshot.load(d / "snapshot.pt") for d in (whole, parts)]
    assert_equal(saved[0]["agent"], saved[1]["agent"])
    assert_equal(saved[0]["train_envs"], saved[1]["train_envs"])


class OwnAct(DrQV2Agent):
    def act(self, obs: np.ndarray, step: int, eval_mode: bool) -> np.ndarray:
        return np.zeros(1, np.float32)


class OwnBoth(OwnAct):
    def act_batch(self, obs: np.ndarray, step: int, eval_mode: bool) -> np.ndarray:
        return np.zeros((len(obs), 1), np.float32)


@pytest.mark.parametrize(("kind", "batched"), [(DrQV2Agent, True), (OwnAct, False), (OwnBoth, True)])
def test_batches_of_observations_only_for_the_agent_that_acts(kind: type, batched: bool) -> None:
    assert loading.adapted(object.__new__(kind)).acts_singly is not batched


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reward", "environment", "where"),
    [
        (float("nan"), 0, "step 1 of episode 0 of evaluation 0: the reward is nan"),
        (float("inf"), 1, "step 1 of episode 0 of environment 0: the reward is inf"),
    ],
    ids=["evaluation", "training"],
)
def test_a_reward_that_is_not_finite_ends_the_run(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    reward: float,
    environment: int,
    where: str,
) -> None:
    seen: list[Any] = []  # the environments, in the order in which they begin to step
    step = control.Environment.step

    def spoilt(self: Any, action: Any) -> Any:
        if self not in seen:
            seen.append(self)
        time_step = step(self, action)
        return time_step._replace(reward=reward) if seen.index(self) == environment else time_step

    monkeypatch.setattr(control.Environment, "step", spoilt)
    with pytest.raises(SystemExit) as leaving:
        run(tmp_path / "run", "env._target_=tests.short_env.make")
    assert leaving.value.code == 76
    err = capsys.readouterr().err
    assert where in err
    assert not list((tmp_path / "run" / "buffer").glob("*"))


@pytest.mark.slow
def test_a_loss_that_is_not_finite_ends_the_run_on_a_good_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    learn = DrQV2Agent.update_critic

    def diverge(self: DrQV2Agent, obs: torch.Tensor, *args: Any) -> Any:
        if args[-1] == 100:
            with torch.no_grad():
                next(self.critic.parameters()).fill_(float("nan"))
        return learn(self, obs, *args)

    with monkeypatch.context() as m:
        m.setattr(DrQV2Agent, "update_critic", diverge)
        with pytest.raises(SystemExit) as leaving:
            run(tmp_path / "run")
    assert leaving.value.code == 76
    err = capsys.readouterr().err
    # Whichever is looked at first: a loss with each snapshot, an action with each step.
    assert re.search(r"critic_loss is not finite at frame 20|the agent's action is \[nan\] at agent step 101", err)
    assert "resume with: " in err
    assert snapshot.load(tmp_path / "run" / "snapshot.pt")["frame"] <= 200
    resume(tmp_path / "run", "num_train_frames=240")


def test_init_from_takes_weights_alone(straight: Path, tmp_path: Path) -> None:
    cfg: Any = OmegaConf.load(straight / "config.yaml")
    cfg.init_from = str(straight / "snapshot.pt")
    workspace = train.Workspace(cfg, tmp_path)
    saved = snapshot.load(straight / "snapshot.pt")["agent"]["children"]
    try:
        agent: Any = workspace.agent
        for name, value in agent.critic.state_dict().items():
            assert torch.equal(value, saved["critic"]["value"][name])
        assert workspace.global_step == 0
        assert not agent.critic_opt.state
    finally:
        workspace.close()


def test_no_update_before_an_episode_is_committed(tmp_path: Path) -> None:
    run_dir = run(tmp_path / "run", "num_seed_frames=0", "num_train_frames=120")
    assert rows(run_dir, "train")[0].get("critic_loss", "") == ""
    assert float(rows(run_dir, "train")[1]["critic_loss"]) > 0


@pytest.mark.slow
def test_updates_per_step(tmp_path: Path) -> None:
    run_dir = run(tmp_path / "run", "updates_per_step=3", "num_train_frames=180")
    taken = snapshot.load(run_dir / "snapshot.pt")["replay_loader"]["taken"]
    assert taken == 3 * 15  # 30 agent steps past the seed frames, an update every second one, three batches each


@pytest.mark.slow
def test_preset_debug_exercises_everything(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    subprocess.run([sys.executable, "train.py", "preset=debug", f"hydra.run.dir={run_dir}"], cwd=ROOT, check=True)
    train_rows = rows(run_dir, "train")
    assert {r["buffer_size"] for r in train_rows[-2:]} == {"500"}  # the replay is full: older episodes were evicted
    assert any(r["q_bias"] for r in train_rows)
    assert float(train_rows[-1]["critic_loss"]) > 0
    assert len(rows(run_dir, "eval")) >= 2
    for folder in ("eval_video", "train_video"):
        assert list((run_dir / folder).glob("*.mp4"))
    assert snapshot.load(run_dir / "snapshot.pt")["progress"]["step"] == 5000 // 8


def test_the_last_evaluation_is_filmed_where_frames_are_no_multiple_of_the_repeat(tmp_path: Path) -> None:
    run(tmp_path / "run", "action_repeat=7", "save_video=last")  # 480 frames
    assert [path.name for path in (tmp_path / "run" / "eval_video").iterdir()] == ["476.mp4"]
