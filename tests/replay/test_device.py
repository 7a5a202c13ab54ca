"""Replay on a device, the CPU here and a GPU where there is one: the batches of the files, to the bit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drqv2.errors import UserError
from drqv2.replay import device as device_replay
from drqv2.replay import gather as replay_files
from drqv2.replay.device import choose_replay_device, needed_bytes
from replay_buffer import LOOKAHEAD, ReplayBufferStorage, episode_path, make_replay_loader
from tests.naive_replay import ACTIONS, OBSERVATIONS, NaiveReplay, data_specs, make_episode, memory_dir, on_cpu, same
from tests.replay_run import SCHEDULE, Run

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture
def replay_dir() -> Iterator[Path]:
    with memory_dir() as folder:
        yield folder


def rows(loader: Any) -> int:
    return loader._source._capacity


@pytest.mark.parametrize("device", DEVICES)
def test_hundreds_of_batches_equal_those_from_disk(replay_dir, device):
    drawn = []
    for place in ("disk", device):
        run = Run(replay_dir / place, replay_device=place)
        run.add(15)
        for i in range(300):
            run.add(i % 7)
            (batch,) = run.draw()
            assert {x.device.type for x in batch} == {"cpu" if place == "disk" else device}
            assert all(x.is_contiguous() for x in batch)
            drawn.append(batch)
        assert run.storage.window.first > 100
    assert same([on_cpu(batch) for batch in drawn[300:]], drawn[:300])
    assert [(x.dtype, x.shape) for x in drawn[0]] == [(x.dtype, x.shape) for x in drawn[-1]]


@settings(max_examples=25)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=12),
    max_size=st.one_of(st.none(), st.integers(1, 30)),
    nstep=st.integers(1, 12),
    frame_stack=st.integers(1, 4),
    draws=st.integers(1, 20),
    seed=st.integers(0, 2**32 - 1),
    observation=st.sampled_from(OBSERVATIONS),
    action=st.sampled_from(sorted(ACTIONS)),
)
def test_any_lengths_and_settings(lengths, max_size, nstep, frame_stack, draws, seed, observation, action):
    layout = {"frame_stack": frame_stack, "observation": observation, "action": action}
    with memory_dir() as folder:
        drawn = []
        for place in ("disk", "cpu"):
            storage = ReplayBufferStorage(data_specs(**layout), folder / place, frame_stack=frame_stack)
            naive = NaiveReplay(nstep, 0.9, max_size)
            loader = make_replay_loader(
                *(folder / place, max_size, 5, 0, False, nstep, 0.9),
                storage=storage,
                seed=seed,
                frame_stack=frame_stack,
                replay_device=place,
            )
            for number, length in enumerate(lengths):
                for time_step in make_episode(number, length, terminal=number % 2 == 0, **layout):
                    storage.add(time_step)
                    naive.add(time_step)
                for _ in range(draws):
                    drawn.append(next(loader))
                naive.check(drawn[-1])
        half = len(drawn) // 2
        assert same(drawn[:half], drawn[half:])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("cut", [1, 4, 9])
@pytest.mark.parametrize("before", ["disk", "device"])
def test_resumed_from_the_files(replay_dir, device, cut, before):
    """Also a run that kept its replay elsewhere before, and in a loader that has drawn more since."""
    run = Run(replay_dir, replay_device="disk" if before == "disk" else device)
    run.follow(SCHEDULE[:cut])
    state = run.state()
    expected = [on_cpu(batch) for batch in run.follow(SCHEDULE[cut:])]

    run = Run(replay_dir, replay_device=device)
    for world in (5, 0):
        run.load(state, history=0, world=world)
        batches = [on_cpu(batch) for batch in run.follow(SCHEDULE[cut:])]
    assert same(batches, expected)


def test_room_is_used_again(replay_dir):
    """The replay is turned over many times; it takes 40 transitions, and a frame more for each short episode."""
    run = Run(replay_dir, replay_device="cpu")
    run.add(60)
    sizes = []
    for _ in range(100):
        run.add(5)
        run.draw(3)
        sizes.append(rows(run.loader))
    assert run.storage.window.first > 50
    assert 50 <= sizes[20] == sizes[-1] <= 61
    run.loader.close()
    assert rows(run.loader) == 0
    run.draw(3)


def test_usual_episodes_fit_without_growing(replay_dir):
    storage, naive = ReplayBufferStorage(data_specs(), replay_dir), NaiveReplay(3, 0.99, 1000)
    loader = make_replay_loader(replay_dir, 1000, 8, 0, False, 3, 0.99, storage=storage, replay_device="cpu")
    for number in range(30):
        for time_step in make_episode(number, 100):
            storage.add(time_step)
            naive.add(time_step)
        naive.check(next(loader))
        assert rows(loader) == 1020
        for _ in range(16 if number > 10 else 0):
            next(loader)
    assert rows(loader) * 3 * 4 * 5 == needed_bytes(1000, data_specs()[0], 3)


def test_without_a_capacity_it_grows_by_half(replay_dir):
    storage, naive = ReplayBufferStorage(data_specs(), replay_dir), NaiveReplay()
    loader = make_replay_loader(replay_dir, None, 8, 0, False, 3, 0.99, storage=storage, replay_device="cpu")
    sizes = []
    for number in range(30):
        for time_step in make_episode(number, 9):
            storage.add(time_step)
            naive.add(time_step)
        for _ in range(18):
            naive.check(next(loader))
        sizes.append(rows(loader))
    assert sizes[-1] >= 300
    assert len(set(sizes)) < 10


def test_no_room(replay_dir):
    storage = ReplayBufferStorage(data_specs(), replay_dir)
    loader = make_replay_loader(replay_dir, 10**15, 8, 0, False, 3, 0.99, storage=storage, replay_device="cpu")
    for time_step in make_episode(0, 9):
        storage.add(time_step)
    with pytest.raises(UserError, match=r"replay_device=cpu: \d+\.\d GB of replay do not fit; use replay_device=disk"):
        next(loader)
    assert loader.state_dict()["taken"] == 0


def test_where_two_rings_do_not_fit_the_files_are_read_again(replay_dir, monkeypatch):
    empty = device_replay._empty
    asked: list[int] = []

    def tight(rows: int, *args: Any) -> Any:
        asked.append(rows)
        beside = len(asked) > 1 and asked.count(rows) == 1  # the old ones are still there
        return None if beside else empty(rows, *args)

    drawn: list[list[Any]] = []
    for place in ("disk", "cpu"):
        monkeypatch.setattr(device_replay, "_empty", tight)
        run = Run(replay_dir / place, replay_device=place)
        drawn.append([])
        for _ in range(12):
            run.add(20)
            drawn[-1] += run.draw(3)
    assert len(asked) >= 3
    assert same([on_cpu(batch) for batch in drawn[1]], drawn[0])


def test_a_failed_draw_is_not_counted(replay_dir):
    """Nor does it leave anything behind: the batches are those of a run that never failed."""
    drawn = []
    for name in ("whole", "buffer"):
        run = Run(replay_dir / name, replay_device="cpu")
        run.add(60)
        batches = run.draw(3)
        run.add(60)
        if name == "buffer":
            (replay_dir / "buffer").rename(replay_dir / "away")
            for _ in range(2):
                with pytest.raises(FileNotFoundError, match="episode_"):
                    batches.extend(run.loader)  # as many as need no new file
            assert run.loader.state_dict()["taken"] == len(batches) == 3 + LOOKAHEAD
            (replay_dir / "away").rename(replay_dir / "buffer")
        drawn.append(batches + run.draw(40 - len(batches)))
    assert same(*drawn)


def test_episodes_that_are_missing_are_skipped(replay_dir):
    storage, naive = ReplayBufferStorage(data_specs(), replay_dir), NaiveReplay()
    for number in range(6):
        for time_step in make_episode(number, 4):
            storage.add(time_step)
            naive.add(time_step)
    for number in (0, 3):
        episode_path(replay_dir, number).unlink()
    drawn = []
    for place in ("disk", "cpu"):
        loader = make_replay_loader(replay_dir, None, 16, 0, False, 3, 0.99, replay_device=place)
        drawn.append([next(loader) for _ in range(20)])
        for batch in drawn[-1]:
            naive.check(batch)
    assert same(*drawn)


def test_report_reads_each_run_once(replay_dir, monkeypatch):
    read = []
    original = replay_files.read_episode

    def reading(path: Path, *args: Any) -> Any:
        read.append(path)
        return original(path, *args)

    monkeypatch.setattr(device_replay, "read_episode", reading)
    run = Run(replay_dir, replay_device="cpu")
    run.follow(SCHEDULE)
    assert len(read) == len(set(read)) > 20


@pytest.mark.parametrize(
    ("replay_device", "device", "free", "needed", "expected", "reason"),
    [
        ("disk", "cuda", 100e9, 1e9, "disk", "replay_device=disk"),
        ("cuda", "cuda", 1e9, 100e9, "cuda", "replay_device=cuda"),
        ("auto", "cpu", 100e9, 1e9, "disk", "the learner is on cpu"),
        ("auto", "cuda:1", 10e9, 6e9, "cuda", "observations take 6.0 GB of the 10.0 GB free on cuda:1"),
        ("auto", "cuda", 10e9, 6.1e9, "disk", "observations take 6.1 GB of the 10.0 GB free on cuda, more than 60%"),
    ],
)
def test_choice(replay_device, device, free, needed, expected, reason):
    assert choose_replay_device(replay_device, device, free, needed) == (expected, reason)


@pytest.mark.parametrize("asked", ["cuda", "cuda:1"])
def test_replay_is_on_the_learners_device(asked):
    with pytest.raises(UserError, match=rf"replay_device={asked}: the learner is on cpu; use replay_device=disk"):
        choose_replay_device(asked, "cpu", 1e9, 1e9)
