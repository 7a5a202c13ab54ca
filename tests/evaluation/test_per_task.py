"""Evaluations of several tasks: side by side, each as if it were alone; their metrics, and the film of all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from dm_env import StepType
from omegaconf import OmegaConf

from drqv2.envs import ExtendedTimeStep
from drqv2.evaluation.per_task import metrics
from drqv2.evaluation.tables import tasks_table
from drqv2.run.environments import task_suffixes
from drqv2.run.stats import EpisodeResult
from tests import task_envs
from tests.short_run import rows
from tests.task_run import LONG, RECORDER, SHORT, SILENT, run_tasks, tasks

LUCKY, LUCKIER = (f"gymnasium:tests.task_envs:{name}-v0" for name in ("Lucky", "Luckier"))
BRIEF = "num_train_frames=8 num_seed_frames=8 eval_every_frames=4 num_eval_episodes=3".split()


class Follower:
    """An agent whose action depends on the observation alone; its evaluations have episodes of different length."""

    def __init__(self, obs_shape: Any, action_shape: Any, device: Any, **_: Any) -> None:
        self.size = action_shape[0]

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass

    def train(self, training: bool = True) -> None:
        self.training = training

    def act(self, obs: np.ndarray, step: int, eval_mode: bool, task: int = 0) -> np.ndarray:
        return np.full(self.size, np.tanh(obs.sum() - 3), np.float32)

    def update(self, replay_iter: Iterator[Any], step: int) -> dict[str, Any]:
        return {}


FOLLOWER = "agent._target_=tests.evaluation.test_per_task.Follower"


def evaluated(run_dir: Path, task: str) -> list[dict[str, str]]:
    """The rows of a task: return and length, which end in the task's name."""
    lines = [line.split(",") for line in (run_dir / "eval.csv").read_text().splitlines()]
    columns = [i for i, name in enumerate(lines[0]) if name.endswith(f"_{task.rpartition(':')[2]}")]
    return [{lines[0][i]: line[i] for i in columns} for line in lines[1:]]


@pytest.mark.slow
def test_results_of_a_task_depend_neither_on_the_environments_nor_on_other_tasks(tmp_path: Path) -> None:
    def run(name: str, *overrides: str) -> Path:
        return run_tasks(tmp_path / name, FOLLOWER, *BRIEF, *overrides)

    reference = run("reference", tasks(LUCKY, LUCKIER))
    rows = evaluated(reference, LUCKY)
    assert len(rows) == 3
    assert len({row["episode_reward_Lucky-v0"] for row in rows}) == 3, "each evaluation has its own episodes"
    for number in (2, 3, 4):
        other = run(f"{number} environments", tasks(LUCKY, LUCKIER), f"num_eval_envs={number}")
        assert (other / "eval.csv").stat().st_size > 0
        for task in (LUCKY, LUCKIER):
            assert evaluated(other, task) == evaluated(reference, task)
    for name, overrides in {
        "another order": (tasks(LUCKIER, LUCKY),),
        "a third task": (tasks(SHORT, LUCKY, LUCKIER), "num_eval_envs=2"),
        "several to train": (tasks(LUCKIER, LUCKY), "envs_per_task=2"),
    }.items():
        for task in (LUCKY, LUCKIER):
            assert evaluated(run(name, *overrides), task) == evaluated(reference, task), name


def frames_of(video: Path) -> list[np.ndarray]:
    reader = cv2.VideoCapture(str(video))
    frames: list[np.ndarray] = []
    while True:
        more, frame = reader.read()
        if not more:
            return frames
        frames.append(frame)


@pytest.mark.parametrize("number", [1, 2])
def test_the_film_has_a_cell_for_each_task_and_is_as_long_as_the_longest_episode(tmp_path: Path, number: int) -> None:
    filmed = ["save_video=true", "render_size=96", f"num_eval_envs={number}"]
    run_dir = run_tasks(tmp_path / "run", RECORDER, *BRIEF, *filmed)
    assert sorted(path.name for path in (run_dir / "eval_video").iterdir()) == ["0.mp4", "4.mp4", "8.mp4"]
    frames = frames_of(run_dir / "eval_video" / "0.mp4")
    assert len(frames) == 11  # of Long: the reset and 10 steps
    assert frames[0].shape == (192, 192, 3)
    lengths = (10, 4, 7)  # frame t of a task is grey of 20 t
    for t, frame in enumerate(frames):
        shown = [frame[50:90, 10:86], frame[50:90, 106:182], frame[146:186, 10:86], frame[146:186, 106:182]]
        wanted = [*(20 * min(t, length) for length in lengths), 0]
        assert [float(cell.mean()) for cell in shown] == pytest.approx(wanted, abs=6)
        assert frame[:9, :96].max() > 100, "its name is written above"


def test_a_task_that_cannot_be_drawn_costs_the_video_but_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def render(env: task_envs.Scripted) -> np.ndarray:
        if env.t == 2:
            raise RuntimeError("no more paint")
        return np.zeros((64, 64, 3), np.uint8)

    monkeypatch.setattr(task_envs.Scripted, "render", render)
    run_dir = run_tasks(tmp_path / "run", RECORDER, *BRIEF, "save_video=true", "render_size=96")
    assert capsys.readouterr().out.count("RuntimeError: no more paint") == 3, "one warning for each video"
    assert len(rows(run_dir, "eval")) == 3
    assert not list((run_dir / "eval_video").glob("*.mp4"))


def test_the_table_of_tasks_of_which_some_say_whether_they_succeed() -> None:
    own = [[EpisodeResult(1.0, 1, 1.0), EpisodeResult(3.0, 1, 0.0)], [EpisodeResult(5.0, 1)] * 2]
    for results in (own, own[::-1]):
        lines = tasks_table(["a", "b"], results)
        assert lines[0].split()[-1] == "success"
        assert sorted(line.split()[-1] for line in lines[1:3]) == ["-", "0.50"]  # two episodes have no interval
        assert lines[3].split() == ["mean", "3.5", "-", "0.50"]


def test_without_videos_nothing_is_drawn(tmp_path: Path) -> None:
    task_envs.MADE.clear()
    run_dir = run_tasks(tmp_path / "run", RECORDER, *BRIEF)
    assert len(task_envs.MADE) == 6
    assert [env.renders for env in task_envs.MADE] == [0] * 6
    assert all(env.closed for env in task_envs.MADE)
    assert not (run_dir / "eval_video").exists()


def test_metrics_are_means_over_episodes_of_a_task_and_then_over_tasks() -> None:
    played = [0, 0, 2, 0]
    results = [
        EpisodeResult(1.0, 10, 1.0),
        EpisodeResult(2.0, 20, 0.0),
        EpisodeResult(40.0, 5, 0.0),
        EpisodeResult(3.0, 30, 0.0),
    ]
    named = OmegaConf.create({"tasks": ["walker_walk", LONG, "metaworld:reach-v3"], "metric_names": "task"})
    found = metrics(played, results, [2, 1, 4], task_suffixes(named))
    assert found == {
        "episode_reward": 21.0,
        "episode_reward/walker_walk": 2.0,
        "episode_reward/reach-v3": 40.0,
        "episode_length": 30.0,
        "episode_length/walker_walk": 40.0,
        "episode_length/reach-v3": 20.0,
        "success": pytest.approx(1 / 6),
        "success/walker_walk": pytest.approx(1 / 3),
        "success/reach-v3": 0.0,
    }
    named.metric_names = "env_index"
    numbered = metrics(played, results, [2, 1, 4], task_suffixes(named))
    assert numbered["success_env_index_0"] == pytest.approx(1 / 3)
    assert numbered["episode_reward_env_index_2"] == 40.0
    assert list(numbered.values()) == list(found.values())


def test_tasks_that_do_not_say_whether_they_succeed_have_no_part_in_the_mean() -> None:
    results = [EpisodeResult(1.0, 1, 1.0), EpisodeResult(1.0, 1)]
    found = metrics([0, 1], results, [1, 1], ["/a", "/b"])
    assert found["success"] == found["success/a"] == 1.0
    assert "success/b" not in found
    assert not [name for name in metrics([1], results[1:], [1, 1], ["/a", "/b"]) if "success" in name]


@pytest.mark.parametrize(
    ("steps", "success"),
    [([None, 0.0, 0.0], 0.0), ([None, 1.0, 0.0], 1.0), ([None, None, None], None), ([None, 0.0, 1.0], 1.0)],
)
def test_an_episode_succeeds_if_any_step_does(steps: list[float | None], success: float | None) -> None:
    result = EpisodeResult()
    for each in steps:
        result = result.after(ExtendedTimeStep(StepType.MID, 2.0, 1.0, None, None, success=each))
    assert result == EpisodeResult(6.0, 2, success)


def test_silent_tasks_have_no_success_in_the_evaluation(tmp_path: Path) -> None:
    run_dir = run_tasks(tmp_path / "run", RECORDER, *BRIEF, tasks(SILENT, SHORT))
    assert {row["success_Short-v0"] for row in evaluated(run_dir, SHORT)} == {"0.0"}
    assert all("success_Silent-v0" not in row for row in evaluated(run_dir, SILENT))
