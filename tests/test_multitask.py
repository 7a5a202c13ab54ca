"""Whole runs of regime=multitask: one task is DrQ-v2's run, what is stored and learnt of several, how they resume."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import train
from drqv2.agents.multitask import MultiTaskAgent
from drqv2.launch.command_line import launch
from drqv2.regimes.multitask import MultitaskWorkspace
from drqv2.run.stats import EvalStats
from drqv2.snapshot import file as snapshot
from tests import task_envs
from tests.compare import assert_equal
from tests.short_run import assert_same, resume, rows, run
from tests.task_run import LONG, RECORDER, SHORT, SILENT, TASKS, Recorder, episodes, run_tasks, tasks

DOT = "env._target_=tests.dot_env.make obs_type=pixels".split()
MULTITASK = [*DOT, "regime=multitask"]
DRQV2 = "agent._target_=drqv2.agents.drqv2.DrQV2Agent"


def evaluated(run_dir: Path) -> list[tuple[str, str]]:
    return [(row["frame"], row["episode_reward"]) for row in rows(run_dir, "eval")]


def agent_of(run_dir: Path) -> dict[str, Any]:
    return snapshot.load(run_dir / "snapshot.pt")["agent"]


def tensors(node: Any) -> list[torch.Tensor]:
    if isinstance(node, torch.Tensor):
        return [node]
    parts = node.values() if isinstance(node, dict) else node if isinstance(node, list | tuple) else ()
    return [tensor for part in parts for tensor in tensors(part)]


# One task


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("plain") / "run", *DOT)


@pytest.mark.slow
def test_one_task_with_the_agent_of_drqv2_is_the_run_of_drqv2(
    plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    alike = run(tmp_path / "run", *MULTITASK, DRQV2)
    said = "a single task, cartpole_balance_sparse: tasks=[NAME,NAME] trains several\n"
    assert capsys.readouterr().out.count(said) == 1
    assert len(evaluated(plain)) == 4
    assert evaluated(alike) == evaluated(plain)
    assert_equal(agent_of(alike), agent_of(plain))


PARTS = "encoder actor critic critic_target encoder_opt actor_opt critic_opt act_generator update_generator aug".split()


@pytest.mark.slow
def test_one_task_with_the_agent_of_several_is_the_run_of_drqv2(plain: Path, tmp_path: Path) -> None:
    alike = run(tmp_path / "run", *MULTITASK)
    assert evaluated(alike) == evaluated(plain)
    theirs, ours = agent_of(plain)["children"], agent_of(alike)["children"]
    for part in PARTS:
        expected, found = tensors(theirs[part]), tensors(ours[part])
        assert expected, part
        assert len(found) == len(expected), part
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True)), part


@pytest.mark.slow
def test_two_environments_of_one_task_are_the_two_of_drqv2(tmp_path: Path) -> None:
    plain = run(tmp_path / "plain", *DOT, "num_envs=2")
    alike = run(tmp_path / "alike", *MULTITASK, DRQV2, "envs_per_task=2")
    assert evaluated(alike) == evaluated(plain)
    assert_equal(agent_of(alike), agent_of(plain))


# What is stored


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Recorder, list[task_envs.Scripted]]:
    """A run of all three tasks with an agent that records, its agent, and its environments of training."""
    task_envs.MADE.clear()
    own = f"per_task={{{LONG}:{{discount:0.5}},{SHORT}:{{action_repeat:2}}}}"
    run_dir = run_tasks(tmp_path_factory.mktemp("recorded") / "run", RECORDER, own, "replay_buffer_size=2000")
    return run_dir, Recorder.made[-1], task_envs.MADE[:3]


@pytest.mark.slow
def test_every_transition_of_every_task_is_stored_and_only_terminations_have_no_future(
    recorded: tuple[Path, Recorder, list[task_envs.Scripted]],
) -> None:
    stored = episodes(recorded[0])
    assert [sum(int(e["task"][0, 0]) == task for e in stored) for task in range(3)] == [12, 60, 17]
    # Of each task: the frames seen, rewards, and what is bootstrapped from after the last of them.
    frames = [list(range(11)), [0, 2, 4], list(range(8))]
    rewards = [list(range(11)), [0, 30, 70], [0.5 * t for t in range(8)]]
    last = [1.0, 0.0, 1.0]
    for episode in stored:
        task = int(episode["task"][0, 0])
        assert (episode["task"] == task).all()
        assert episode["observation"][:, 1].tolist() == frames[task]
        assert episode["reward"][:, 0].tolist() == rewards[task]
        assert episode["discount"][:, 0].tolist() == [1.0] * (len(frames[task]) - 1) + [last[task]]
        assert np.unique(episode["observation"][:, 0]).size == 1


def test_returns_of_several_steps_use_the_discount_and_the_action_repeat_of_their_task(
    recorded: tuple[Path, Recorder, list[task_envs.Scripted]],
) -> None:
    gammas, repeats, lengths, scales = (0.5, 0.99, 0.99), (1, 2, 1), (10, 4, 7), (1.0, 10.0, 0.5)
    seen = set()
    for batch in recorded[1].batches:
        for obs, _, reward, discount, next_obs, task in zip(*batch, strict=True):
            k, t = int(task), int(obs[1])
            seen.add((k, t))
            ret, factor, at = 0.0, 1.0, t
            for _ in range(3):
                if at < lengths[k]:
                    ret += factor * sum(scales[k] * (at + 1 + frame) for frame in range(repeats[k]))
                    at += repeats[k]
                    factor *= gammas[k]
            if k == 1 and at == lengths[k]:
                factor = 0.0
            assert float(reward) == pytest.approx(ret, rel=1e-5)
            assert float(discount) == pytest.approx(factor, rel=1e-5)
            assert int(next_obs[1]) == at
            assert float(next_obs[0]) == float(obs[0])
    assert seen == {(k, t) for k in range(3) for t in range(0, lengths[k], repeats[k])}


def test_an_environment_gets_the_numbers_of_its_own_action_and_the_rest_is_stored_as_0(
    recorded: tuple[Path, Recorder, list[task_envs.Scripted]],
) -> None:
    run_dir, agent, envs = recorded
    assert agent.size == 3
    sizes, repeats = (2, 1, 3), (1, 2, 1)
    for k, env in enumerate(envs):
        assert len(env.taken) == 120 * repeats[k]
        assert {action.shape for action in env.taken} == {(sizes[k],)}
        assert all(np.abs(action).max() > 0 for action in env.taken)
        stored = np.concatenate([e["action"][1:] for e in episodes(run_dir) if e["task"][0, 0] == k])
        np.testing.assert_allclose(
            np.stack(env.taken)[:: repeats[k]][: len(stored)], 2 * stored[:, : sizes[k]], rtol=1e-6
        )
        assert (stored[:, sizes[k] :] == 0).all()


def test_an_agent_is_told_the_task_of_each_observation(
    recorded: tuple[Path, Recorder, list[task_envs.Scripted]],
) -> None:
    assert recorded[1].acted == [(step, task) for step in range(120) for task in range(3)]


def test_several_environments_of_each_task_all_fill_the_replay(tmp_path: Path) -> None:
    task_envs.MADE.clear()
    run_dir = run_tasks(tmp_path / "run", RECORDER, "envs_per_task=2", "replay_buffer_size=2000")
    assert [env.spec.id if env.spec else None for env in task_envs.MADE[:6]] == [
        name.rpartition(":")[2] for name in (LONG, LONG, SHORT, SHORT, SILENT, SILENT)
    ]
    assert [len(env.taken) for env in task_envs.MADE[:6]] == [60] * 6
    stored = episodes(run_dir)
    assert [sum(int(e["task"][0, 0]) == task for e in stored) for task in range(3)] == [12, 30, 16]
    drawn = {(int(e["task"][0, 0]), float(e["observation"][0, 0])) for e in stored}
    assert len(drawn) == len(stored), "no two episodes of a task are the same"


def test_excluded_tasks_are_played_and_logged_but_not_learnt_from(tmp_path: Path) -> None:
    task_envs.MADE.clear()
    run_dir = run_tasks(tmp_path / "run", RECORDER, f"exclude_tasks=[{SHORT}]", "replay_buffer_size=2000")
    assert [len(env.taken) for env in task_envs.MADE[:3]] == [120] * 3
    assert {int(e["task"][0, 0]) for e in episodes(run_dir)} == {0, 2}
    assert {int(task) for batch in Recorder.made[-1].batches for task in batch[5]} == {0, 2}
    assert sum(row["episode_reward_Short-v0"] == "100.0" for row in rows(run_dir, "train")) == 30
    assert {row["episode_reward_Short-v0"] for row in rows(run_dir, "eval")} == {"100.0"}
    for row in rows(run_dir, "eval"):  # the means are of what is learnt: Long returns 55, Silent 14
        assert (row["episode_reward"], row["episode_length"], row["success"]) == ("34.5", "8.5", "1.0")
    assert rows(run_dir, "train")[-1]["buffer_size"] == str(12 * 10 + 17 * 7)


# How many updates


def updates(tmp_path: Path, *overrides: str) -> list[int]:
    run_tasks(tmp_path / "run", "agent.update_every_steps=1", *overrides)
    return Recorder.made[-1].steps


PLAIN = ["agent._target_=tests.task_run.PlainRecorder", f"env_id={SILENT}", "regime=drqv2"]


@pytest.mark.parametrize("regime", ["multitask", "drqv2"])
@pytest.mark.parametrize(
    ("rate", "expected"),
    [
        ("1", list(range(20, 120))),
        ("0.25", list(range(20, 120, 4))),
        ("1.5", [step for step in range(20, 120) for _ in range(2 - step % 2)]),
    ],
)
def test_updates_per_step_after_the_seed_frames_and_none_before(
    tmp_path: Path, regime: str, rate: str, expected: list[int]
) -> None:
    own = [RECORDER] if regime == "multitask" else PLAIN
    assert updates(tmp_path, *own, f"updates_per_step={rate}") == expected


@pytest.mark.parametrize("regime", ["multitask", "drqv2"])
def test_seed_updates_come_once_right_after_the_seed_frames(tmp_path: Path, regime: str) -> None:
    own = [RECORDER] if regime == "multitask" else PLAIN
    made = updates(tmp_path, *own, "seed_updates=30", "num_seed_frames=40", "updates_per_step=0.25")
    assert made == [40] * 30 + list(range(44, 120, 4))


def test_several_environments_of_a_task_change_neither_the_number_of_updates_nor_their_steps(tmp_path: Path) -> None:
    overrides = [RECORDER, "envs_per_task=2", "updates_per_step=0.25", "seed_updates=3"]
    assert updates(tmp_path, *overrides) == [20] * 3 + list(range(24, 120, 4))


@pytest.mark.parametrize("last_seed_frame", [20, 23])
def test_seed_updates_wait_for_a_step_at_which_the_agent_learns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last_seed_frame: int
) -> None:
    learnt: list[int] = []
    update_task_critic = MultiTaskAgent.update_task_critic

    def counted(self: MultiTaskAgent, *batch: Any) -> Any:
        learnt.append(batch[-1])
        return update_task_critic(self, *batch)

    monkeypatch.setattr(MultiTaskAgent, "update_task_critic", counted)
    first = last_seed_frame + last_seed_frame % 2
    run_tasks(tmp_path / "run", "seed_updates=7", f"num_seed_frames={last_seed_frame}", "num_train_frames=40")
    assert learnt == [first] * 7 + list(range(first + 2, 40, 2))


# Success


def successes(run_dir: Path, name: str, column: str) -> set[str]:
    return {row[column] for row in rows(run_dir, name) if row.get(column)}


def test_an_episode_succeeds_if_any_of_its_frames_does(tmp_path: Path) -> None:
    """Long succeeds at frame 3 of 10, within an action that is repeated; Short never; Silent does not say."""
    run_dir = run_tasks(tmp_path / "run", RECORDER, f"per_task={{{LONG}:{{action_repeat:2}}}}")
    for name in ("train", "eval"):
        assert successes(run_dir, name, "success_Long-v0") == {"1.0"}
        assert successes(run_dir, name, "success_Short-v0") == {"0.0"}
        assert "success_Silent-v0" not in rows(run_dir, name)[0]
    assert successes(run_dir, "eval", "success") == {"0.5"}
    for row in rows(run_dir, "train"):
        own = [float(row[f"success_{task}-v0"]) for task in ("Long", "Short") if row[f"success_{task}-v0"]]
        assert row["success"] == (str(np.mean(own)) if own else "")
    assert {row["episode_length_Long-v0"] for row in rows(run_dir, "eval")} == {"10.0"}


def test_metrics_can_have_the_names_of_mtrl(tmp_path: Path) -> None:
    run_dir = run_tasks(tmp_path / "run", RECORDER, "metric_names=env_index")
    for name in ("train", "eval"):
        assert successes(run_dir, name, "success_env_index_0") == {"1.0"}
        assert successes(run_dir, name, "success_env_index_1") == {"0.0"}
        assert successes(run_dir, name, "episode_reward_env_index_2") == {"14.0"}
        assert not [column for column in rows(run_dir, name)[0] if "v0" in column]


# Resume

OPTIONS = "agent.value=hl_gauss agent.critic=residual agent.critic_dim=8 agent.normalize_rewards=true".split()
OPTIONS += ["agent.critic_heads=task", "envs_per_task=2", "num_eval_envs=2", "seed_updates=5", "updates_per_step=0.5"]
OPTIONS += ["agent.update_every_steps=1"]


@pytest.mark.slow
@pytest.mark.parametrize("at", [20, 71])
def test_a_run_that_is_stopped_and_resumed_is_the_run_that_went_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    whole = run_tasks(tmp_path / "whole", *OPTIONS)
    update = MultiTaskAgent.update

    def update_and_signal(self: MultiTaskAgent, replay_iter: Iterator[Any], step: int) -> Any:
        if step >= at:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.2)
        return update(self, replay_iter, step)

    with monkeypatch.context() as m:
        m.setattr(MultiTaskAgent, "update", update_and_signal)
        with pytest.raises(SystemExit) as leaving:
            run_tasks(tmp_path / "parts", *OPTIONS)
    assert leaving.value.code == 75
    assert at < snapshot.load(tmp_path / "parts" / "snapshot.pt")["frame"] <= at + 3  # two steps a round
    resume(tmp_path / "parts")
    assert_same(whole, tmp_path / "parts")
    # What rewards are divided by, times value_max: the greatest return, written out.
    greatest = [
        sum(scale * (t + 1) * 0.99**t for t in range(length)) for length, scale in ((10, 1.0), (4, 10.0), (7, 0.5))
    ]
    (found,) = tensors(agent_of(tmp_path / "parts")["children"]["return_max"])
    assert found.tolist() == pytest.approx(greatest, rel=1e-5)


# Weights that are kept


def kept_weights(run_dir: Path) -> list[int]:
    return sorted(int(path.stem.removeprefix("weights_")) for path in run_dir.glob("weights_*.pt"))


@pytest.mark.slow
@pytest.mark.parametrize(("last", "kept"), [(0, [0, 40, 80, 120]), (1, [0, 40, 80, 100, 120]), (-1, range(0, 121, 20))])
def test_weights_of_the_last_evaluations_are_kept_beside_the_evenly_spaced(
    tmp_path: Path, last: int, kept: Sequence[int]
) -> None:
    overrides = [RECORDER, "eval_every_frames=20", "snapshot_keep=3", f"snapshot_keep_last={last}"]
    assert kept_weights(run_tasks(tmp_path / "run", *overrides)) == list(kept)


@pytest.mark.parametrize("last", [3, 20])
def test_weights_of_as_many_evaluations_are_kept_as_asked_for(tmp_path: Path, last: int) -> None:
    overrides = [RECORDER, "eval_every_frames=12", "snapshot_keep=0", f"snapshot_keep_last={last}"]
    kept = kept_weights(run_tasks(tmp_path / "run", *overrides))
    assert kept == [0, *list(range(12, 121, 12))[-last:]]


@pytest.mark.slow
def test_a_run_that_is_stopped_during_an_evaluation_keeps_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = [RECORDER, "eval_every_frames=20", "snapshot_keep=0", "snapshot_keep_last=2"]

    def stop_at_80(run: MultitaskWorkspace) -> EvalStats:
        if run.global_frame == 80:
            os.kill(os.getpid(), signal.SIGTERM)
        return evaluate(run)

    evaluate = MultitaskWorkspace.eval
    with monkeypatch.context() as m:
        m.setattr(MultitaskWorkspace, "eval", stop_at_80)
        with pytest.raises(SystemExit) as leaving:
            run_tasks(tmp_path / "run", *overrides)
    assert leaving.value.code == 75
    assert kept_weights(tmp_path / "run") == [0, 60, 80]
    resume(tmp_path / "run")
    assert kept_weights(tmp_path / "run") == [0, 100, 120]


@pytest.mark.slow
def test_a_longer_run_keeps_the_evenly_spaced_weights_of_the_shorter_one(tmp_path: Path) -> None:
    overrides = [RECORDER, "eval_every_frames=20", "snapshot_keep=3", "snapshot_keep_last=1"]
    resume(run_tasks(tmp_path / "run", *overrides), "num_train_frames=240")
    assert set(kept_weights(tmp_path / "run")) >= {0, 40, 80, 120, 160, 240}
    assert len(kept_weights(tmp_path / "run")) == 7  # and the last one between them


# Other environments


def own_tasks(task_name: str) -> task_envs.Scripted:
    return task_envs.Scripted(length={"one": 5, "other": 8}[task_name])


def test_your_own_function_gets_the_name_of_each_task(tmp_path: Path) -> None:
    task_envs.MADE.clear()
    own = ["env._target_=tests.test_multitask.own_tasks", "obs_type=auto", "tasks=[one,other]"]
    run_dir = run_tasks(tmp_path / "run", RECORDER, *own)
    assert {len(e["reward"]) - 1 for e in episodes(run_dir)} == {5, 8}
    assert rows(run_dir, "eval")[-1]["episode_length_other"] == "8.0"


def test_a_single_task_has_its_own_discount_too(tmp_path: Path) -> None:
    run_tasks(tmp_path / "run", RECORDER, tasks(LONG), f"per_task={{{LONG}:{{discount:0.5}}}}", "nstep=1")
    assert {float(d) for batch in Recorder.made[-1].batches for d in batch[3]} == {0.5}


# Refused


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ("tasks=[walker_walk,cheeta_run]", "tasks: cheeta_run: unknown task; nearest: cheetah_run"),
        ("tasks=[walker_walk,walker_run,walker_walk]", "walker_walk is listed more than once"),
        ("tasks=[]", "give at least one task"),
        ("tasks=[mt10,metaworld:reach-v3]", "metaworld:reach-v3 is listed more than once"),
        ("tasks=[envpool:MetaWorld/Reach-v3,metaworld:reach-v3]", "its name here is metaworld:reach-v3"),
        ("tasks=[walker_walk] envs_per_task=2 num_envs=3", "num_envs=3: regime=multitask has envs_per_task=2 instead"),
        ("tasks=[walker_walk] snapshot_keep_last=-2", "snapshot_keep_last=-2: must be a whole number of at least -1"),
        ("tasks=[walker_walk,walker_run] action_repeat=1 replay_buffer_size=1999", "must be at least 2000"),
        (
            "tasks=[walker_walk,walker_run] action_repeat=2 replay_buffer_size=1400 "
            "per_task={walker_run:{action_repeat:1}}",
            "must be at least 1500",
        ),
        ("tasks=mt10 action_repeat=1 replay_buffer_size=4999", "must be at least 5000"),
        ("tasks=mt10 action_repeat=1 replay_buffer_size=4499 exclude_tasks=[metaworld:reach-v3]", "at least 4500"),
        ("tasks=null exclude_tasks=[walker_walk]", "exclude_tasks: walker_walk is not among tasks="),
        ("tasks=null per_task={walker_wak:{discount:0.5}}", "per_task: walker_wak is not among tasks="),
        ("tasks=[gymnasium:Pendulum-v1,envpool:Pendulum-v1]", "would have the same name in the metrics"),
        ("tasks=[walker_walk,walker_run] updates_per_step=0.5", "a fraction needs agent.update_every_steps=1"),
        (
            "tasks=[walker_walk,cartpole_balance]",
            "walker_walk shows float32 [24] and cartpole_balance shows",
        ),
        (f"tasks=[{LONG},gymnasium:tests.task_envs:Wide-v0]", "shows float32 [3] and"),
        (f"tasks=[{LONG}] exclude_tasks=[{LONG}]", "must be left"),
        (f"tasks=[{LONG},{SHORT}] exclude_tasks=[{SILENT}]", f"exclude_tasks: {SILENT} is not among tasks="),
        ("tasks=[walker_walk] per_task={walker_wak:{discount:0.5}}", "per_task: walker_wak is not among tasks="),
        (f"tasks=[{LONG}] per_task={{{LONG}:{{lr:0.5}}}}", "lr: there is no such setting"),
        (f"tasks=[{LONG}] per_task={{{LONG}:{{discount:2}}}}", "discount=2: must be a number above 0 and at most 1"),
        ("tasks=[metaworld:reech-v3]", "metaworld has no such environment; nearest: reach-v3"),
        ("tasks=[gymnasium:tests.task_envs:Buttons-v0]", "discrete"),
        ("tasks=[gymnasium:tests.task_envs:Buttons-v0,gymnasium:tests.task_envs:Long-v0]", "discrete"),
        (f"tasks=[{LONG}] env_id={SHORT}", "give only one"),
        (f"regime=drqv2 tasks=[{LONG}]", "tasks: is a key of regime=multitask only"),
        (f"regime=drqv2 env_id={LONG} agent._target_=tests.task_run.Recorder", "needs regime=multitask"),
    ],
)
def test_refused_in_a_line(capsys: pytest.CaptureFixture[str], tmp_path: Path, overrides: str, said: str) -> None:
    roomy = "replay_buffer_size=5000"
    with pytest.raises(SystemExit) as leaving:
        launch(train.main, "cfgs", argv=[*TASKS, roomy, f"hydra.run.dir={tmp_path / 'run'}", *overrides.split()])
    assert leaving.value.code == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert len(err.splitlines()) == 1, err
    assert said in err


def test_tasks_are_named_in_the_directory_and_stored(tmp_path: Path) -> None:
    run_dir = run_tasks(tmp_path / "run", RECORDER, tasks(SHORT, LONG), "num_train_frames=4", "eval_every_frames=4")
    stored = (run_dir / "config.yaml").read_text()
    assert f"tasks:\n- {SHORT}\n- {LONG}\n" in stored
