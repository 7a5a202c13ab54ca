"""Segments: consecutive transitions of one episode, from every replay device, against a naive replay."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drqv2.replay.gather import BatchGatherer
from drqv2.replay.sampler import FADED, LOOKAHEAD, ReplaySampler
from replay_buffer import Batch, ReplayBufferStorage, make_replay_loader
from tests.naive_replay import (
    ACTIONS,
    OBSERVATIONS,
    NaiveReplay,
    as_numpy,
    data_specs,
    endless,
    make_episode,
    memory_dir,
    on_cpu,
    same,
)
from tests.replay.test_storage import add_all, request

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
GAMMA = 0.9


def check(batch: Batch, naive: NaiveReplay, pairs: Sequence[tuple[int, int]], length: int, frame_stack: int) -> None:
    """Compare a batch of segments with the episodes that they are from."""
    obs, action, reward, discount, mask = on_cpu(batch)
    for row, (number, t) in enumerate(pairs):
        episode = naive.episodes[number]
        last = len(episode) - 1
        for i in range(length):
            step = episode[min(t + i + 1, last)]
            assert mask[row, i] == float(t + i < last)
            np.testing.assert_array_equal(action[row, i].numpy(), step.action)
            np.testing.assert_allclose(reward[row, i], step.reward, rtol=1e-6)
            np.testing.assert_allclose(discount[row, i], step.discount * GAMMA, rtol=1e-6)
        for i in range(length + 1):
            if t + i <= last:
                seen, want = _at(obs, row, i, frame_stack, length), episode[t + i].observation
                np.testing.assert_equal(seen, want if isinstance(want, dict) else {None: want})


def _at(obs: Any, row: int, i: int, frame_stack: int, length: int) -> dict[Any, np.ndarray]:
    """What the agent saw i steps after a segment's first observation."""
    found = {}
    for key, x in (obs if isinstance(obs, dict) else {None: obs}).items():
        if x.dtype == torch.uint8:
            channels = x.shape[1] // (frame_stack + length)
            found[key] = as_numpy(x)[row, i * channels : (i + frame_stack) * channels]
        else:
            found[key] = as_numpy(x)[row, i]
    return found


@settings(max_examples=40)
@given(
    lengths=st.lists(st.integers(1, 7), min_size=1, max_size=5),
    length=st.integers(1, 5),
    frame_stack=st.integers(1, 4),
    observation=st.sampled_from(OBSERVATIONS),
    action=st.sampled_from(sorted(ACTIONS)),
)
def test_segments_are_of_one_episode(lengths, length, frame_stack, observation, action) -> None:
    layout: dict[str, Any] = {"frame_stack": frame_stack, "observation": observation, "action": action}
    with memory_dir() as replay_dir:
        storage = ReplayBufferStorage(data_specs(**layout), replay_dir, frame_stack=frame_stack)
        naive = NaiveReplay()
        for number, steps in enumerate(lengths):
            add_all(make_episode(number, steps, terminal=bool(number % 2), **layout), storage, naive)
        pairs = naive.transitions()
        batch = BatchGatherer(replay_dir, 3, GAMMA, frame_stack, length)[request(pairs)]
        check(batch, naive, pairs, length, frame_stack)


class Run:
    """A replay with segments of three transitions, and the episodes that went into it."""

    def __init__(self, folder: Any, **options: Any) -> None:
        observation = options.pop("observation", "pixels")
        layout: dict[str, Any] = {"observation": observation}
        self.storage = ReplayBufferStorage(data_specs(**layout), folder, 60)
        workers = options.pop("num_workers", 0)
        self.loader = make_replay_loader(
            folder, 60, 8, workers, True, 3, GAMMA, storage=self.storage, seed=4, segment=3, **options
        )
        self.time_steps = endless(0, 12, **layout)

    def batches(self, rounds: int) -> list[Batch]:
        drawn = []
        for _ in range(rounds):
            for time_step in islice(self.time_steps, 17):
                self.storage.add(time_step)
            drawn.append(next(self.loader))
        return drawn


@pytest.mark.parametrize("observation", OBSERVATIONS)
@pytest.mark.parametrize("place", [*DEVICES, "workers"])
def test_segments_are_the_same_from_every_place(tmp_path, place, observation) -> None:
    other: dict[str, Any] = {"num_workers": 2} if place == "workers" else {"replay_device": place}
    drawn = []
    for name, options in (("disk", {}), ("other", other)):
        run = Run(tmp_path / name, observation=observation, **options)
        run.batches(2)
        drawn.append([on_cpu(batch) for batch in run.batches(25)])
        run.loader.close()
    assert run.storage.window.first > 0
    assert same(*drawn)


def test_segments_go_on_after_a_resume(tmp_path) -> None:
    whole = Run(tmp_path / "whole", fading=0.9)
    whole.batches(6)
    expected = whole.batches(10)
    part = Run(tmp_path / "part", fading=0.9)
    part.batches(6)
    part.storage.pin("snapshots", part.storage.first_needed)
    saved = part.storage.state_dict(), part.loader.state_dict()
    part.batches(3)
    resumed = Run(tmp_path / "part", fading=0.9)
    list(islice(resumed.time_steps, 6 * 17))
    resumed.storage.load_state_dict(saved[0])
    resumed.loader.load_state_dict(saved[1])
    assert same(resumed.batches(10), expected)


# --- sampling by age ------------------------------------------------------------------------------------------------


def drawn(tmp_path: Any, lengths: Sequence[int], fading: float, batch: int, number: int) -> np.ndarray:
    """Return how often each transition was drawn, the oldest first."""
    storage = ReplayBufferStorage(data_specs(), tmp_path)
    for episode, length in enumerate(lengths):
        for time_step in make_episode(episode, length):
            storage.add(time_step)
    sampler = ReplaySampler(storage, batch, 3, fading=fading)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    counts = np.zeros(starts[-1])
    requests = None
    for _ in range(number):
        with sampler.taking():
            requests = requests or iter(sampler)
            taken = next(requests)
        np.add.at(counts, starts[taken.episode] + taken.start, 1)
    return counts


@pytest.mark.parametrize("fading", [0.5, 0.9, 0.999])
def test_older_transitions_fade(tmp_path, fading) -> None:
    lengths = [20, 1, 30, 9]
    counts = drawn(tmp_path, lengths, fading, 500, 200)
    ages = np.arange(sum(lengths))[::-1]
    weights = np.maximum(FADED, fading**ages)
    expected = weights / weights.sum() * counts.sum()
    deviation = (counts - expected) / np.sqrt(expected)
    assert np.abs(deviation).max() < 4.5
    assert 0.5 < np.square(deviation).mean() < 1.6  # chi-squared over its degrees of freedom


def test_fading_draws_are_a_function_of_seed_and_number(tmp_path) -> None:
    first = drawn(tmp_path / "a", [30, 30], 0.9, 16, LOOKAHEAD + 3)
    np.testing.assert_array_equal(first, drawn(tmp_path / "b", [30, 30], 0.9, 16, LOOKAHEAD + 3))
