"""Data sets in the formats of others: what is written is read back equal, and nothing half-written is left."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from drqv2.datasets import __main__ as tool
from drqv2.datasets import formats, writing
from drqv2.datasets.episodes import Episode
from drqv2.datasets.origin import origin

pytest.importorskip("h5py")
minari = pytest.importorskip("minari")

LENGTHS = 6, 4, 1, 5  # of different episodes, so that their order shows
TASK = {"task": "cheetah_run", "env": "dm_control", "action_repeat": 4}


def arrays(seed: int, pixels: bool, shape: tuple[int, ...] = (3, 16, 16)) -> dict[str, np.ndarray]:
    """An episode as this project stores it; every other one ends in a terminal state."""
    rng, rows = np.random.default_rng(seed), LENGTHS[seed % 4] + 1
    made: dict[str, np.ndarray] = {
        "action": rng.uniform(-1, 1, (rows, 2)).astype(np.float32),
        "reward": rng.normal(size=(rows, 1)).astype(np.float32),
        "discount": np.ones((rows, 1), np.float32),
    }
    made["action"][0], made["reward"][0] = 0, 0
    made["action"][-1] = [1e-9, -1]  # would be lost if it were scaled
    made["discount"][-1] = seed % 2
    if pixels:
        made["frame"] = rng.integers(0, 256, (rows, *shape), np.uint8)
    else:
        made["observation"] = rng.normal(size=(rows, 5)).astype(np.float32)
    return made


def own(folder: Path, episodes: list[dict[str, np.ndarray]], told: dict[str, Any] | None = None) -> Path:
    folder.mkdir()
    for i, episode in enumerate(episodes):
        save_file(episode, folder / f"episode_{i:08d}.safetensors")
    (folder / "dataset.json").write_text(json.dumps(told or {}))
    return folder


@pytest.fixture(autouse=True)
def local_minari(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    return tmp_path / "minari"


def read(place: object) -> list[Episode]:
    said: list[str] = []
    found = list(formats.read(str(place), pytest.fail, announce=said.append))
    assert not said, "nothing is converted or left out"
    return found


def target_and_place(kind: str, tmp_path: Path) -> tuple[list[str], str]:
    """Return the words of a command line that name a target, and the place from which it is read."""
    if kind == "minari":
        return ["minari:drqv2/made-v0"], "minari:drqv2/made-v0"
    if kind == "hdf5":
        return [str(tmp_path / "made.hdf5")], str(tmp_path / "made.hdf5")
    more = ["frame_stack=3"] if kind == "npz, stacked" else []
    return [f"npz:{tmp_path / 'made'}", *more], str(tmp_path / "made")


KINDS = ["minari", "hdf5", "npz", "npz, stacked"]


@pytest.mark.parametrize("pixels", [True, False], ids=["pixels", "states"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_is_read_back_equal(
    kind: str, pixels: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = own(tmp_path / "data", [arrays(i, pixels) for i in range(12)], TASK)
    words, place = target_and_place(kind, tmp_path)
    tool.main(["convert", str(source), *words])
    assert capsys.readouterr().out.startswith(f"{place}: 12 episodes, 48 transitions")
    found = read(place)
    assert len(found) == 12
    for i, episode in enumerate(found):
        wanted = arrays(i, pixels)
        assert episode.arrays.keys() == wanted.keys()
        for name, array in wanted.items():
            assert episode.arrays[name].dtype == array.dtype, name
            np.testing.assert_array_equal(episode.arrays[name], array, err_msg=name)
    assert origin(place) == TASK
    tool.main(["card", place])
    card = capsys.readouterr().out
    assert "environment: cheetah_run (dm_control)" in card
    assert "action_repeat: 4" in card
    assert not list(tmp_path.rglob(".*"))


@pytest.mark.parametrize("kind", KINDS)
def test_there_and_back(kind: str, tmp_path: Path) -> None:
    source = own(tmp_path / "data", [arrays(i, True) for i in range(4)], TASK)
    words, place = target_and_place(kind, tmp_path)
    tool.main(["convert", str(source), *words])
    tool.main(["convert", place, str(tmp_path / "back")])
    for path in sorted(source.glob("episode_*")):
        assert (tmp_path / "back" / path.name).read_bytes() == path.read_bytes()
    assert origin(str(tmp_path / "back")) == TASK


def test_discrete_actions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    episode = arrays(0, False) | {"action": np.array([0, 2, 1, 0, 1, 2, 2])}
    source = own(tmp_path / "data", [episode])
    for kind in ("hdf5", "npz"):
        words, place = target_and_place(kind, tmp_path)
        tool.main(["convert", str(source), *words])
        np.testing.assert_array_equal(read(place)[0].arrays["action"], episode["action"])
    assert "its actions are discrete" in refused(capsys, "convert", source, "minari:drqv2/made-v0")


def test_splits_and_merges_take_every_target(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = own(tmp_path / "data", [arrays(i, False) for i in range(8)])
    tool.main(["split", str(source), "minari:some-v0", f"npz:{tmp_path / 'rest'}", "share=0.5"])
    tool.main(["merge", "minari:some-v0", str(tmp_path / "rest"), str(tmp_path / "all.hdf5")])
    totals = [episode.total for episode in read(tmp_path / "all.hdf5")]
    assert sorted(totals) == pytest.approx(sorted(episode.total for episode in read(source)))


# How others find it


def test_the_layouts_of_npz(tmp_path: Path) -> None:
    source = own(tmp_path / "data", [arrays(i, True) for i in range(2)])
    tool.main(["convert", str(source), f"npz:{tmp_path / 'vd4rl'}"])
    tool.main(["convert", str(source), f"npz:{tmp_path / 'drqv2'}", "frame_stack=3"])
    names = [sorted(path.name for path in (tmp_path / name).glob("*.npz")) for name in ("vd4rl", "drqv2")]
    assert names[0] == ["episode-00000000-6.npz", "episode-00000001-4.npz"]
    assert names[1] == ["episode_00000000_6.npz", "episode_00000001_4.npz"]
    with np.load(tmp_path / "vd4rl" / names[0][0]) as file:
        shapes = {name: (file[name].dtype.name, file[name].shape) for name in file.files}
        assert file["is_terminal"].tolist() == [False] * 6 + [True]
        assert file["is_last"].tolist() == [False] * 6 + [True]
        assert file["is_first"].tolist() == [True] + [False] * 6
    flags = dict.fromkeys(("is_first", "is_last", "is_terminal"), ("bool", (7,)))
    numbers = {"action": ("float32", (7, 2)), "reward": ("float32", (7,)), "discount": ("float32", (7,))}
    assert shapes == {"image": ("uint8", (7, 16, 16, 3)), **numbers, **flags}
    with np.load(tmp_path / "drqv2" / names[1][0]) as file:
        shapes = {name: (file[name].dtype.name, file[name].shape) for name in file.files}
        np.testing.assert_array_equal(file["observation"][4, 3:6], arrays(0, True)["frame"][3])
        np.testing.assert_array_equal(file["observation"][0, :3], arrays(0, True)["frame"][0])
    numbers = {"action": ("float32", (7, 2)), "reward": ("float32", (7, 1)), "discount": ("float32", (7, 1))}
    assert shapes == {"observation": ("uint8", (7, 9, 16, 16)), **numbers}


def test_the_columns_of_d4rl(tmp_path: Path) -> None:
    import h5py

    tool.main(["convert", str(own(tmp_path / "data", [arrays(i, False) for i in range(4)])), f"{tmp_path / 'a.hdf5'}"])
    with h5py.File(tmp_path / "a.hdf5") as file:
        ends = np.cumsum(LENGTHS) - 1
        assert np.flatnonzero(file["terminals"][:]).tolist() == ends[[0, 2]].tolist()
        assert np.flatnonzero(file["timeouts"][:]).tolist() == ends[[1, 3]].tolist()
        np.testing.assert_array_equal(file["observations"][6], arrays(1, False)["observation"][0])
        np.testing.assert_array_equal(file["next_observations"][5], arrays(0, False)["observation"][6])
        np.testing.assert_array_equal(file["actions"][5], arrays(0, False)["action"][6])
        assert {len(column) for column in file.values()} == {sum(LENGTHS)}


@pytest.mark.filterwarnings("ignore")  # of environments
@pytest.mark.parametrize(
    ("parts", "missing"),
    [
        ({"frame.pixels": (3, 24, 24), "observation.position": (8,)}, "velocity"),
        ({"frame.pixels_0": (3, 24, 24), "frame.pixels_back": (3, 24, 24), "observation.velocity": (9,)}, "position"),
        ({"frame.pixels_0": (3, 24, 24), "frame.pixels_back": (3, 24, 24)}, "position"),
    ],
    ids=["one camera", "two cameras", "images alone"],
)
def test_minari_makes_the_environment_of_a_dict_again(parts: Any, missing: str, tmp_path: Path) -> None:
    one = arrays(0, False) | {"action": np.zeros((7, 6), np.float32)}
    del one["observation"]
    for name, shape in parts.items():
        one[name] = np.zeros((7, *shape), np.uint8 if len(shape) == 3 else np.float32)
    tool.main(["convert", str(own(tmp_path / "data", [one], TASK)), "minari:cheetah/random-v0"])
    dataset = minari.load_dataset("cheetah/random-v0")
    assert dataset.spec.env_spec.id == "drqv2/cheetah_run-v0"
    env = dataset.recover_environment()
    try:
        assert env.observation_space == dataset.observation_space
        assert missing not in env.observation_space.spaces
        assert env.reset(seed=1)[0].keys() == {name.partition(".")[2] for name in parts}
    finally:
        env.close()


@pytest.mark.filterwarnings("ignore")  # of environments
@pytest.mark.parametrize("pixels", [True, False], ids=["pixels", "states"])
def test_minari_makes_the_environment_again(pixels: bool, tmp_path: Path) -> None:
    from minari.namespace import list_local_namespaces

    one = arrays(0, pixels, (3, 24, 24)) | {"action": np.zeros((7, 6), np.float32)}
    if not pixels:
        one["observation"] = np.zeros((7, 17), np.float32)
    tool.main(["convert", str(own(tmp_path / "data", [one], TASK)), "minari:cheetah/random-v0"])
    dataset = minari.load_dataset("cheetah/random-v0")
    assert dataset.spec.env_spec.id == "drqv2/cheetah_run-v0"
    assert list_local_namespaces() == ["cheetah"]
    env = dataset.recover_environment()
    try:
        assert env.observation_space == dataset.observation_space
        assert env.action_space == dataset.action_space
        assert env.spec.kwargs["action_repeat"] == 4
        observation, _ = env.reset(seed=1)
        assert observation.dtype == (np.uint8 if pixels else np.float32)
    finally:
        env.close()
    assert list(minari.list_local_datasets()) == ["cheetah/random-v0"]


@pytest.mark.filterwarnings("ignore")  # minari's, on what its metadata lacks
def test_minari_keeps_the_environment_of_a_data_set_of_others(tmp_path: Path) -> None:
    from minari.data_collector import EpisodeBuffer

    rng = np.random.default_rng(0)
    buffer = EpisodeBuffer(
        observations=list(rng.normal(size=(5, 3)).astype(np.float32)),
        actions=list(rng.uniform(-2, 2, (4, 1)).astype(np.float32)),
        rewards=[1.0] * 4,
        terminations=[False] * 4,
        truncations=[False] * 3 + [True],
    )
    minari.create_dataset_from_buffers("others/made-v0", [buffer], env="Pendulum-v1")
    assert origin("minari:others/made-v0") == {"task": "gymnasium:Pendulum-v1"}
    tool.main(["convert", "minari:others/made-v0", "minari:own/made-v0"])
    tool.main(["convert", "minari:own/made-v0", str(tmp_path / "plain")])
    tool.main(["convert", str(tmp_path / "plain"), "minari:own/again-v0"])
    for name in ("own/made-v0", "own/again-v0"):
        assert origin(f"minari:{name}") == {"task": "gymnasium:Pendulum-v1"}
        dataset = minari.load_dataset(name)
        assert dataset.spec.env_spec.id == "Pendulum-v1"
        env = dataset.recover_environment()
        assert env.action_space == dataset.action_space  # [-1, 1], where Pendulum's is [-2, 2]
        env.reset()
        env.step(np.ones(1, np.float32))
        assert env.unwrapped.last_u == pytest.approx(2)
        env.close()


def test_an_environment_that_is_not_known_is_not_named(tmp_path: Path) -> None:
    source = own(tmp_path / "data", [arrays(0, False)], {"task": "cheetah_run", "env": "my_envs.make"})
    tool.main(["convert", str(source), "minari:own-v0"])
    assert minari.load_dataset("own-v0").spec.env_spec is None
    assert origin("minari:own-v0") == {"task": "cheetah_run", "env": "my_envs.make"}


# What is refused


@pytest.mark.parametrize(("kind", "package"), [("hdf5", "h5py"), ("minari", "minari")])
def test_a_package_that_is_missing_is_named(
    kind: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = own(tmp_path / "data", [arrays(0, False)])
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.setitem(sys.modules, name, None)
    words, _ = target_and_place(kind, tmp_path)
    assert f"{package} must be installed: pip install" in refused(capsys, "convert", source, *words)
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "minari") == ["data"]


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    with pytest.raises(SystemExit) as leaving:
        tool.main([str(word) for word in words])
    assert leaving.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"discount": np.full((5, 1), 0.5, np.float32)}, "row 1: discount 0.5"),
        ({"task": np.ones((5, 1), np.int64)}, "comes from a multi-task run"),
        ({"frame": None, "observation.a": np.zeros((5, 3), np.int16)}, "its observations are observation.a int16 [3]"),
        ({"observation": np.zeros((5, 2), np.float32)}, "its observations are frame uint8 [3, 16, 16], observation"),
        ({"frame": np.zeros((5, 20, 18, 16), np.uint8)}, "would be read as others"),
    ],
    ids=["discount", "several tasks", "dict", "image and vector", "channels"],
)
def test_what_does_not_fit_a_format_is_refused(
    kind: str,
    change: dict[str, Any],
    said: str,
    tmp_path: Path,
    local_minari: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if "discount" in change and kind.startswith("npz"):
        return  # it holds any
    if kind == "npz, stacked" and said.startswith("would"):
        return  # stacks have the channels first unless their shape says otherwise
    one = {name: array for name, array in (arrays(1, True) | change).items() if array is not None}
    source = own(tmp_path / "data", [one])
    words, _ = target_and_place(kind, tmp_path)
    told = refused(capsys, "convert", source, *words)
    assert said in told
    assert len(told.splitlines()) <= 2
    assert sorted(path.name for path in tmp_path.iterdir() if path != local_minari) == ["data"]
    assert not local_minari.exists() or not list(local_minari.iterdir())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["made.npz"], "must be a directory, for this project's format, npz:DIR, FILE.hdf5 or minari:NAME-vN"),
        (["made.h5"], "FILE.hdf5"),
        (["npz:"], "must be npz:DIR"),
        (["minari:made"], "must be minari:NAME-vN or minari:FOLDER/NAME-vN"),
        (["minari:../made-v0"], "must be minari:NAME-vN"),
        (["made", "frame_stack=3"], "frame_stack=3: applies only to npz:DIR"),
        (["made.hdf5", "frame_stack=3"], "frame_stack=3: applies only to npz:DIR"),
    ],
)
def test_mistakes_in_the_target(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own(tmp_path / "data", [arrays(0, True)])
    monkeypatch.chdir(tmp_path)
    assert said in refused(capsys, "convert", "data", *words)
    assert [path.name for path in tmp_path.iterdir() if path.name != "minari"] == ["data"]


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_overwritten(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = own(tmp_path / "data", [arrays(0, True)])
    words, place = target_and_place(kind, tmp_path)
    tool.main(["convert", str(source), *words])
    assert "exists; give another" in refused(capsys, "convert", source, *words)
    assert len(read(place)) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_half_way_leaves_nothing(
    kind: str, tmp_path: Path, local_minari: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = arrays(3, True)
    bad["reward"][2] = np.nan
    source = own(tmp_path / "data", [arrays(0, True), arrays(1, True), bad])
    words, place = target_and_place(kind, tmp_path)
    assert "row 2: reward is nan" in refused(capsys, "convert", source, *words)
    assert sorted(path.name for path in tmp_path.iterdir() if path != local_minari) == ["data"]
    assert not list(local_minari.rglob("*"))
    tool.main(["convert", str(source), *words, "skip_bad=true"])
    assert len(read(place)) == 2


@pytest.mark.parametrize("kind", ["minari", "hdf5"])
def test_a_full_disk_is_noticed_before_the_library_loses_what_it_holds_back(
    kind: str, tmp_path: Path, local_minari: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    room = iter([10**9, 10**9, 1000])  # for two episodes
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=next(room)))
    source = own(tmp_path / "data", [arrays(i, True) for i in range(4)])
    words, _ = target_and_place(kind, tmp_path)
    with pytest.raises(SystemExit) as leaving:
        tool.main(["convert", str(source), *words])
    assert leaving.value.code == 74
    assert "cannot be written (No space left on device); choose a place elsewhere" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir() if path != local_minari) == ["data"]
    assert not list(local_minari.rglob("*"))


KILLED = """
import sys, time
from drqv2.datasets import formats, writing

def slowly():
    for i, episode in enumerate(formats.read(sys.argv[1], print)):
        if i == 3:
            print("half way", flush=True)
            time.sleep(60)
        yield episode

writing.write(slowly(), sys.argv[2], [sys.argv[1]])
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "stop"),
    [("minari", signal.SIGKILL), ("hdf5", signal.SIGKILL), ("npz", signal.SIGKILL), ("hdf5", signal.SIGTERM)],
    ids=lambda value: getattr(value, "name", value),
)
def test_a_kill_leaves_no_data_set(kind: str, stop: signal.Signals, tmp_path: Path) -> None:
    source = own(tmp_path / "data", [arrays(i, True) for i in range(5)])
    words, place = target_and_place(kind, tmp_path)
    root = Path(writing.__file__).parents[2]
    writer = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(source), *words],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(root)},
    )
    assert writer.stdout is not None
    assert writer.stdout.readline() == b"half way\n"
    time.sleep(0.1)
    writer.send_signal(stop)
    assert writer.wait() == (143 if stop == signal.SIGTERM else -stop)
    writer.stdout.close()
    assert not Path(place).exists()
    assert not minari.list_local_datasets()
    left = [path for path in tmp_path.rglob(".*") if path.name.endswith(".unfinished")]
    assert len(left) == (stop == signal.SIGKILL)  # which leaves no time to remove it; the next attempt does
    tool.main(["convert", str(source), *words])
    assert len(read(place)) == 5
    assert not [path for path in tmp_path.rglob(".*") if path.name.endswith(".unfinished")]
