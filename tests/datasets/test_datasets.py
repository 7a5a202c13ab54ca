"""Data sets: every format comes out as this project's episodes; bad data is named; the tool's commands."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dm_env import specs
from safetensors.numpy import load_file, save_file

from drqv2.datasets import __main__ as tool
from drqv2.datasets import formats
from drqv2.datasets.columns import Layout, to_frames
from drqv2.datasets.episodes import Episode, Unusable, problems
from drqv2.datasets.origin import origin
from drqv2.envs.images import Image
from drqv2.errors import UserError

T, SIDE = 6, 16


def arrays(seed: int = 0, rows: int = T + 1, pixels: bool = True) -> dict[str, np.ndarray]:
    """An episode as this project stores it."""
    generator = np.random.default_rng(seed)
    made: dict[str, np.ndarray] = {
        "action": generator.uniform(-1, 1, (rows, 2)).astype(np.float32),
        "reward": generator.uniform(0, 1, (rows, 1)).astype(np.float32),
        "discount": np.ones((rows, 1), np.float32),
    }
    made["action"][0], made["reward"][0] = 0, 0
    if pixels:
        made["frame"] = generator.integers(0, 256, (rows, 3, SIDE, SIDE), np.uint8)
    else:
        made["observation"] = generator.normal(size=(rows, 4)).astype(np.float32)
    return made


def stacked(frames: np.ndarray, number: int = 3) -> np.ndarray:
    """Stack images as the public code does: at first, the first one several times."""
    rows = np.maximum(np.arange(len(frames))[:, None] + np.arange(1 - number, 1), 0)
    return frames[rows].reshape(len(frames), -1, *frames.shape[2:])


def own(folder: Path, number: int = 3, **kwargs: Any) -> Path:
    folder.mkdir(parents=True)
    for i in range(number):
        save_file(arrays(i, **kwargs), folder / f"episode_{i:08d}.safetensors")
    return folder


def drqv2_npz(folder: Path) -> Path:
    folder.mkdir()
    for i in range(3):
        episode = arrays(i)
        episode["observation"] = stacked(episode.pop("frame"))
        np.savez(folder / f"2022010{i}T000000_{i}_{T}.npz", **episode)  # type: ignore[arg-type]
    return folder


def vd4rl_npz(folder: Path) -> Path:
    folder.mkdir()
    for i in range(3):
        episode = arrays(i)
        columns: dict[str, Any] = {
            "image": episode["frame"].transpose(0, 2, 3, 1),
            "action": episode["action"],
            "reward": episode["reward"][:, 0],
            "discount": episode["discount"][:, 0],
            "is_first": np.arange(T + 1) == 0,
            "is_terminal": np.zeros(T + 1, bool),
        }
        np.savez(folder / f"2022010{i}T000000-{i}-{T}.npz", **columns)
    return folder


def vd4rl_hdf5(folder: Path) -> Path:
    h5py = pytest.importorskip("h5py")
    folder.mkdir()
    episodes = [arrays(i) for i in range(3)]
    for name, some in (("shard_1", episodes[:2]), ("shard_2", episodes[2:])):
        with h5py.File(folder / f"{name}.hdf5", "w") as file:
            for column, key in (("observation", "frame"), ("action", "action")):
                file[column] = np.concatenate([episode[key] for episode in some])
            for column in ("reward", "discount"):
                file[column] = np.concatenate([episode[column][:, 0] for episode in some])
            file["step_type"] = np.concatenate([[0.0] + [1.0] * (T - 1) + [2.0] for _ in some])
    return folder


def read(place: object) -> tuple[list[Episode], list[str]]:
    bad: list[str] = []
    return list(formats.read(str(place), bad.append)), bad


@pytest.mark.parametrize("make", [own, drqv2_npz, vd4rl_npz, vd4rl_hdf5])
def test_every_format_comes_out_as_this_projects_episodes(tmp_path: Path, make: Any) -> None:
    found, bad = read(make(tmp_path / "data"))
    assert bad == []
    assert len(found) == 3
    for i, episode in enumerate(found):
        wanted = arrays(i)
        assert episode.arrays.keys() == wanted.keys()
        for name, array in wanted.items():
            assert episode.arrays[name].dtype == array.dtype, name
            np.testing.assert_array_equal(episode.arrays[name], array)
        assert episode.length == T
        assert episode.total == pytest.approx(wanted["reward"].sum())


def test_the_replay_of_a_run_is_found(tmp_path: Path) -> None:
    own(tmp_path / "run" / "buffer", number=2)
    assert len(read(tmp_path / "run")[0]) == 2


def test_terminal_states_of_vd4rl_without_a_discount(tmp_path: Path) -> None:
    folder = vd4rl_npz(tmp_path / "data")
    path = sorted(folder.glob("*.npz"))[0]
    with np.load(path) as file:
        columns = dict(file.items())
    del columns["discount"]
    columns["is_terminal"][-1] = True
    np.savez(path, **columns)
    assert read(folder)[0][0].arrays["discount"][:, 0].tolist() == [1.0] * T + [0.0]


@pytest.mark.filterwarnings("ignore")  # minari's, on what its metadata lacks
def test_minari(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    minari = pytest.importorskip("minari")
    import gymnasium
    from minari.data_collector import EpisodeBuffer

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    buffers = []
    for i in range(2):
        episode = arrays(i, pixels=False)
        buffers.append(
            EpisodeBuffer(
                id=i,
                observations=list(episode["observation"]),
                actions=list(4 * episode["action"][1:]),
                rewards=episode["reward"][1:, 0].tolist(),
                terminations=[False] * (T - 1) + [i == 1],
                truncations=[False] * (T - 1) + [i == 0],
            )
        )
    minari.create_dataset_from_buffers(
        "drqv2/made-v0",
        buffers,
        action_space=gymnasium.spaces.Box(-4, 4, (2,), np.float32),
        observation_space=gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float32),
    )
    found, bad = read("minari:drqv2/made-v0")
    assert bad == []
    for i, one in enumerate(found):
        wanted = arrays(i, pixels=False)
        np.testing.assert_allclose(one.arrays["action"], wanted["action"], atol=1e-6)
        np.testing.assert_array_equal(one.arrays["observation"], wanted["observation"])
        np.testing.assert_array_equal(one.arrays["reward"], wanted["reward"])
        assert one.arrays["discount"][-1, 0] == 1 - i
    with pytest.raises(UserError, match="minari:drqv2/nothing-v0: cannot be loaded"):
        read("minari:drqv2/nothing-v0")


# Bad data


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"reward": (3, np.nan)}, "row 3: reward is nan"),
        ({"action": (2, np.inf)}, "row 2: action is inf"),
        (
            {"action": (4, 1.5)},
            r"row 4: action\[0\] 1.5 is not within \[-1, 1\] \(one of 2 such numbers, by 0.5\); scale them, or clip",
        ),
        ({"discount": (5, -0.1)}, r"row 5: discount -0.1 is not within \[0, 1\] \(the only one, by 0.1\)"),
    ],
)
def test_a_bad_value_is_named_with_its_row(change: dict[str, Any], said: str) -> None:
    episode = arrays()
    for name, (row, value) in change.items():
        episode[name][row] = value
    with pytest.raises(UserError, match=said):
        raise UserError("\n".join(problems(episode)))


def test_a_bad_shape_is_named() -> None:
    episode = arrays()
    assert list(problems(episode)) == []
    assert list(problems({**episode, "reward": episode["reward"][:-1]})) == [
        "rows differ in number: action 7, discount 7, frame 7, reward 6"
    ]
    del episode["frame"]
    assert list(problems(episode)) == ["observation missing; it has action, discount, reward"]
    (only,) = problems({name: array[:1] for name, array in arrays().items()})
    assert only.startswith("has 1 row:")


def test_damaged_files_are_left_out_and_named(tmp_path: Path) -> None:
    folder = own(tmp_path / "data", number=3)
    path = folder / "episode_00000001.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    found, bad = read(folder)
    assert [episode.where for episode in found] == [str(folder / f"episode_0000000{i}.safetensors") for i in (0, 2)]
    assert len(bad) == 1
    assert bad[0].startswith(f"{path}: damaged or of another format (")


@pytest.mark.parametrize(
    ("make", "where"), [(vd4rl_npz, "-1-6.npz: row 2"), (vd4rl_hdf5, "shard_1.hdf5, rows 7 to 13: row 9")]
)
def test_a_bad_row_within_a_file_of_another_format(tmp_path: Path, make: Any, where: str) -> None:
    folder = make(tmp_path / "data")
    if make is vd4rl_npz:
        path = sorted(folder.glob("*.npz"))[1]
        with np.load(path) as file:
            columns = dict(file.items())
        columns["reward"][2] = np.nan
        np.savez(path, **columns)
    else:
        import h5py

        with h5py.File(folder / "shard_1.hdf5", "r+") as file:
            file["reward"][9] = np.nan
    found, bad = read(folder)
    assert len(found) == 2
    assert len(bad) == 1
    assert bad[0].endswith(f"{where}: reward is nan")


def test_a_directory_without_episodes(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no episodes; looked for episode_"):
        read(tmp_path)
    with pytest.raises(UserError, match="there is no such directory"):
        read(tmp_path / "nowhere")


# The tool


def run(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    tool.main([str(word) for word in words])
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    with pytest.raises(SystemExit) as leaving:
        tool.main([str(word) for word in words])
    assert leaving.value.code == 2
    return capsys.readouterr().err


def test_list_and_card(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = own(tmp_path / "data")
    returns = [float(arrays(i)["reward"].sum()) for i in range(3)]
    said = run(capsys, "list", folder)
    assert said.startswith(f"{folder}: this project's; 3 episodes, 18 transitions, return {np.mean(returns):.1f} (")
    card = run(capsys, "card", folder)
    for words in (
        "transitions of an episode: 6 to 6",
        "frame: uint8 [3, 16, 16]",
        "action: float32 [2]",
        "returns:",
        "█",
    ):
        assert words in card, words


def test_check_names_everything_that_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = own(tmp_path / "data")
    assert "3 episodes" in run(capsys, "check", folder)
    for i, row in ((0, 1), (2, 4)):
        episode = arrays(i)
        episode["reward"][row] = np.nan
        save_file(episode, folder / f"episode_{i:08d}.safetensors")
    said = refused(capsys, "check", folder)
    assert "2 problems:" in said
    assert "1 problem:" in refused(capsys, "check", tmp_path / "nowhere")
    assert "episode_00000000.safetensors: row 1: reward is nan" in said
    assert "episode_00000002.safetensors: row 4: reward is nan" in said


def test_convert_stops_at_bad_data_and_leaves_nothing_half_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = own(tmp_path / "data")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    episode = arrays(1)
    episode["action"][3] = 7
    save_file(episode, folder / "episode_00000001.safetensors")
    said = refused(capsys, "convert", folder, tmp_path / "new")
    assert "episode_00000001.safetensors: row 3: action[0] 7.0 is not within [-1, 1]" in said
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
    run(capsys, "convert", folder, tmp_path / "new", "skip_bad=true")
    assert len(read(tmp_path / "new")[0]) == 2
    kept = {path.name: path.read_bytes() for path in folder.iterdir() if "1." not in path.name}
    assert kept == {name: content for name, content in before.items() if "1." not in name}
    assert "exists; give another directory" in refused(capsys, "convert", folder, tmp_path / "new")


def test_check_goes_on_to_the_next_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = own(tmp_path / "a"), own(tmp_path / "b")
    (first / "dataset.json").write_text("{")
    save_file({**arrays(9), "action": np.zeros((T + 1, 3), np.float32)}, second / "episode_00000009.safetensors")
    said = refused(capsys, "check", tmp_path / "nowhere", first, second)
    assert "3 problems:" in said
    assert f"{tmp_path / 'nowhere'}: there is no such directory" in said
    assert f"{first / 'dataset.json'}: cannot be read" in said
    assert "episode_00000009.safetensors: action 3: that of the first episode is 2" in said


def test_what_is_converted_is_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    for i in range(4):
        episode = arrays(i)
        image = (episode.pop("frame") / 255).astype(np.float32)
        episode["action"][2] = 1.25
        np.savez(folder / f"{i}.npz", image=image, **episode)  # type: ignore[arg-type]
    for command in (
        ["split", folder, tmp_path / "a", tmp_path / "b", "share=0.5"],
        ["convert", folder, tmp_path / "c"],
    ):
        tool.main([*map(str, command), "clip_actions=true"])
        assert capsys.readouterr().err.splitlines() == [
            f"{folder}: images of float32 in [0, 1] are converted to uint8 (times 255, rounded)",
            f"{folder}: actions outside [-1, 1] are clipped",
        ]
    converted, bad = read(tmp_path / "c")
    assert not bad
    np.testing.assert_array_equal(converted[3].arrays["frame"], arrays(3)["frame"])
    np.testing.assert_array_equal(converted[3].arrays["action"][2], [1, 1])


def test_convert_writes_this_projects_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "convert", vd4rl_npz(tmp_path / "data"), tmp_path / "new")
    for i in range(3):
        written = load_file(tmp_path / "new" / f"episode_{i:08d}.safetensors")
        for name, array in arrays(i).items():
            np.testing.assert_array_equal(written[name], array)
    about = json.loads((tmp_path / "new" / "dataset.json").read_text())
    assert about == {"sources": [str(tmp_path / "data")], "episodes": 3, "transitions": 18}


def test_filter_by_return(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = own(tmp_path / "data", number=6)
    totals = sorted(float(arrays(i)["reward"].sum()) for i in range(6))
    run(capsys, "filter", folder, tmp_path / "good", f"min_return={totals[2] - 1e-3}", f"max_return={totals[4] + 1e-3}")
    assert sorted(episode.total for episode in read(tmp_path / "good")[0]) == pytest.approx(totals[2:5])
    said = refused(capsys, "filter", folder, tmp_path / "none", "min_return=1000")
    assert "there is no episode to write" in said


def test_merge_refuses_other_shapes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second, third = own(tmp_path / "a", 2), own(tmp_path / "b", 3), own(tmp_path / "c", 1, pixels=False)
    run(capsys, "merge", first, second, tmp_path / "both")
    assert len(read(tmp_path / "both")[0]) == 5
    said = refused(capsys, "merge", first, third, tmp_path / "mixed")
    assert "frame is missing, and uint8 [3, 16, 16] in the episodes before it" in said


def test_split_by_episodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = own(tmp_path / "data", number=10)
    run(capsys, "split", folder, tmp_path / "train", tmp_path / "test", "share=0.7", "seed=3")
    parts = [[episode.total for episode in read(tmp_path / name)[0]] for name in ("train", "test")]
    assert [len(part) for part in parts] == [7, 3]
    assert sorted(parts[0] + parts[1]) == sorted(episode.total for episode in read(folder)[0])


def test_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "must be list, card, check" in refused(capsys, "describe", tmp_path)
    assert "convert takes 2 places, got 1" in refused(capsys, "convert", tmp_path)
    assert "no command" in refused(capsys)


def test_split_refuses_to_write_an_empty_part(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = own(tmp_path / "data")
    said = refused(capsys, "split", folder, tmp_path / "train", tmp_path / "test", "share=1")
    assert f"share=1: gives {tmp_path / 'train'} 3 of 3 episodes; each needs one" in said
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_nothing_is_written_into_a_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = own(tmp_path / "run" / "buffer")
    assert "which would change" in refused(capsys, "convert", tmp_path / "run", folder / "new")
    assert len(list(folder.iterdir())) == 3


def test_the_card_says_how_much_space_the_files_take(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    episode: dict[str, Any] = {**arrays(), "frame": np.zeros((T + 1, 3, 512, 512), np.uint8)}
    episode["observation"] = episode.pop("frame")
    np.savez_compressed(folder / "episode.npz", **episode)
    card = run(capsys, "card", folder)
    assert "5.5 MB in memory" in card
    assert "on disk: 0.0 MB" in card


def changed_npz(folder: Path, **columns: Any) -> Path:
    """The first file of V-D4RL's layout with some columns changed; returns its path."""
    path = sorted(vd4rl_npz(folder).glob("*.npz"))[0]
    with np.load(path) as file:
        np.savez(path, **{**dict(file.items()), **columns})
    return path


@pytest.mark.parametrize(("column", "row"), [("is_first", 3), ("is_last", 2)], ids=["another beginning", "an end"])
def test_a_file_of_two_episodes_is_named(tmp_path: Path, column: str, row: int) -> None:
    path = changed_npz(tmp_path / "data", **{column: np.arange(T + 1) == row})
    found, bad = read(path.parent)
    assert len(found) == 2
    assert bad == [f"{path}: row {row}: {column} within the episode; a file must hold one"]


@pytest.mark.parametrize(
    "content", [b"not a zip file", b"", None], ids=["text", "nothing", "an array instead of an archive"]
)
def test_a_file_that_is_not_what_its_name_says_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = sorted(drqv2_npz(tmp_path / "data").glob("*.npz"))[1]
    if content is None:
        with path.open("wb") as file:
            np.save(file, np.zeros(3))
    else:
        path.write_bytes(content)
    found, bad = read(path.parent)
    assert len(found) == 2
    assert len(bad) == 1
    assert bad[0].startswith(f"{path}: damaged or of another format (")


@pytest.mark.parametrize(("offset", "value", "said"), [(8, 1, "is encrypted"), (10, 99, "method is not supported")])
def test_a_damaged_zip_directory_is_named(offset: int, value: int, said: str, tmp_path: Path) -> None:
    path = tmp_path / "0.npz"
    episode: dict[str, Any] = {name: x for name, x in arrays().items() if name != "frame"}
    np.savez(path, **episode)
    content = bytearray(path.read_bytes())
    content[content.index(b"PK\x01\x02") + offset] = value  # flags, or the method, of the first array
    path.write_bytes(content)
    found, bad = read(tmp_path)
    assert not found
    assert bad[0].startswith(f"{path}: damaged or of another format (")
    assert said in bad[0]


def test_a_damaged_compressed_file_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    for i in range(2):
        episode: dict[str, Any] = {**arrays(i), "observation": arrays(i)["frame"]}
        np.savez_compressed(folder / f"{i}.npz", **{k: v for k, v in episode.items() if k != "frame"})
    content = bytearray((folder / "0.npz").read_bytes())
    middle = len(content) // 2
    content[middle : middle + 60] = bytes(255 - byte for byte in content[middle : middle + 60])
    (folder / "0.npz").write_bytes(content)
    found, bad = read(folder)
    assert [episode.where for episode in found] == [str(folder / "1.npz")]
    assert bad[0].startswith(f"{folder / '0.npz'}: damaged or of another format (")


@pytest.mark.parametrize(
    ("step_types", "episodes", "said"),
    [
        ([1, 1, 2, 0, 1, 1, 2], 1, ", rows 0 to 2: an episode without its beginning (step_type 0)"),
        ([1, 1, 1, 1, 1, 1, 2], 0, ", rows 0 to 6: an episode without its beginning (step_type 0)"),
        ([0, 1, 2, 1, 1, 1, 2], 0, ", rows 0 to 6: row 2: step_type 2 (last) within the episode"),
    ],
)
def test_no_row_of_an_hdf5_file_is_lost_in_silence(
    tmp_path: Path, step_types: list[int], episodes: int, said: str
) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "shard.hdf5", "w") as file:
        for name, array in arrays().items():
            file[name.replace("frame", "observation")] = array if array.ndim > 2 or name == "action" else array[:, 0]
        file["step_type"] = np.array(step_types, float)
    found, bad = read(tmp_path)
    assert len(found) == episodes
    assert bad == [f"{tmp_path / 'shard.hdf5'}{said}"]


def test_only_hdf5_and_minari_need_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hdf5 = vd4rl_hdf5(tmp_path / "hdf5")
    for name in ("h5py", "minari"):
        monkeypatch.setitem(sys.modules, name, None)
    for make in (own, drqv2_npz, vd4rl_npz):
        assert len(read(make(tmp_path / make.__name__))[0]) == 3
    for place, package in ((hdf5, "h5py"), ("minari:drqv2/made-v0", "minari")):
        with pytest.raises(UserError, match=rf'{package} must be installed: pip install -e ".\[offline\]"'):
            read(place)


def test_files_of_two_formats_are_refused(tmp_path: Path) -> None:
    folder = drqv2_npz(tmp_path / "data")
    save_file(arrays(), folder / "episode_00000000.safetensors")
    with pytest.raises(UserError, match=r"holds episode_\*.safetensors and \*.npz; give the files of each"):
        read(folder)


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("reward", lambda array: array[:, 0], "reward is float32 [7]: must be float32 [rows, 1]"),
        ("discount", lambda array: array.astype(np.float64), "discount is float64 [7, 1]: must be float32 [rows, 1]"),
        ("action", lambda array: array.astype(np.float64), "action is float64 [7, 2]: must be float32"),
        ("frame", lambda array: array.astype(np.float32), "frame is float32 [7, 3, 16, 16]: must be uint8"),
        ("reward", lambda array: np.float32(1.0), "reward is float32 []: must have a row for each step"),
    ],
)
def test_an_array_of_another_form_is_named(name: str, change: Any, said: str) -> None:
    (line,) = problems({**arrays(), name: np.asarray(change(arrays()[name]))})
    assert line.startswith(said)


def test_stacked_images_with_the_channels_last(tmp_path: Path) -> None:
    episode: dict[str, Any] = arrays()
    frames = episode.pop("frame")
    np.savez(tmp_path / "0.npz", observation=stacked(frames).transpose(0, 2, 3, 1), **episode)
    ((read_one,), bad) = read(tmp_path)
    assert not bad
    np.testing.assert_array_equal(read_one.arrays["frame"], frames)


@pytest.mark.parametrize("channels", ["auto", "first", "last"])
@pytest.mark.parametrize("unit", [False, True], ids=["uint8", "floats"])
@pytest.mark.parametrize(
    "shape",
    [
        *[(16, 16, 4), (4, 16, 16), (16, 20, 3), (3, 16, 20), (20, 18, 16), (20, 18, 17), (16, 16, 16), (3, 16, 3)],
        *[(4, 3, 16), (2, 16, 16, 3), (2, 3, 16, 16), (3, 16, 20, 30)],
    ],
    ids=str,
)
def test_images_are_read_as_those_of_environments(shape: tuple[int, ...], unit: bool, channels: Any) -> None:
    stored = np.random.default_rng(0).integers(0, 256, (T + 1, *shape), np.uint8)
    images = (stored / 255).astype(np.float32) if unit else stored
    spec = specs.BoundedArray(shape, images.dtype, 0, 1 if unit else 255)
    try:
        image = Image(spec, None, channels)
    except UserError:  # it is not clear which axis holds the channels
        with pytest.raises(Unusable, match="not clear which axis"):
            to_frames(images, print, 0, Layout(channels))
    else:
        wanted = np.stack([image.read(each) for each in images]).transpose(0, 3, 1, 2)
        np.testing.assert_array_equal(to_frames(images, print, 0, Layout(channels)), wanted)


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("config.yaml", "task_name: cup_catch\naction_repeat: 4\n", {"task": "cup_catch", "action_repeat": 4}),
        ("config.yaml", "task_name: a+b\ntasks: [a, b]\naction_repeat: 4\n", {}),
        ("config.yaml", "task_name: x\nenv: {_target_: null}\n", {"task": "x", "env": "dm_control"}),
        ("config.yaml", "task_name: x\nenv: {_target_: my.make}\n", {"task": "x", "env": "my.make"}),
        ("config.yaml", "task_name: P-v1\nenv_id: gymnasium:P-v1\nenv: {_target_: null}\n", {"task": "gymnasium:P-v1"}),
        ("dataset.json", '{"task": "cup_catch", "seed": 1}', {"task": "cup_catch"}),
        ("dataset.json", "[1, 2]", {}),
    ],
)
def test_what_a_data_set_says_of_its_origin(tmp_path: Path, name: str, content: str, told: dict[str, Any]) -> None:
    (tmp_path / name).write_text(content)
    assert origin(str(tmp_path)) == told
    assert origin("minari:drqv2/made-v0") == {}


def test_one_of_several_tasks_has_its_own_origin(tmp_path: Path) -> None:
    told = "tasks: [walker_walk, gymnasium:P-v1]\naction_repeat: 2\nenv: {_target_: null}\ntask_name: x\n"
    (tmp_path / "config.yaml").write_text(f"{told}per_task: {{walker_walk: {{action_repeat: 4}}}}\n")
    assert origin(str(tmp_path), task=0) == {"task": "walker_walk", "env": "dm_control", "action_repeat": 4}
    assert origin(str(tmp_path), task=1) == {"task": "gymnasium:P-v1", "action_repeat": 2}
    assert origin(str(tmp_path), task=2) == {}


def test_a_damaged_origin_is_named(tmp_path: Path) -> None:
    (tmp_path / "dataset.json").write_text('{"task": ')
    with pytest.raises(UserError, match=r"dataset.json: cannot be read"):
        origin(str(tmp_path))


def test_a_merged_set_says_what_its_sources_say_alike(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = own(tmp_path / "a"), own(tmp_path / "b")
    for folder, task in ((first, "cup_catch"), (second, "walker_walk")):
        (folder / "dataset.json").write_text(json.dumps({"task": task, "action_repeat": 4}))
    run(capsys, "merge", first, second, tmp_path / "both")
    assert origin(str(tmp_path / "both")) == {"action_repeat": 4}
