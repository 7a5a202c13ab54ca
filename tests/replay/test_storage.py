"""The storage and what is gathered from it, against a naive replay in memory. The loader: test_replay_loader.py."""

from __future__ import annotations

import io
import multiprocessing
import os
import pickle
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError

from drqv2.envs.wrappers import ExtendedTimeStep
from drqv2.replay import gather as replay_files
from replay_buffer import ReplayBuffer, ReplayBufferStorage, Request, Window, episode_path
from tests.malice import Malice
from tests.naive_replay import (
    ACTIONS,
    HEIGHT,
    OBSERVATIONS,
    WIDTH,
    NaiveReplay,
    data_specs,
    make_episode,
    memory_dir,
    samples,
)

LENGTHS = st.lists(st.integers(1, 9), min_size=1, max_size=7)


def add_all(time_steps: list[ExtendedTimeStep], *replays: Any) -> None:
    for time_step in time_steps:
        for replay in replays:
            replay.add(time_step)


def storage_of(replay_dir: Path, lengths: list[int], **kwargs: Any) -> ReplayBufferStorage:
    storage = ReplayBufferStorage(data_specs(), replay_dir, **kwargs)
    for number, length in enumerate(lengths):
        add_all(make_episode(number, length), storage)
    return storage


def on_disk(replay_dir: Path) -> list[int]:
    return sorted(int(path.stem[8:]) for path in replay_dir.iterdir() if path.name.startswith("episode_"))


def request(pairs: list[tuple[int, int]], first: int = 0) -> Request:
    episode, start = np.array(pairs, np.int64).T
    return Request(first, episode, start)


def reloaded(state: dict[str, Any]) -> dict[str, Any]:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


def mapped_files(pid: int | str = "self") -> list[str]:
    return [line.rstrip() for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if "episode_" in line]


@settings(max_examples=60)
@given(
    lengths=LENGTHS,
    terminals=st.lists(st.booleans(), min_size=7, max_size=7),
    nstep=st.integers(1, 12),
    gamma=st.sampled_from([1.0, 0.99, 0.5, 0.0]),
    frame_stack=st.integers(1, 4),
    channels=st.sampled_from([1, 3]),
    observation=st.sampled_from(OBSERVATIONS),
    action=st.sampled_from(sorted(ACTIONS)),
)
def test_every_transition_equals_the_naive_one(
    lengths, terminals, nstep, gamma, frame_stack, channels, observation, action
):
    layout = {"frame_stack": frame_stack, "channels": channels, "observation": observation, "action": action}
    with memory_dir() as replay_dir:
        storage = ReplayBufferStorage(data_specs(**layout), replay_dir, frame_stack=frame_stack)
        naive = NaiveReplay(nstep, gamma)
        for number, (length, terminal) in enumerate(zip(lengths, terminals, strict=False)):
            add_all(make_episode(number, length, terminal=terminal, **layout), storage, naive)
        pairs = naive.transitions()
        batch = ReplayBuffer(replay_dir, nstep, gamma, frame_stack)[request(pairs)]
        assert samples(batch) == pairs
        naive.check(batch)


def test_shapes_and_dtypes_follow_the_specs(tmp_path):
    layout: dict[str, Any] = {"observation": "dict", "action": "discrete"}
    storage = ReplayBufferStorage(data_specs(**layout), tmp_path)
    add_all(make_episode(0, 4, **layout), storage)
    stored = {"frame.pixels", "observation.arm.pos", "observation.map", "observation.n", "action", "reward", "discount"}
    assert storage.load_episode(0).keys() == stored
    obs, action, _, _, next_obs = ReplayBuffer(tmp_path, 3, 0.99)[request([(0, 0), (0, 3)])]
    shapes = {"pixels": (2, 9, HEIGHT, WIDTH), "arm.pos": (2, 3), "map": (2, 6, 2, 2), "n": (2,)}
    for observation in (obs, next_obs):
        assert {key: tuple(x.shape) for key, x in observation.items()} == shapes
        assert {x.dtype for x in observation.values()} == {torch.uint8, torch.float64, torch.float32, torch.int16}
    assert (tuple(action.shape), action.dtype) == ((2,), torch.int64)
    with pytest.raises(ValueError, match="must be a multiple of frame_stack=2"):
        ReplayBufferStorage(data_specs(3), tmp_path, frame_stack=2)


@pytest.mark.parametrize(("terminal", "bootstrap"), [(True, 0.0), (False, 0.9)])
def test_episode_of_one_transition(tmp_path, terminal, bootstrap):
    storage = ReplayBufferStorage(data_specs(), tmp_path)
    time_steps = make_episode(0, 1, terminal=terminal)
    add_all(time_steps, storage)
    obs, _, reward, discount, next_obs = ReplayBuffer(tmp_path, 3, 0.9)[request([(0, 0)])]
    first, frame = time_steps[0].observation[:3], time_steps[1].observation[6:]
    np.testing.assert_array_equal(obs[0], np.concatenate([first, first, first]))
    np.testing.assert_array_equal(next_obs[0], np.concatenate([first, first, frame]))
    assert reward.item() == pytest.approx(time_steps[1].reward)
    assert discount.item() == pytest.approx(bootstrap)


@given(lengths=LENGTHS, max_size=st.integers(1, 25))
def test_window_and_files_after_each_episode(lengths, max_size):
    with memory_dir() as replay_dir:
        storage, naive = ReplayBufferStorage(data_specs(), replay_dir, max_size), NaiveReplay(max_size=max_size)
        for number, length in enumerate(lengths):
            add_all(make_episode(number, length), storage, naive)
            assert storage.window == naive.window
            assert len(storage) == len(naive.transitions())
            assert len(storage) <= max_size or naive.window == (number, number + 1)
            assert storage.num_episodes == number + 1
            assert on_disk(replay_dir) == list(range(*naive.window))
            per_episode = [len(naive.episodes[e]) - 1 for e in range(*naive.window)]
            assert storage.ends(storage.window).tolist() == np.cumsum(per_episode).tolist()


@given(
    moves=st.lists(
        st.one_of(st.integers(1, 9), st.tuples(st.sampled_from(["batches", "snapshots"]), st.integers(0, 3))),
        min_size=3,
        max_size=14,
    )
)
def test_files_go_when_neither_window_nor_pin_needs_them(moves):
    with memory_dir() as replay_dir:
        storage, naive = ReplayBufferStorage(data_specs(), replay_dir, 12), NaiveReplay(max_size=12)
        pins: dict[str, int] = {}
        deleted_below = 0
        for move in moves:
            if isinstance(move, int):
                add_all(make_episode(len(naive.episodes), move), storage, naive)
            else:
                holder, back = move
                pins[holder] = max(deleted_below, naive.first - back)
                storage.pin(holder, pins[holder])
            deleted_below = max(deleted_below, min(naive.first, *pins.values(), naive.first))
            assert on_disk(replay_dir) == list(range(deleted_below, len(naive.episodes)))
            assert storage.first_needed == min(naive.first, pins.get("batches", naive.first))
            assert storage.window == naive.window


def test_a_reset_drops_the_unfinished_episode(tmp_path):
    storage = ReplayBufferStorage(data_specs(), tmp_path)
    add_all(make_episode(9, 5)[:-1], storage)
    assert len(storage) == 0
    assert on_disk(tmp_path) == []
    add_all(make_episode(0, 2), storage)
    assert storage.load_episode(0)["action"].tolist() == [[0, 0], [0, 1], [0, 2]]


def test_what_is_stored_is_a_copy(tmp_path):
    """Environments may hand out the same arrays again and again."""
    storage = ReplayBufferStorage(data_specs(), tmp_path)
    image, action = np.zeros((9, HEIGHT, WIDTH), np.uint8), np.zeros(2, np.float32)
    for t, time_step in enumerate(make_episode(0, 3)):
        image[...], action[...] = t, t
        storage.add(time_step._replace(observation=image, action=action))
    episode = storage.load_episode(0)
    assert episode["frame"][:, 0, 0, 0].tolist() == [0, 1, 2, 3]
    assert episode["action"][:, 0].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("frame_stack", [1, 3, 10])
def test_each_frame_is_on_disk_once(tmp_path, frame_stack):
    storage = ReplayBufferStorage(data_specs(frame_stack), tmp_path, frame_stack=frame_stack)
    add_all(make_episode(0, 99, frame_stack=frame_stack), storage)
    rows = 100 * (3 * HEIGHT * WIDTH + 4 * (2 + 1 + 1))  # bytes: frame, action, reward, discount
    assert rows < storage.nbytes() < rows + 1024
    assert storage.nbytes() == sum(path.stat().st_size for path in tmp_path.iterdir())


def commit_and_die(storage: ReplayBufferStorage, instant: str) -> None:
    """To be run in a process of its own, which is killed when it calls `os.<instant>`."""
    setattr(os, instant, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    add_all(make_episode(2, 5), storage)


@pytest.mark.parametrize(("instant", "committed"), [("fsync", 2), ("replace", 2), ("open", 3)])
def test_a_writer_killed_at_any_instant_leaves_whole_episodes(tmp_path, instant, committed):
    """Killed before fsync, before rename, or (the folder is opened) after it."""
    storage = storage_of(tmp_path, [3, 4])
    state = storage.state_dict()
    child = multiprocessing.get_context("fork").Process(target=commit_and_die, args=(storage, instant))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    assert len(list(tmp_path.glob(".episode_*.tmp"))) == (1 if committed == 2 else 0)
    assert on_disk(tmp_path) == list(range(committed))

    found = ReplayBufferStorage(data_specs(), tmp_path, existing=True)
    assert found.window == Window(0, committed)
    assert found.ends(found.window).tolist() == [3, 7, 12][:committed]

    storage.load_state_dict(state)
    assert on_disk(tmp_path) == [0, 1]


@given(
    lengths=LENGTHS,
    more=LENGTHS,
    unfinished=st.integers(0, 4),
    max_size=st.integers(5, 30),
    observation=st.sampled_from(OBSERVATIONS),
)
def test_a_restored_storage_continues_as_if_never_interrupted(lengths, more, unfinished, max_size, observation):
    layout = {"observation": observation}
    with memory_dir() as replay_dir:
        storage = ReplayBufferStorage(data_specs(**layout), replay_dir, max_size)
        naive = NaiveReplay(max_size=max_size)
        for number, length in enumerate(lengths):
            add_all(make_episode(number, length, **layout), storage, naive)
        begun = make_episode(len(lengths), 5, **layout)
        add_all(begun[:unfinished], storage, naive)
        state = reloaded(storage.state_dict())
        storage.pin("snapshots", storage.first_needed)
        for number, length in enumerate(more, start=len(lengths)):  # another history, to be forgotten
            add_all(make_episode(number, length, seed=1, **layout), storage)

        restored = ReplayBufferStorage(data_specs(**layout), replay_dir, max_size)
        restored.load_state_dict(state)
        assert restored.window == naive.window
        assert len(restored) == len(naive.transitions())
        assert on_disk(replay_dir) == list(range(*naive.window))
        add_all(begun[unfinished:], restored, naive)
        assert restored.window == naive.window
        naive.check(ReplayBuffer(replay_dir, 3, 0.99)[request(naive.transitions())])


def test_a_restored_storage_knows_no_earlier_pins(tmp_path):
    """They may speak of episodes that the state does not hold."""
    behind = storage_of(tmp_path, [4, 4])
    behind.pin("batches", 0)
    state = storage_of(tmp_path, [4, 4, 4], max_size=4).state_dict()
    behind.load_state_dict(state)
    assert behind.first_needed == behind.state_dict()["first"] == 2
    behind.max_size = 4
    add_all(make_episode(3, 4), behind)
    assert on_disk(tmp_path) == [3]


def test_an_episode_that_is_not_there_any_more(tmp_path):
    state = storage_of(tmp_path, [3, 3, 3]).state_dict()
    episode_path(tmp_path, 1).unlink()
    with pytest.raises(FileNotFoundError, match=r"episode_00000001\.safetensors"):
        ReplayBufferStorage(data_specs(), tmp_path).load_state_dict(state)
    assert on_disk(tmp_path) == [0, 2]  # what is left is not touched


def test_files_that_are_more_than_memory_give_the_same_batches(tmp_path, monkeypatch):
    storage_of(tmp_path, [5] * 6)
    wanted = request([(e, t) for e in range(6) for t in range(5)])
    roomy = ReplayBuffer(tmp_path, 3, 0.99)
    one = roomy._episode(0).nbytes
    monkeypatch.setattr(replay_files, "memory", lambda: (2 * 2.5 * one, 0.0))  # the third file is one too many
    advised: list[int] = []
    advise = replay_files._disable_read_ahead

    def note(frame: np.ndarray) -> None:
        advised.append(frame.ctypes.data)
        advise(frame)

    monkeypatch.setattr(replay_files, "_disable_read_ahead", note)
    scarce = ReplayBuffer(tmp_path, 3, 0.99)
    for a, b in zip(scarce[wanted], roomy[wanted], strict=True):
        assert torch.equal(a, b)
    assert len(set(advised)) == len(advised) == 6


@pytest.mark.parametrize("cut", [0, 5, 100, -1])
@pytest.mark.parametrize("how", ["resumed", "existing"])
def test_a_file_cut_short_is_skipped(tmp_path, caplog, cut, how):
    """It hides no other episode, neither older nor newer."""
    storage = storage_of(tmp_path / "buffer", [3, 4, 5])
    state = storage.state_dict()
    path = episode_path(tmp_path / "buffer", 1)
    path.write_bytes(path.read_bytes()[:cut])
    if how == "existing":
        storage = ReplayBufferStorage(data_specs(), tmp_path / "buffer", existing=True)
        assert "episode_00000001.safetensors is damaged and will not be sampled" in caplog.text
    else:
        storage.load_state_dict(state)
        assert "episode_00000001.safetensors has a wrong checksum and is no longer sampled" in caplog.text
    assert storage.window == (0, 3)
    assert len(storage) == 8
    assert storage.ends(storage.window).tolist() == [3, 3, 8]
    path.unlink()
    storage.load_state_dict(storage.state_dict())  # nobody misses it
    assert len(storage) == 8


def test_a_damaged_file_is_skipped_after_another_kill(tmp_path):
    """The snapshot that the run resumes from still refers to it."""
    storage = storage_of(tmp_path / "buffer", [3, 4, 5])
    state = storage.state_dict()
    path = episode_path(tmp_path / "buffer", 1)
    path.write_bytes(path.read_bytes()[:-1])
    for _ in range(2):
        storage.load_state_dict(state)
        assert storage.ends(storage.window).tolist() == [3, 3, 8]


@pytest.mark.parametrize("write", [pickle.dump, lambda malice, f: np.save(f, malice), torch.save])
@pytest.mark.parametrize("how", ["resumed", "existing", "sampled"])
def test_code_in_an_episode_is_not_run(tmp_path, caplog, write, how):
    storage = storage_of(tmp_path / "buffer", [3, 4, 5])
    state = storage.state_dict()
    path, folder = episode_path(tmp_path / "buffer", 1), tmp_path / "made_by_malice"
    with path.open("wb") as f:
        write(Malice(folder), f)
    if how == "existing":
        ReplayBufferStorage(data_specs(), tmp_path / "buffer", existing=True)
        assert "is damaged and will not be sampled" in caplog.text
    elif how == "resumed":
        storage.load_state_dict(state)
        assert "wrong checksum" in caplog.text
    else:
        with pytest.raises(SafetensorError):
            replay_files.read_episode(path, 3, 0.99)
    assert not folder.exists()


@given(lengths=LENGTHS, gaps=st.sets(st.integers(0, 6), max_size=3), max_size=st.one_of(st.none(), st.integers(1, 25)))
def test_episodes_of_a_finished_run_are_reused(lengths, gaps, max_size):
    """The newest that fit, whatever is missing between them; the others are left where they are."""
    with memory_dir() as replay_dir:
        storage_of(replay_dir, lengths)
        for number in gaps & set(range(len(lengths))):
            episode_path(replay_dir, number).unlink()
        left = on_disk(replay_dir)
        expected = left[-1:]
        for number in reversed(left[:-1]):
            if max_size is not None and sum(lengths[e] for e in [number, *expected]) > max_size:
                break
            expected.insert(0, number)

        storage = ReplayBufferStorage((), replay_dir, max_size, existing=True)
        assert on_disk(replay_dir) == left
        assert len(storage) == sum(lengths[e] for e in expected)
        assert storage.window == (Window(expected[0], left[-1] + 1) if left else (0, 0))
        present = np.diff(storage.ends(storage.window), prepend=0)
        assert [e for e, n in enumerate(present, storage.window.first) if n] == expected
        storage.pin("batches", storage.window.first)
        assert on_disk(replay_dir) == left


def test_delete_takes_the_episodes_and_nothing_else(tmp_path):
    replay_dir = tmp_path / "buffer"
    storage = storage_of(replay_dir, [3, 3])
    (replay_dir / "notes.txt").write_text("mine")
    storage.delete()
    assert [path.name for path in replay_dir.iterdir()] == ["notes.txt"]
    assert (len(storage), storage.nbytes()) == (0, 0)


def test_mapped_files_are_limited(monkeypatch):
    monkeypatch.setattr(replay_files, "_MAPPED_EPISODES", 5)
    with memory_dir() as replay_dir:
        storage, naive = ReplayBufferStorage(data_specs(), replay_dir), NaiveReplay()
        for number in range(12):
            add_all(make_episode(number, 2), storage, naive)
        buffer = ReplayBuffer(replay_dir, 3, 0.99)
        for _ in range(2):
            naive.check(buffer[request(naive.transitions())])
            assert len(mapped_files()) == 5


def test_episodes_before_the_window_are_freed():
    """A deleted file takes up disk for as long as somebody maps it."""
    with memory_dir() as replay_dir:
        storage = storage_of(replay_dir, [2] * 6)
        buffer = ReplayBuffer(replay_dir, 3, 0.99)
        buffer[request([(e, 0) for e in range(6)])]
        storage.max_size = 4
        add_all(make_episode(6, 2), storage)
        assert storage.window == (5, 7)
        buffer[request([(5, 0), (6, 0)], first=5)]
        assert len(mapped_files()) == 2
        assert not any("deleted" in line for line in mapped_files())


def test_files_of_the_snapshot_before_stay_after_a_resume(tmp_path: Path) -> None:
    storage = storage_of(tmp_path, [4, 4, 4], max_size=8)
    before = storage.state_dict()  # of episodes 1 and 2
    storage.pin("snapshots", 1)
    add_all(make_episode(3, 4), storage)
    newest = storage.state_dict()  # of 2 and 3
    again = ReplayBufferStorage(data_specs(), tmp_path, 8)
    again.load_state_dict(newest, keep_from=1)
    assert on_disk(tmp_path) == [1, 2, 3]
    add_all(make_episode(4, 4), again)
    assert on_disk(tmp_path) == [1, 2, 3, 4]
    ReplayBufferStorage(data_specs(), tmp_path, 8).load_state_dict(before)
    assert on_disk(tmp_path) == [1, 2]
