"""What comes out of a run whose observations are dicts: films, stored episodes, data to learn from, a policy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import imageio.v3 as iio
import numpy as np
import pytest
from safetensors.numpy import load_file

import eval as evaluation
import train
from drqv2.datasets import __main__ as tool
from drqv2.launch.command_line import launch
from drqv2.play.policy import Policy
from drqv2.snapshot import file as snapshot
from drqv2.snapshot.agent_weights import weights
from drqv2.snapshot.inspection import fingerprint, inspect
from tests.compare import assert_equal
from tests.short_run import OFFLINE, rows, run

ENV = ("env._target_=tests.arm_env.make", "obs_type=pixels+state")
PARTS = {"frame.pixels": [3, 32, 32], "frame.wrist": [1, 32, 32], "observation.arm": [2], "observation.zone": [1]}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    films = "save_train_video=true", "train_video_every_frames=120", "eval_every_frames=null", "use_tb=true"
    return run(tmp_path_factory.mktemp("trained") / "run", *ENV, *films)


@pytest.fixture(scope="module")
def stored(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stored") / "data"
    evaluation.main([str(trained), "episodes=2", f"store={folder}", "noise=0.5"])
    return folder


def offline(run_dir: Path, data: Path, *words: str) -> Any:
    launch(train.main, "cfgs", argv=[*OFFLINE, *ENV, f"data={data}", f"hydra.run.dir={run_dir}", *words])
    return snapshot.load(run_dir / "snapshot.pt")


def refused(capsys: pytest.CaptureFixture[str], run_dir: Path, data: Path, *words: str) -> str:
    with pytest.raises(SystemExit) as leaving:
        offline(run_dir, data, *words)
    assert leaving.value.code == 2
    told = capsys.readouterr().err
    assert "Traceback" not in told
    return told


@pytest.mark.slow
def test_training_films_show_all_images(trained: Path) -> None:
    films = sorted((trained / "train_video").glob("*.mp4"))
    assert films
    assert iio.imread(films[0], plugin="FFMPEG").shape[1:] == (32, 64, 3)


def test_inspection(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inspect(trained)
    assert "DAMAGED" not in (told := capsys.readouterr().out)
    assert "snapshot.pt: intact, frame 480" in told


def test_stored_episodes_have_all_parts(stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in stored.glob("episode_*"):
        arrays = load_file(path)
        assert {name: list(array.shape[1:]) for name, array in arrays.items() if "." in name} == PARTS
        np.testing.assert_array_equal(arrays["observation.zone"][:, 0], np.abs(arrays["observation.arm"][:, 0]))
    tool.main(["list", str(stored)])
    assert "2 episodes, 60 transitions of pixels + wrist + arm + zone, return" in capsys.readouterr().out


@pytest.mark.slow
def test_learning_from_them_does_not_depend_on_whether_there_is_an_environment(
    trained: Path, stored: Path, tmp_path: Path
) -> None:
    """Nor on the order in which it shows the parts, which is not stored."""
    first = offline(tmp_path / "first", stored)
    alone = offline(tmp_path / "alone", stored, "eval_every_frames=null")
    one, other = (fingerprint(weights(saved["agent"])) for saved in (first, alone))
    assert one == other
    assert rows(tmp_path / "alone", "train")[-1]["buffer_size"] == "60"
    evaluation.main([str(tmp_path / "alone"), "episodes=1", "film=none"])
    same = offline(tmp_path / "of_the_run", trained, "eval_every_frames=null")
    assert same["frame"] == 120


@pytest.mark.slow
def test_some_of_the_parts(stored: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    some = "observation_parts=[wrist,arm]"
    saved = offline(tmp_path / "some", stored, some)
    assert list(saved["config"]["agent"]["obs_shape"]) == ["wrist", "arm"]
    arrays = load_file(min((tmp_path / "some/buffer").glob("episode_*")))
    assert sorted(name for name in arrays if "." in name) == ["frame.wrist", "observation.arm"]
    for form in ("some.hdf5", "npz:some_npz"):
        if form.endswith("hdf5"):
            pytest.importorskip("h5py")
        target = form.replace("some", str(tmp_path / "data"))
        tool.main(["convert", str(stored), target, some, "obs_type=pixels+state"])
        again = offline(tmp_path / form.replace(":", "_"), Path(target.removeprefix("npz:")), some)
        assert_equal(again["agent"], saved["agent"], "agent")
    capsys.readouterr()
    tool.main(["convert", str(stored), str(tmp_path / "less"), "observation_parts=[wrist]"])
    told = refused(capsys, tmp_path / "bad", tmp_path / "less", some)
    assert f"observation_parts=arm: the observations of {tmp_path / 'less'} are wrist" in told
    told = refused(capsys, tmp_path / "bad", tmp_path / "less", "eval_every_frames=40")
    assert "has no frame.pixels, which the run has" in told
    told = refused(capsys, tmp_path / "bad", stored, "obs_type=state")
    assert "hold arm, zone, and not their order in one vector" in told
    told = refused(capsys, tmp_path / "bad", stored, "observation_parts=[wrist,leg]")
    assert "leg" in told


@pytest.mark.slow
def test_an_exported_policy_takes_the_parts(trained: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    evaluation.main([str(trained), "episodes=1", "film=none", f"export={tmp_path}/policy.onnx", f"out={tmp_path}"])
    policy = Policy(tmp_path / "policy.onnx")
    shapes = {name: part["shape"] for name, part in policy.world.parts.items()}
    assert dict(sorted(shapes.items())) == {"arm": [2], "pixels": [9, 32, 32], "wrist": [3, 32, 32], "zone": [1]}
    obs = {name: np.zeros(part["shape"], part["dtype"]) for name, part in policy.world.parts.items()}
    assert policy.act(obs).shape == (1,)
    assert json.loads(policy.world.metadata()["observation"])["parts"].keys() == shapes.keys()
