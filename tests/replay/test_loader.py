"""The loader's batches: what they are drawn from, that they repeat, and how a loader continues."""

from __future__ import annotations

import multiprocessing
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from drqv2.errors import ProcessError
from drqv2.replay import loader as loader_module
from drqv2.system.signals import SIGNALS
from replay_buffer import (
    LOOKAHEAD,
    Batch,
    ReplayBufferStorage,
    ReplaySampler,
    episode_path,
    make_replay_loader,
)
from tests.naive_replay import NaiveReplay, data_specs, make_episode, memory_dir, same, samples
from tests.patience import PATIENCE
from tests.replay_run import FRAME_STACK, LONGEST, SCHEDULE, Run

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def replay_dir() -> Iterator[Path]:
    with memory_dir() as folder:
        yield folder


def files(replay_dir: Path) -> list[int]:
    return sorted(int(path.stem[8:]) for path in replay_dir.glob("episode_*.safetensors"))


def test_the_public_signature(replay_dir):
    """A finished run's directory, read with the arguments by position; nothing is deleted."""
    storage, naive = ReplayBufferStorage(data_specs(), replay_dir), NaiveReplay(3, 0.99, 10)
    for number in range(5):
        for time_step in make_episode(number, 4):
            storage.add(time_step)
            naive.add(time_step)
    loader = make_replay_loader(replay_dir, 10, 16, 0, False, 3, 0.99)
    assert iter(loader) is loader
    seen = set()
    for batch in islice(loader, 30):
        naive.check(batch)
        seen |= set(samples(batch))
    assert seen == set(naive.transitions())
    assert files(replay_dir) == [0, 1, 2, 3, 4]


def test_nothing_to_sample_from_yet(replay_dir):
    run = Run(replay_dir)
    run.storage.add(make_episode(0, 2, frame_stack=FRAME_STACK)[0])
    with pytest.raises(RuntimeError, match="no finished episode"):
        next(run.loader)
    assert run.loader.state_dict() == {"taken": 0, "windows": []}
    run.add(LONGEST + 1)
    run.draw(3)


@pytest.mark.parametrize("num_workers", [-1, 9])
def test_number_of_workers_out_of_range(replay_dir, num_workers):
    with pytest.raises(ValueError, match=f"num_workers={num_workers}: must be between 0 and 8"):
        make_replay_loader(replay_dir, 40, 8, num_workers, False, 3, 0.99)


# What a batch is drawn from


def draw_requests(lengths: list[int], draws: int, batch_size: int, seed: int) -> np.ndarray:
    """Flat indices of the transitions asked for, int64 [draws, batch_size]."""
    with memory_dir() as replay_dir:
        storage = ReplayBufferStorage(data_specs(), replay_dir)
        for number, length in enumerate(lengths):
            for time_step in make_episode(number, length):
                storage.add(time_step)
        sampler = ReplaySampler(storage, batch_size, seed)
        starts = np.concatenate([[0], np.cumsum(lengths)])
        requests, indices = iter(sampler), []
        for _ in range(draws):
            with sampler.taking():
                request = next(requests)
            assert (request.start < np.array(lengths)[request.episode]).all()
            indices.append(starts[request.episode] + request.start)
        return np.array(indices)


@pytest.mark.parametrize("seed", [0, 1, 2**32 - 1])
def test_uniform_over_transitions(seed):
    """Each transition as often as any other, and neighbours in a batch and in time independent of one another."""
    lengths = [1, 20, 2, 1, 3]
    total = sum(lengths)
    index = draw_requests(lengths, 400, 64, seed)
    later = index[:-1] * total + index[1:]
    beside = index[:, :-1] * total + index[:, 1:]
    for values, kinds in ((index, total), (later, total**2), (beside, total**2)):
        assert 1e-3 < chisquare(np.bincount(values.ravel(), minlength=kinds)).pvalue < 1 - 1e-3


@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=7), seed=st.integers(0, 2**32 - 1))
def test_every_transition_is_reached(lengths, seed):
    index = draw_requests(lengths, 1, 60 * sum(lengths), seed)
    assert np.unique(index).tolist() == list(range(sum(lengths)))


def test_a_batch_is_drawn_from_the_whole_window_of_lookahead_batches_before(replay_dir):
    run = Run(replay_dir, batch_size=1500)
    batches = []
    for steps, draws in SCHEDULE:
        run.add(steps)
        for _ in range(draws):
            run.windows.append(run.storage.window)
            batches.append(next(run.loader))
    for k, batch in enumerate(batches):
        window = run.windows[max(0, k - LOOKAHEAD)]
        assert set(samples(batch)) == set(run.naive.transitions(window))
    assert len(set(run.windows)) > 12
    assert run.storage.window.first > 12


def test_batch_k_depends_on_seed_k_and_window_alone(replay_dir):
    """Whatever was drawn from before: 70 batches after the last episode two histories draw alike, and not sooner."""
    early, late = Run(replay_dir / "early"), Run(replay_dir / "late")
    early.add(60)
    late.add(25)
    first, second = early.draw(20), late.draw(20)
    late.add(35)
    assert early.storage.window == late.storage.window
    first, second = first + early.draw(50), second + late.draw(50)
    alike = [same([a], [b]) for a, b in zip(first, second, strict=True)]
    assert alike == [False] * (20 + LOOKAHEAD) + [True] * (50 - LOOKAHEAD)


def test_seeds(replay_dir):
    drawn = []
    for i, seed in enumerate([1, 1, 2, 0]):
        run = Run(replay_dir / str(i), seed=seed)
        run.add(40)
        drawn.append(run.draw(5))
    assert same(drawn[0], drawn[1])
    assert len({tuple(samples(batch)) for batches in drawn[1:] for batch in batches}) == 15  # each batch another


# Workers


@pytest.fixture(scope="module")
def uninterrupted() -> list[Batch]:
    with memory_dir() as replay_dir:
        return Run(replay_dir).follow(SCHEDULE)


@pytest.mark.parametrize("num_workers", [1, 3, 8])
def test_any_number_of_workers_gives_the_same_batches(replay_dir, uninterrupted, num_workers):
    run = Run(replay_dir, num_workers)
    assert same(run.follow(SCHEDULE), uninterrupted)
    run.loader.close()
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("layout", [("vector", "box"), ("dict", "discrete")])
def test_workers_gather_other_layouts(replay_dir, layout):
    observation, action = layout
    drawn = []
    for num_workers in (0, 2):
        run = Run(replay_dir / str(num_workers), num_workers, observation=observation, action=action)
        drawn.append(run.follow(SCHEDULE[:8]))
        run.loader.close()
    assert same(*drawn)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_global_generators_are_left_alone(replay_dir, num_workers):
    def states() -> tuple[Any, ...]:
        return torch.get_rng_state().tolist(), repr(np.random.get_state()), random.getstate()

    before = states()
    run = Run(replay_dir, num_workers)
    run.follow(SCHEDULE[:6])
    run.loader.close()
    run.draw(2)
    run.loader.close()
    assert states() == before


def test_closed_and_used_again(replay_dir, uninterrupted):
    run = Run(replay_dir, num_workers=2)
    batches = []
    for i, part in enumerate(SCHEDULE):
        batches += run.follow([part])
        if i % 8 == 1:
            run.loader.close()
    assert same(batches, uninterrupted)
    run.loader.close()


@pytest.mark.parametrize("number", SIGNALS)
def test_workers_ignore_the_signals_that_stop_a_run(replay_dir, uninterrupted, number):
    """Signals reach all processes of a terminal or a cluster's job; the main process decides when workers end."""
    run = Run(replay_dir, num_workers=2)
    batches = run.follow(SCHEDULE[:3])
    for child in multiprocessing.active_children():
        assert child.pid is not None
        os.kill(child.pid, number)
    assert same(batches + run.follow(SCHEDULE[3:]), uninterrupted)
    run.loader.close()


@pytest.fixture
def checked_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """The workers are looked at every 0.1 s while no batch comes, instead of every 5 s."""
    monkeypatch.setattr(_MultiProcessingDataLoaderIter._try_get_data, "__defaults__", (0.1,))


@pytest.mark.parametrize("killed", [1, 2])
def test_dead_workers_are_replaced(replay_dir, uninterrupted, checked_often, caplog, killed):
    run = Run(replay_dir, num_workers=2)
    batches = run.follow(SCHEDULE[:3])
    for child in multiprocessing.active_children()[:killed]:
        child.kill()
    assert same(batches + run.follow(SCHEDULE[3:]), uninterrupted)
    assert "Replay workers are replaced" in caplog.text
    run.loader.close()
    assert not multiprocessing.active_children()


def test_workers_that_die_each_time_are_reported(replay_dir, checked_often, monkeypatch):
    run = Run(replay_dir, num_workers=1)
    run.follow(SCHEDULE[:3])
    run.loader.close()
    monkeypatch.setattr(loader_module._Gathering, "__getitem__", lambda *_: os._exit(3))
    with pytest.raises(ProcessError, match="the replay workers keep dying"):
        next(run.loader)
    assert not multiprocessing.active_children()


@pytest.mark.slow
def test_a_program_that_closes_nothing_ends(tmp_path):
    code = f"from tests.replay_run import *; run = Run(Path({str(tmp_path)!r}), 2); run.add(100); run.draw(3); exit(3)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=PATIENCE, check=False).returncode == 3


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_failed_draw_is_not_counted(tmp_path, uninterrupted, num_workers):
    """The error is raised, nothing hangs, and once its cause is gone the same batch comes."""
    run = Run(tmp_path / "buffer", num_workers)
    batches = run.follow(SCHEDULE[:2])
    run.loader.close()
    (tmp_path / "buffer").rename(tmp_path / "away")
    for _ in range(2):
        with pytest.raises(FileNotFoundError, match="episode_"):
            next(run.loader)
    (tmp_path / "away").rename(tmp_path / "buffer")
    assert same(batches + run.follow(SCHEDULE[2:]), uninterrupted)
    run.loader.close()


@pytest.mark.parametrize("num_workers", [0, 3])
def test_evicted_files_stay_for_the_batches_under_way_and_no_longer(replay_dir, num_workers):
    run = Run(replay_dir, num_workers)
    run.add(15)
    for steps, draws in SCHEDULE:
        run.add(steps)
        for _ in range(draws):
            run.draw()
            pending = run.windows[-LOOKAHEAD:]
            assert files(replay_dir) == list(range(min(w.first for w in pending), run.storage.window.end))
    run.add(60)
    first = run.storage.window.first
    assert files(replay_dir)[0] < first
    run.draw(LOOKAHEAD)
    assert files(replay_dir)[0] == first
    run.loader.close()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_hundreds_of_episodes_hold_no_files_open(num_workers):
    """Neither open files nor, in mapped ones that are deleted, the disk."""
    with memory_dir() as replay_dir:
        run = Run(replay_dir, num_workers)
        run.add(100)
        run.draw(40)
        pids = [os.getpid(), *(child.pid for child in multiprocessing.active_children())]
        assert len(pids) == 1 + num_workers
        before = [len(os.listdir(f"/proc/{pid}/fd")) for pid in pids]
        while run.storage.num_episodes < 200:
            run.add(20)
            run.draw(2)
        run.draw(2 * LOOKAHEAD)
        # A batch or two, five tensors each, may be on its way between the processes.
        after = [len(os.listdir(f"/proc/{pid}/fd")) for pid in pids]
        assert max(b - a for a, b in zip(before, after, strict=True)) <= 10 * num_workers
        for pid in pids:
            maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
            mapped = [line for line in maps if str(replay_dir) in line]
            assert len(mapped) <= run.storage.window.end - run.storage.window.first
            assert not any("deleted" in line for line in mapped)
        run.loader.close()


# Continuing from a state


@pytest.mark.slow
@settings(max_examples=20)
@given(
    schedule=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), min_size=2, max_size=9),
    cut=st.integers(0, 9),
    start=st.integers(0, LONGEST + 1),
)
def test_resumed_at_any_point(schedule, cut, start):
    """Before the first batch, with windows pending, within an episode: the same batches as without an interruption.

    Also in a storage and loader that have continued since then, into a future that then becomes another one.
    """
    schedule = [(start, 0), (LONGEST + 1 - start, 0), *schedule]
    with memory_dir() as replay_dir:
        run = Run(replay_dir)
        run.follow(schedule[: cut + 1])
        state = run.state()
        expected = run.follow([(LONGEST + 1, 0), *schedule[cut + 1 :]])

        run.load(state, history=0, world=5)
        run.follow([(LONGEST + 1, 20), (40, 20)])  # compared with the naive replay

        run = Run(replay_dir)
        run.load(state, history=0, world=0)
        assert same(run.follow([(LONGEST + 1, 0), *schedule[cut + 1 :]]), expected)


@pytest.mark.parametrize(("before", "after"), [(0, 3), (3, 0), (2, 1)])
@pytest.mark.parametrize("cut", [1, 4, 9])
def test_resumed_with_another_number_of_workers(replay_dir, uninterrupted, before, after, cut):
    run = Run(replay_dir, before)
    batches = run.follow(SCHEDULE[:cut])
    state = run.state()
    run.follow(SCHEDULE[cut:])  # episodes that are to be forgotten
    run.loader.close()

    resumed = Run(replay_dir, after)
    resumed.load(state, history=0, world=0)
    assert files(replay_dir)[-1] == state["storage"]["window"][1] - 1
    assert same(batches + resumed.follow(SCHEDULE[cut:]), uninterrupted)
    resumed.loader.close()


def test_resumed_twice_from_one_state(replay_dir, uninterrupted):
    """Killed again before the next snapshot: what the state needs is still there."""
    run = Run(replay_dir)
    batches = run.follow(SCHEDULE[:5])
    state = run.state()
    for _ in range(2):
        run = Run(replay_dir)
        run.load(state, history=0, world=0)
        assert same(batches + run.follow(SCHEDULE[5:]), uninterrupted)


def test_the_state_is_small_and_plain(replay_dir):
    run = Run(replay_dir)
    run.follow(SCHEDULE[:8])
    state = run.loader.state_dict()
    assert state["taken"] == sum(draws for _, draws in SCHEDULE[:8])
    assert state["windows"] == [list(w) for w in run.windows[-LOOKAHEAD:]]
    assert Counter(type(n) for w in state["windows"] for n in w) == {int: 2 * LOOKAHEAD}


def test_a_missing_episode_is_named_on_resume(replay_dir):
    run = Run(replay_dir)
    run.follow(SCHEDULE[:5])
    state = run.state()
    gone = episode_path(replay_dir, state["storage"]["first"])
    gone.unlink()
    with pytest.raises(FileNotFoundError, match=gone.name):
        Run(replay_dir).load(state, history=0, world=0)
