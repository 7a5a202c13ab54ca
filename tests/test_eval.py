"""eval.py: the table, the video, other tasks and snapshots, and what it says when something is wrong."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import imageio.v3 as iio
import numpy as np
import pytest

import eval as evaluation  # the script; the built-in stays what it is
from drqv2 import overlay, snapshot, snapshot_tool
from tests.test_train import run

SMALL = ("render_size=32",)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("trained") / "run", "num_train_frames=240")


def said(capsys: pytest.CaptureFixture[str], *argv: object) -> list[str]:
    evaluation.main([str(word) for word in argv])
    return capsys.readouterr().out.splitlines()


def returns(lines: list[str]) -> list[str]:
    return [words[1] for line in lines if (words := line.split()) and words[0].isdigit()]


def test_table_and_video(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = said(capsys, trained, "episodes=3", "film=0,2", f"out={tmp_path}", *SMALL)
    assert "frame 240, 3 episodes, seed 1" in lines[0]
    about = json.loads((tmp_path / "snapshot_240_cartpole_balance_sparse.json").read_text())
    assert returns(lines) == [f"{value:.1f}" for value in about["returns"]]
    assert float(next(line for line in lines if "mean" in line).split()[1]) == pytest.approx(
        np.mean(about["returns"]), abs=0.06
    )
    assert float(next(line for line in lines if "minimum" in line).split()[1]) == pytest.approx(
        min(about["returns"]), abs=0.06
    )
    frames = np.stack(list(iio.imiter(tmp_path / "snapshot_240_cartpole_balance_sparse.mp4", plugin="FFMPEG")))
    assert frames.shape == (31, 32, 64, 3)  # 30 agent steps, two pictures side by side


def test_the_same_episodes_for_any_number_of_environments(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = (said(capsys, trained, "episodes=4", "film=none", f"num_envs={n}", f"out={tmp_path}") for n in (1, 2))
    assert one == two
    assert len(set(returns(one))) > 1
    other = said(capsys, trained, "episodes=4", "film=none", "seed=5", f"out={tmp_path}")
    assert returns(other) != returns(one)


def test_weights_from_anywhere(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A snapshot, its export and the milestone of the same frame play alike; an earlier milestone does not."""
    exported = tmp_path / "policy.safetensors"
    snapshot_tool.export(trained, exported)
    capsys.readouterr()
    quiet = ("episodes=2", "film=none", f"out={tmp_path}")
    newest = returns(said(capsys, trained, *quiet))
    for file in (exported, trained / "snapshot.pt"):
        assert returns(said(capsys, file, "trust=true", *quiet)) == newest
    assert returns(said(capsys, trained, "snapshot=weights_240.pt", *quiet)) == newest
    assert returns(said(capsys, trained, "snapshot=weights_0.pt", *quiet)) != newest


def test_the_best_episode_is_filmed(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    filmed: list[tuple[int, float]] = []
    label = overlay.label

    def note(picture: np.ndarray, episode: int, total: float, step: int, action: np.ndarray) -> np.ndarray:
        filmed.append((episode, total))
        return label(picture, episode, total, step, action)

    monkeypatch.setattr(overlay, "label", note)
    for which, pick in (("best", max), ("worst", min)):
        filmed.clear()
        said(capsys, trained, "episodes=5", f"film={which}", f"out={tmp_path}", *SMALL)
        values = json.loads((tmp_path / "snapshot_240_cartpole_balance_sparse.json").read_text())["returns"]
        assert filmed[-1][1] == pytest.approx(pick(values))  # filmed, it plays as it did unseen
        assert {episode for episode, _ in filmed} == {values.index(pick(values))}


def test_a_file_of_somebody_elses_runs_no_code(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its environment is code that the file names: only with trust=true."""
    exported = tmp_path / "policy.safetensors"
    snapshot_tool.export(trained, exported)
    capsys.readouterr()
    with pytest.raises(SystemExit) as leaving:
        evaluation.main([str(exported), "episodes=1", "film=none"])
    assert leaving.value.code == 2
    err = capsys.readouterr().err
    assert "env._target_=tests.short_env.make" in err
    assert "trust=true" in err


def test_a_snapshot_of_a_gpu_plays_on_a_cpu(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = snapshot.load(trained / "snapshot.pt")
    saved["config"] |= {"device": "cuda", "compile": True, "agent": saved["config"]["agent"] | {"device": "cuda"}}
    del saved["config"]["console"]  # a key that an older version did not have
    snapshot.save(tmp_path / "snapshot.pt", {k: v for k, v in saved.items() if k != "version"})
    lines = said(capsys, tmp_path, "episodes=1", "film=none", "device=cpu")
    assert returns(lines) == returns(said(capsys, trained, "episodes=1", "film=none", f"out={tmp_path}"))


def test_the_newest_milestone_stands_in_for_a_snapshot(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for frame in (60, 120, 240):
        shutil.copy(trained / f"weights_{frame}.pt", tmp_path)
    assert "weights_240.pt, frame 240" in said(capsys, tmp_path, "episodes=1", "film=none")[0]


def test_label_and_grid() -> None:
    picture = np.full((64, 64, 3), 200, np.uint8)
    labelled = overlay.label(picture, 3, 12.5, 7, np.array([1.0, -1.0]))
    assert labelled.shape == picture.shape
    assert (picture == 200).all()
    assert (labelled[20:50] == 200).all()  # the middle is left alone
    above, below = labelled[-10:-7], labelled[-4:-1]
    assert above[:, :32].mean() > below[:, :32].mean()  # the first bar goes up,
    assert above[:, 32:].mean() < below[:, 32:].mean()  # the second down
    sheet = overlay.grid([np.full((4, 6, 3), i, np.uint8) for i in (1, 2, 3)])
    assert sheet.shape == (8, 12, 3)
    assert [sheet[0, 0, 0], sheet[0, 6, 0], sheet[4, 0, 0], sheet[4, 6, 0]] == [1, 2, 3, 0]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "give one run directory"),
        (["nowhere"], "no such run directory"),
        (["RUN", "episode=3"], "nearest: episodes"),
        (["RUN", "episodes=0"], "episodes=0: must be"),
        (["RUN", "episodes=many"], "episodes=many: must be"),
        (["RUN", "film=7", "episodes=3"], "from 0 to 2"),
        (["RUN", "film=all"], "best, worst, none"),
        (["RUN", "snapshot=weights_7.pt"], "there are snapshot.pt"),
        (["RUN", "render_size=33"], "render_size=33: must be"),
        (["RUN", "seed=-1"], "seed=-1: must be"),
        (["EMPTY"], "there is no snapshot in it"),
        (["RUN/train.csv"], "not a whole snapshot"),
        (["RUN", "live=true"], "there is no display here"),
        (["RUN", "out=RUN/train.csv"], "cannot be made"),
        (["RUN", "camera=9"], "camera=9"),
    ],
)
def test_mistakes(
    trained: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    told: str,
) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    words = [word.replace("RUN", str(trained)).replace("EMPTY", str(tmp_path)) for word in words]
    with pytest.raises(SystemExit) as leaving:
        evaluation.main(words)
    assert leaving.value.code == 2
    err = capsys.readouterr().err
    assert told in err
    assert "Traceback" not in err
    assert len(err.splitlines()) <= 2


@pytest.mark.slow
def test_another_task_and_camera(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A cartpole policy plays another cartpole task, filmed from another side; a walker's shapes do not fit."""
    import train
    from drqv2.launch import launch

    small = "preset=debug num_train_frames=1000 num_seed_frames=2000 eval_every_frames=1000 save_video=false".split()
    launch(train.main, "cfgs", argv=[*small, f"hydra.run.dir={tmp_path / 'run'}", "action_repeat=8"])
    capsys.readouterr()
    common = (tmp_path / "run", "episodes=1", "render_size=64", f"out={tmp_path}")
    lines = said(capsys, *common, "task=cartpole_balance", "film=0")
    assert lines[0].startswith("cartpole_balance: ")
    videos = {}
    for camera in ("0", "fixed", "lookatcart"):
        said(capsys, *common, "film=0", f"camera={camera}")
        videos[camera] = iio.imread(tmp_path / "snapshot_1000_cartpole_balance_sparse.mp4", plugin="FFMPEG")
    assert np.array_equal(videos["0"], videos["fixed"])
    assert not np.array_equal(videos["0"], videos["lookatcart"])
    for words, told in (
        (["task=walker_walk"], "do not fit walker_walk"),
        (["camera=9"], "camera=9"),
        (["task=x"], "x"),
    ):
        with pytest.raises(SystemExit) as leaving:
            evaluation.main([str(word) for word in (*common, "film=0", *words)])
        assert leaving.value.code == 2
        assert told in capsys.readouterr().err
