"""eval.py with a run of several tasks: all of them or one, the table, the JSON file, the video."""

from __future__ import annotations

import json
from pathlib import Path

import imageio.v3 as iio
import pytest

import eval as evaluation  # the script; the built-in stays what it is
from tests import task_envs
from tests.task_run import LONG, SHORT, SILENT, run_tasks


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_tasks(tmp_path_factory.mktemp("trained") / "run", "num_train_frames=24", "eval_every_frames=24")


def said(capsys: pytest.CaptureFixture[str], *argv: object) -> list[str]:
    task_envs.MADE.clear()
    evaluation.main([str(word) for word in argv])
    assert all(env.closed for env in task_envs.MADE)
    return capsys.readouterr().out.splitlines()


def test_all_tasks_have_a_row_and_a_picture(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = said(capsys, trained, "episodes=3", f"out={tmp_path}", "render_size=96")
    table = {line.split()[0]: line.split() for line in lines}
    for task, total, success in ((LONG, "55.0", "1.00"), (SHORT, "100.0", "0.00"), (SILENT, "14.0", "14.0")):
        assert (table[task][1], table[task][-1]) == (total, success)
    assert (table["mean"][1], table["mean"][-1]) == ("56.3", "0.50")
    (file,) = tmp_path.glob("*.json")
    numbers = json.loads(file.read_text())
    assert numbers["returns"] == {LONG: [55.0] * 3, SHORT: [100.0] * 3, SILENT: [14.0] * 3}
    assert numbers["success"][LONG] == [1.0] * 3
    assert "rewards" not in numbers, "those of Meta-World"
    assert iio.imread(file.with_suffix(".mp4")).shape == (11, 192, 192, 3)  # Long's ten steps, two by two pictures
    assert len(task_envs.MADE) == 3, "an environment of each task plays and is filmed"


@pytest.mark.parametrize("name", [LONG, "Long-v0"])
def test_one_of_them_is_played_alone_and_has_files_of_its_own(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    said(capsys, trained, f"out={tmp_path}", "episodes=1", "film=none")
    (whole,) = tmp_path.iterdir()
    before = whole.read_bytes()
    lines = said(capsys, trained, f"task={name}", f"out={tmp_path}", "episodes=4", "film=0,1,2,3", "render_size=64")
    assert [line.split()[0] for line in lines if line.startswith("gymnasium:")] == [LONG]
    assert whole.read_bytes() == before
    numbers = json.loads(next(path for path in tmp_path.glob("*Long-v0.json")).read_text())
    assert numbers["returns"] == {LONG: [55.0] * 4}
    assert numbers["task"] == "Long-v0"
    assert iio.imread(next(tmp_path.glob("*Long-v0.mp4"))).shape[0] == 11


def test_the_best_episode_of_each_task_is_filmed(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said(capsys, trained, f"out={tmp_path}", "episodes=2", "film=best", "render_size=96")
    assert iio.imread(next(tmp_path.glob("*.mp4"))).shape == (11, 192, 192, 3)


def test_environments_in_parallel_play_the_same_episodes(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = said(capsys, trained, f"out={tmp_path}", "episodes=3", "film=none")
    together = said(capsys, trained, f"out={tmp_path}", "episodes=3", "film=none", "num_envs=2")
    assert together == alone


def test_a_task_that_the_run_does_not_have_is_refused(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        evaluation.main([str(trained), "task=walker_walk"])
    assert leaving.value.code == 2
    assert capsys.readouterr().err == f"error: task=walker_walk: the run's tasks are {LONG}, {SHORT}, {SILENT}\n"
