"""What a run of several tasks makes of its keys: cameras, sampling, diagnostics, rows, the console, closing."""

from __future__ import annotations

import csv
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drqv2 import envs, utils
from tests import task_envs
from tests.short_run import rows
from tests.task_run import LONG, RECORDER, SHORT, Recorder, run_tasks, tasks


def all_rows(run_dir: Path, name: str) -> list[dict[str, str]]:
    """The rows of a CSV file with the columns that depend on the time, too."""
    with (run_dir / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


# Sampling


@pytest.mark.parametrize(("sampling", "shares"), [("uniform", [3, 3, 3]), ("proportional", None)])
def test_batches_are_divided_as_task_sampling_says(tmp_path: Path, sampling: str, shares: list[int] | None) -> None:
    run_tasks(tmp_path / "run", RECORDER, f"task_sampling={sampling}", "replay_buffer_size=2000")
    counts = [np.bincount(batch[5].numpy().ravel(), minlength=3) for batch in Recorder.made[-1].batches]
    if shares is not None:
        assert {tuple(count) for count in counts[5:]} == {tuple(shares)}
        return
    assert len({tuple(count) for count in counts}) > 5, "each batch is drawn from all transitions"
    # At the end the replay holds 120, 120 and 119 transitions of the tasks, and about as many of each before.
    assert np.mean(counts, axis=0) == pytest.approx([3, 3, 3], abs=0.6)


def test_a_replay_that_loses_all_of_a_task_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_tasks(tmp_path / "run", RECORDER, tasks(LONG, SHORT), "replay_buffer_size=9")
    said = [line for line in capsys.readouterr().out.splitlines() if "no episode left to learn from" in line]
    assert {message.split()[1] for message in said} == {"0", "1"}
    assert len(said) == 2, "once for each task"


# Cameras


@pytest.mark.slow
def test_cameras_and_arguments_of_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each task is seen by its own camera, or the one for all; +env.time_limit reaches all of them."""
    seen: dict[str, Any] = {}
    make = envs.make

    def noted(name: str, *args: Any, camera: Any = None, **kwargs: Any) -> Any:
        seen[name] = camera
        return make(name, *args, camera=camera, **kwargs)

    monkeypatch.setattr(envs, "make", noted)
    own = [tasks("acrobot_swingup", "acrobot_swingup_sparse"), "per_task={acrobot_swingup:{camera:lookat}}"]
    short = ["+env.time_limit=0.1", "num_train_frames=20", "eval_every_frames=20", "replay_buffer_size=80"]
    run_dir = run_tasks(tmp_path / "run", RECORDER, *own, *short)
    assert seen == {"acrobot_swingup": "lookat", "acrobot_swingup_sparse": None}
    (row,) = all_rows(run_dir, "eval")[-1:]
    assert row["episode_length_acrobot_swingup"] == row["episode_length_acrobot_swingup_sparse"] == "10.0"
    run_tasks(tmp_path / "again", RECORDER, *own, *short, "camera=1")
    assert seen == {"acrobot_swingup": "lookat", "acrobot_swingup_sparse": 1}


def test_a_camera_that_a_task_does_not_have(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for named, said in (
        ((tasks("fish_swim", "cheetah_run"), "camera=side", "replay_buffer_size=2000"), "of fish_swim"),
        (
            (tasks(LONG, SHORT), f"per_task={{{SHORT}:{{camera:1}}}}"),
            "camera=1: gymnasium:Short-v0 is not a MuJoCo simulation",
        ),
    ):
        with pytest.raises(SystemExit) as end:
            run_tasks(tmp_path / "run", RECORDER, *named)
        assert end.value.code == 2
        assert said in capsys.readouterr().err


# Rows


@pytest.mark.slow
def test_diagnostics_are_those_of_each_task_and_their_mean(tmp_path: Path) -> None:
    own = f"per_task={{{LONG}:{{discount:0.5}}}}"
    run_dir = run_tasks(tmp_path / "run", own, "replay_buffer_size=2000", "agent.use_tb=true")
    row = next(row for row in rows(run_dir, "train") if row.get("q_bias"))
    for name in ("q_mean", "mc_return_mean", "q_bias", "dormant_share"):
        values = [float(row[f"{name}_{task}-v0"]) for task in ("Long", "Short", "Silent")]
        assert len(set(values)) > 1 or name == "dormant_share"
        assert float(row[name]) == pytest.approx(np.mean(values))
    # With a discount of 0.5 the reward 10 t of Short, discounted by 0.99, is far more than the reward t of Long.
    assert float(row["mc_return_mean_Long-v0"]) < 25 < float(row["mc_return_mean_Short-v0"])


@pytest.mark.slow
def test_discounts_of_diagnostics_are_the_tasks_own(tmp_path: Path) -> None:
    def mean_return(name: str, *own: str) -> float:
        run_dir = run_tasks(tmp_path / name, tasks(SHORT, LONG), *own, "agent.lr=1e-9")
        return float(next(row for row in rows(run_dir, "train") if row.get("q_bias"))["mc_return_mean_Long-v0"])

    # Rewards 1 to 10 of Long, the value at its end close to 0: means over t of the sums written out.
    for gamma in (0.5, 0.9):
        expected = np.mean([sum(gamma ** (t - s - 1) * t for t in range(s + 1, 11)) for s in range(10)])
        found = mean_return(str(gamma), f"per_task={{{LONG}:{{discount:{gamma}}}}}")
        assert found == pytest.approx(expected, abs=0.3)


def test_fps_counts_the_frames_of_all_tasks_and_episodes_are_counted_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(utils.Timer, "reset", lambda timer: (2.0, 10.0))  # seconds since the last row, in total
    own = f"per_task={{{SHORT}:{{action_repeat:2}}}}"
    run_dir = run_tasks(tmp_path / "run", RECORDER, tasks(LONG, SHORT), own, "replay_buffer_size=2000")
    table = all_rows(run_dir, "train")
    steps = np.diff([0, *(int(row["step"]) for row in table)])
    assert [float(row["fps"]) for row in table] == [step * 3 / 2.0 for step in steps]
    assert {row["duration"] for row in table} == {"2.0"}
    ended = [sum(bool(row[f"episode_reward_{task}-v0"]) for task in ("Long", "Short")) for row in table]
    assert [int(row["episode"]) for row in table] == np.cumsum(ended).tolist()
    assert int(table[-1]["episode"]) == 12 + 60


def test_the_duration_of_an_evaluation_is_logged(tmp_path: Path) -> None:
    run_dir = run_tasks(tmp_path / "run", RECORDER, "num_train_frames=4", "eval_every_frames=4")
    assert all(float(row["duration"]) > 0 for row in all_rows(run_dir, "eval"))


# Console


def test_the_console_has_a_line_for_each_task_and_their_mean(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slash = "gymnasium:tests.task_envs:own/Long-v0"
    overrides = [tasks(slash, SHORT), "console=plain", "metric_names=task", "num_train_frames=60"]
    run_tasks(tmp_path / "run", RECORDER, *overrides)
    out = capsys.readouterr().out
    assert re.findall(r"own_Long-v0 +55\.0  success 1\.00  █", out), out
    assert re.findall(r"Short-v0 +100\.0  success 0\.00  ▁", out)
    assert re.findall(r"mean +77\.5  success 0\.50  ▅?▄?", out)


# Closing


def closed() -> list[bool]:
    return [env.closed for env in task_envs.MADE]


def terminate(agent: Recorder, replay_iter: Any, step: int) -> dict[str, Any]:
    os.kill(os.getpid(), signal.SIGTERM)
    return {}


def fail(agent: Recorder, replay_iter: Any, step: int) -> dict[str, Any]:
    raise RuntimeError("a bug in an agent")


@pytest.mark.parametrize("update", [terminate, fail])
def test_environments_are_closed_when_a_run_is_stopped_or_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, update: Callable[..., Any]
) -> None:
    task_envs.MADE.clear()
    monkeypatch.setattr(Recorder, "update", update)
    with pytest.raises((SystemExit, RuntimeError)):
        run_tasks(tmp_path / "run", RECORDER)
    assert closed() == [True] * 6


def test_environments_are_closed_when_a_reward_is_not_a_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task_envs.MADE.clear()
    step = task_envs.Scripted.step

    def broken(env: task_envs.Scripted, action: Any) -> Any:
        observation, _, *others = step(env, action)
        return observation, float("nan"), *others

    monkeypatch.setattr(task_envs.Scripted, "step", broken)
    with pytest.raises(SystemExit):
        run_tasks(tmp_path / "run", RECORDER)
    assert closed() == [True] * 6


@pytest.mark.parametrize("which", [3, 5, 6])
def test_environments_are_closed_when_another_cannot_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: int
) -> None:
    """The third of training, or the second and the last of evaluation."""
    task_envs.MADE.clear()
    init = task_envs.Scripted.__init__

    def limited(env: task_envs.Scripted, **kwargs: Any) -> None:
        if len(task_envs.MADE) == which - 1:
            raise RuntimeError("no more of them")
        init(env, **kwargs)

    monkeypatch.setattr(task_envs.Scripted, "__init__", limited)
    with pytest.raises((SystemExit, RuntimeError)):
        run_tasks(tmp_path / "run", RECORDER)
    assert closed() == [True] * (which - 1)


def test_environments_are_closed_when_tasks_do_not_fit_together(tmp_path: Path) -> None:
    task_envs.MADE.clear()
    with pytest.raises(SystemExit):
        run_tasks(tmp_path / "run", RECORDER, tasks(LONG, "gymnasium:tests.task_envs:Wide-v0"))
    assert closed() == [True] * 2
