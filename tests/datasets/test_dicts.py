"""Data sets whose observations are dicts: read, checked, converted there and back, and put into a replay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from drqv2.datasets import __main__ as tool
from drqv2.datasets import formats
from drqv2.datasets.copying import fill_replay
from drqv2.datasets.learnable import Findings, learnable
from drqv2.datasets.options import ReadOptions
from drqv2.errors import UserError
from drqv2.regimes.offline import DataSpecs, _stored_shapes
from drqv2.replay.device import DeviceReplay
from drqv2.replay.gather import Request
from drqv2.replay.loader import make_replay_loader
from drqv2.replay.storage import ReplayBufferStorage

ROWS, SIDE = 6, 16
SHAPES = {
    "frame.pixels": (3, SIDE, SIDE),
    "frame.wrist": (1, SIDE, SIDE),
    "observation.arm": (4,),
    "observation.z": (1,),
}
KEPT_APART = ReadOptions(obs_type="pixels+state")
Arrays = dict[str, np.ndarray]


def arrays(seed: int, names: Any = tuple(SHAPES)) -> Arrays:
    """An episode of two images and two vectors, as this project stores it."""
    rng = np.random.default_rng(seed)
    made: Arrays = {
        "action": rng.uniform(-1, 1, (ROWS, 2)).astype(np.float32),
        "reward": rng.normal(size=(ROWS, 1)).astype(np.float32),
        "discount": np.ones((ROWS, 1), np.float32),
    }
    made["action"][0], made["reward"][0], made["discount"][-1] = 0, 0, seed % 2
    for name in names:
        shape = (ROWS, *SHAPES[name])
        image = name.startswith("frame")
        made[name] = rng.integers(0, 256, shape, np.uint8) if image else rng.normal(size=shape).astype(np.float32)
    return made


def own(folder: Path, *episodes: Arrays) -> Path:
    folder.mkdir()
    for i, episode in enumerate(episodes):
        save_file(episode, folder / f"episode_{i:08d}.safetensors")
    return folder


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    return own(tmp_path / "data", *(arrays(i) for i in range(3)))


def read(place: object, options: ReadOptions = KEPT_APART) -> list[Arrays]:
    """Return the arrays of the episodes; of dicts with several parts none is left out."""
    return [dict(episode.arrays) for episode in formats.read(str(place), pytest.fail, options, lambda line: None)]


def same(found: Arrays, wanted: Arrays) -> None:
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        assert found[name].dtype == array.dtype, name
        np.testing.assert_array_equal(found[name], array, err_msg=name)


TARGETS = {
    "own": ("NEW", "NEW"),
    "hdf5": ("NEW.hdf5", "NEW.hdf5"),
    "minari": ("minari:made-v0", "minari:made-v0"),
    "npz": ("npz:NEW", "NEW"),
    "npz, stacked": ("npz:NEW frame_stack=3", "NEW"),
}


@pytest.mark.filterwarnings("ignore")  # minari's, on what its metadata lacks
@pytest.mark.parametrize("names", [tuple(SHAPES), ("frame.pixels", "observation.z"), tuple(SHAPES)[2:]])
@pytest.mark.parametrize("kind", TARGETS)
def test_there_and_back(
    kind: str, names: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("h5py")
    pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    monkeypatch.chdir(tmp_path)
    wanted = [arrays(i, names) for i in range(3)]
    own(tmp_path / "data", *wanted)
    words, place = TARGETS[kind]
    tool.main(["convert", "data", *words.split()])
    parts = " + ".join(name.partition(".")[2] for name in sorted(names))
    assert f"3 episodes, 15 transitions of {parts}, return" in capsys.readouterr().out
    for found, episode in zip(read(place), wanted, strict=True):
        same(found, episode)
    tool.main(["convert", place, "back", "obs_type=pixels+state"])
    for path in sorted((tmp_path / "data").glob("episode_*")):
        assert (tmp_path / "back" / path.name).read_bytes() == path.read_bytes()


def test_the_hdf5_of_v_d4rl(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    episodes = [arrays(i) for i in range(2)]
    tmp_path.joinpath("data").mkdir()
    with h5py.File(tmp_path / "data" / "shard.hdf5", "w") as file:
        for name in SHAPES:
            file[f"observation/{name.partition('.')[2]}"] = np.concatenate([episode[name] for episode in episodes])
        for name in ("action", "reward", "discount"):
            file[name] = np.concatenate([episode[name] for episode in episodes])
        file["step_type"] = np.array([0, 1, 1, 1, 1, 2] * 2)
    for found, episode in zip(read(tmp_path / "data"), episodes, strict=True):
        same(found, episode)


@pytest.mark.parametrize(
    ("keys", "kept"),
    [
        ({}, list(SHAPES)),
        ({"observation_parts": ["z", "wrist"]}, ["frame.wrist", "observation.z"]),
        ({"obs_type": "pixels+state", "image_key": "wrist"}, ["frame.wrist", "observation.arm", "observation.z"]),
        ({"obs_type": "pixels+state", "observation_parts": ["arm", "z"]}, ["observation.arm", "observation.z"]),
    ],
)
def test_parts_that_are_left_out(keys: dict[str, Any], kept: list[str], data: Path) -> None:
    wanted = {name: array for name, array in arrays(1).items() if name in kept or "." not in name}
    same(read(data, ReadOptions(**keys))[1], wanted)


def test_one_part_alone_is_no_dict(data: Path) -> None:
    found = read(data, ReadOptions(obs_type="pixels"))[0]
    np.testing.assert_array_equal(found["frame"], arrays(0)["frame.pixels"])
    found = read(data, ReadOptions(obs_type="state", observation_parts=["arm"]))[0]
    np.testing.assert_array_equal(found["observation"], arrays(0)["observation.arm"])
    with pytest.raises(UserError, match=r"hold arm, z, and not their order in one vector\n.*_parts=.arm,z.,"):
        read(data, ReadOptions(obs_type="state"))
    with pytest.raises(UserError, match=rf"observation_parts=leg: the observations of {data} are pixels, "):
        read(data, ReadOptions(observation_parts=["arm", "leg"]))
    with pytest.raises(UserError, match=rf"=arm: the observations of {data} are pixels, wrist with obs_type=pixels"):
        read(data, ReadOptions(obs_type="pixels", observation_parts=["wrist", "arm"]))


@pytest.mark.filterwarnings("ignore")
def test_minari_of_images_and_numbers(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("minari")
    tool.main(["convert", str(data), "minari:made-v0"])
    same(read("minari:made-v0", ReadOptions())[2], arrays(2))
    joined = read("minari:made-v0", ReadOptions(obs_type="state"))[2]["observation"]
    wanted = arrays(2)
    np.testing.assert_array_equal(joined, np.concatenate([wanted["observation.arm"], wanted["observation.z"]], 1))
    np.testing.assert_array_equal(
        read("minari:made-v0", ReadOptions(obs_type="pixels"))[0]["frame"], arrays(0)["frame.pixels"]
    )


def test_names_that_minari_does_not_read_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of dm_control's manipulation tasks; other formats keep them."""
    pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    episode = arrays(0)
    episode["observation.arm/joints"] = episode.pop("observation.arm")
    data = own(tmp_path / "data", episode)
    with pytest.raises(SystemExit):
        tool.main(["convert", str(data), "minari:made-v0"])
    assert "its observations have arm/joints, and Minari cannot read" in capsys.readouterr().err
    for target, place in (("npz:{}/npz", "{}/npz"), ("{}/made.hdf5", "{}/made.hdf5")):
        tool.main(["convert", str(data), target.format(tmp_path)])
        same(read(place.format(tmp_path))[0], episode)


def changed(**parts: Any) -> Arrays:
    """The second of two episodes, with some of its parts changed; those that are None are missing."""
    named = {name.replace("_", "."): array for name, array in parts.items()}
    return {name: array for name, array in (arrays(1) | named).items() if array is not None}


@pytest.mark.parametrize(
    ("second", "said"),
    [
        (changed(observation_z=np.zeros((ROWS, 2), np.float32)), "observation.z 2: that of the first episode is 1"),
        (changed(observation_z=None), "has no observation.z, which the first episode has; it has action, discount"),
        (
            changed(observation_leg=np.zeros((ROWS, 2), np.float32)),
            "has observation.leg, which the first episode has not",
        ),
        (changed(observation_z=np.full((ROWS, 1), np.nan, np.float32)), "row 0: observation.z is nan"),
        (changed(observation_z=np.zeros((ROWS - 1, 1), np.float32)), "rows differ in number: action 6, discount 6, "),
        (changed(frame_wrist=np.zeros((ROWS, 1, 14, 16), np.uint8)), "frame.wrist 1x14x16: images need sides of at "),
        (
            changed(frame_wrist=np.zeros((ROWS, 16, 16), np.uint8)),
            "frame.wrist is uint8 [6, 16, 16]: must be uint8 [rows",
        ),
        (
            changed(observation_z=np.zeros((ROWS, 1), np.int64)),
            "observation.z is int64 [6, 1]: must be float32 [rows, n",
        ),
        (changed(observation_z=np.zeros((ROWS, 1))), "observation.z is float64 [6, 1]: must be float32"),
        (changed(frame=np.zeros((ROWS, 3, 16, 16), np.uint8)), "its observations are frame, frame.pixels"),
    ],
)
def test_a_bad_part_is_named(second: Arrays, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = own(tmp_path / "data", arrays(0), second)
    with pytest.raises(SystemExit) as leaving:
        tool.main(["check", str(folder)])
    assert leaving.value.code == 2
    told = capsys.readouterr().err
    assert f"{folder}/episode_00000001.safetensors: {said}" in told
    assert "Traceback" not in told


def test_a_card_shows_the_parts(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tool.main(["list", str(data)])
    assert "this project's; 3 episodes, 15 transitions of pixels + wrist + arm + z, return" in capsys.readouterr().out
    tool.main(["card", str(data)])
    assert "frame.wrist: uint8 [1, 16, 16]\nobservation.arm: float32 [4]\n" in capsys.readouterr().out


@pytest.mark.parametrize("device", [False, True])
@pytest.mark.parametrize("segment", [None, 2])
def test_a_replay_is_filled_with_dicts(device: bool, segment: int | None, data: Path, tmp_path: Path) -> None:
    """Batches of data of dicts have the parts that the specs of the data have, in their order."""
    options = ReadOptions(observation_parts=["wrist", "arm"])
    first = next(iter(learnable(str(data), Findings(), options=options, announce=lambda line: None))).arrays
    env = DataSpecs(first, 3)
    spec = env.observation_spec()
    assert {name: (part.shape, part.dtype.name) for name, part in spec.items()} == {
        "wrist": ((3, SIDE, SIDE), "uint8"),
        "arm": ((4,), "float32"),
    }
    shapes = _stored_shapes(env, 3)
    assert shapes == {"action": (2,), "frame.wrist": (1, SIDE, SIDE), "observation.arm": (4,)}
    replay = tmp_path / "buffer"
    assert fill_replay(str(data), replay, shapes, None, options) == 15
    assert "observation.z" not in load_file(replay / "episode_00000001.safetensors")
    storage = ReplayBufferStorage((spec, env.action_spec()), replay, 15, 3)
    storage.add_existing()
    if device:
        requests = iter([Request(0, np.array([0, 1]), np.array([0, 4]))])
        batch: Any = next(DeviceReplay(storage, 1, 0.99, 3, "cpu", segment).start(requests))
    else:
        loader = make_replay_loader(replay, 15, 4, 0, True, 1, 0.99, storage=storage, seed=1, segment=segment)
        batch = next(iter(loader))
    assert list(batch[0]) == list(spec)
    frames = 3 if segment is None else 3 + segment
    assert batch[0]["wrist"].shape[1:] == (frames, SIDE, SIDE)
    assert batch[0]["arm"].shape[1:] == ((4,) if segment is None else (segment + 1, 4))


def test_a_run_that_shows_other_parts(data: Path, tmp_path: Path) -> None:
    shapes = {name: SHAPES[name] for name in ("frame.pixels", "observation.arm")} | {"action": (2,)}
    with pytest.raises(
        UserError, match=r"has frame.wrist, which the run has not; observation_parts=.* can leave it out"
    ):
        fill_replay(str(data), tmp_path / "buffer", shapes)
    with pytest.raises(UserError, match=r"has no frame, which the run has; it has action, discount, frame.pixels"):
        fill_replay(str(data), tmp_path / "other", {"frame": (3, SIDE, SIDE), "action": (2,)})
