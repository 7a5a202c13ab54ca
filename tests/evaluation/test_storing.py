"""`eval.py store=`: episodes of a trained agent as a data set, with and without noise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dm_env.specs import BoundedArray
from safetensors.numpy import load_file

import eval as evaluation
import train
from drqv2.datasets.formats import read
from drqv2.evaluation.storing import with_noise
from drqv2.launch.command_line import launch
from tests.short_run import OFFLINE, PPO, rows, run
from tests.task_run import RECORDER, run_tasks


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    more = "save_video=false", "save_train_video=false", "eval_every_frames=null"
    return run(tmp_path_factory.mktemp("trained") / "run", *more)


def store(run_dir: Path, folder: Path, *args: str) -> list[dict[str, np.ndarray]]:
    evaluation.main([str(run_dir), "episodes=3", f"store={folder}", *args])
    return [load_file(path) for path in sorted(folder.glob("episode_*.safetensors"))]


def test_episodes_are_stored_as_they_are_evaluated(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluation.main([str(trained), "episodes=3", "film=none"])
    table = [line for line in capsys.readouterr().out.splitlines() if line.strip()[:1].isdigit()]
    stored = store(trained, tmp_path / "data")
    assert [line for line in capsys.readouterr().out.splitlines() if line.strip()[:1].isdigit()] == table
    assert [len(episode["reward"]) for episode in stored] == [31, 31, 31]
    told = json.loads((tmp_path / "data/dataset.json").read_text())
    assert (told["frame"], told["noise"], told["seed"]) == (480, 0.0, 1)
    assert told["weights"].endswith("snapshot.pt")
    assert not list(read(str(tmp_path / "data"), pytest.fail))[3:]


@pytest.mark.slow
def test_a_run_learns_from_what_was_stored(trained: Path, tmp_path: Path) -> None:
    store(trained, tmp_path / "data", "noise=0.5")
    argv = [*OFFLINE, f"data={tmp_path / 'data'}", f"hydra.run.dir={tmp_path / 'run'}", "eval_every_frames=null"]
    launch(train.main, "cfgs", argv=argv)
    assert rows(tmp_path / "run", "train")[-1]["buffer_size"] == "90"


@pytest.mark.slow
def test_noise_changes_actions_and_does_not_depend_on_the_number_of_environments(trained: Path, tmp_path: Path) -> None:
    plain, noisy = store(trained, tmp_path / "a"), store(trained, tmp_path / "b", "noise=0.2")
    for one, other in zip(plain, noisy, strict=True):
        assert (one["action"][1:] != other["action"][1:]).all()
        assert np.abs(other["action"]).max() <= 1
    again = store(trained, tmp_path / "c", "noise=0.2", "num_envs=2")

    def totals(episodes: list[dict[str, np.ndarray]]) -> list[float]:
        return sorted(float(episode["reward"].sum()) for episode in episodes)

    assert totals(again) == totals(noisy)


def test_stored_actions_are_those_that_the_environment_takes() -> None:
    spec: Any = type("Spec", (), {"dtype": np.dtype(np.float32), "shape": (2,)})
    act = with_noise(lambda *_: np.array([1.5, -20.0], np.float32), spec, 0.0, 0.0, seed=1)
    np.testing.assert_array_equal(act(None, 0), np.array([1.0, -1.0], np.float32))


def test_random_share_is_the_share_of_uniform_actions() -> None:
    spec: Any = type("Spec", (), {"dtype": np.dtype(np.float32), "shape": (2,)})
    act = with_noise(lambda *_: np.zeros(2, np.float32), spec, 0.0, 0.3, seed=1)
    chosen = np.stack([act(None, 0) for _ in range(2000)])
    uniform = (chosen != 0).all(1)
    assert abs(uniform.mean() - 0.3) < 0.04
    assert abs(chosen[uniform].std() - 1 / np.sqrt(3)) < 0.03


def test_several_discrete_actions_are_drawn_each_within_its_bounds() -> None:
    spec: Any = BoundedArray((2,), np.int64, [0, 3], [1, 6])
    act = with_noise(lambda *_: np.zeros(2, np.int64), spec, 0.0, 1.0, seed=1)
    chosen = np.stack([act(None, 0) for _ in range(200)])
    assert (chosen.dtype, chosen.shape) == (np.dtype(np.int64), (200, 2))
    assert [sorted({*column}) for column in chosen.T.tolist()] == [[0, 1], [3, 4, 5, 6]]
    whole = with_noise(lambda *_: np.zeros(1, np.uint8), BoundedArray((1,), np.uint8, 0, 255), 0.0, 1.0, seed=1)
    assert whole(None, 0).dtype == np.uint8


@pytest.mark.slow
def test_discrete_actions_are_stored_too(tmp_path: Path) -> None:
    launch(train.main, "cfgs", argv=[*PPO, f"hydra.run.dir={tmp_path / 'run'}", "save_video=false"])
    stored = store(tmp_path / "run", tmp_path / "data", "random_share=0.5")
    assert {episode["action"].dtype for episode in stored} == {np.dtype(np.int64)}
    with pytest.raises(SystemExit):
        store(tmp_path / "run", tmp_path / "other", "noise=0.1")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["noise=0.1"], "apply only to store=DIR"),
        (["store={tmp}"], "exists; give another directory"),
        (["store={tmp}/x", "random_share=2"], "random_share=2"),
    ],
)
def test_what_cannot_be_is_refused(
    args: list[str], message: str, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        evaluation.main([str(trained), *(arg.format(tmp=tmp_path) for arg in args)])
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_episodes_of_several_tasks_are_not_mixed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = run_tasks(tmp_path / "run", RECORDER)
    with pytest.raises(SystemExit):
        store(done, tmp_path / "data")
    assert "add task=NAME" in capsys.readouterr().err
    assert len(store(done, tmp_path / "data", "task=Long-v0")) == 3
