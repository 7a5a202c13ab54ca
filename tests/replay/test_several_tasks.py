"""Replay of several tasks: which transitions a batch holds, which task and discount they have, what a state keeps."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dm_env import specs
from scipy.stats import chisquare

from replay_buffer import Batch, ReplayBufferStorage, Window, make_replay_loader
from tests.naive_replay import NaiveReplay, data_specs, make_episode, memory_dir, same, samples

# Task of each episode, and its transitions.
EPISODES = [(0, 3), (2, 9), (0, 1), (1, 5), (2, 30), (0, 2), (1, 4)]
GAMMAS = [0.9, 0.5, 1.0]


@pytest.fixture
def replay_dir() -> Iterator[Path]:
    with memory_dir() as folder:
        yield folder


def task_specs(**layout: Any) -> tuple[Any, ...]:
    return (*data_specs(**layout), specs.Array((1,), np.int64, "task"))


def add(storage: ReplayBufferStorage, number: int, **layout: Any) -> None:
    task, length = EPISODES[number]
    for time_step in make_episode(number, length, terminal=bool(number % 2), **layout):
        storage.add(time_step._replace(task=task))


def filled(replay_dir: Path, episodes: int = len(EPISODES), **layout: Any) -> ReplayBufferStorage:
    storage = ReplayBufferStorage(task_specs(**layout), replay_dir)
    for number in range(episodes):
        add(storage, number, **layout)
    return storage


def drawn(
    storage: ReplayBufferStorage,
    number: int,
    batch_size: int = 32,
    num_workers: int = 0,
    balanced: bool = True,
    max_size: int | None = None,
    **kwargs: Any,
) -> list[Batch]:
    loader = make_replay_loader(
        storage.replay_dir,
        max_size,
        batch_size,
        num_workers,
        False,
        3,
        GAMMAS,
        storage=storage,
        balanced=balanced,
        **kwargs,
    )
    batches = [tuple(x.clone() if isinstance(x, torch.Tensor) else x for x in b) for b in islice(loader, number)]
    loader.close()
    return batches


@pytest.mark.parametrize("batch_size", [1, 2, 3, 10, 11, 12])
def test_a_batch_has_as_many_transitions_of_each_task_to_within_one(replay_dir: Path, batch_size: int) -> None:
    counts = np.array(
        [np.bincount(batch[5], minlength=3) for batch in drawn(filled(replay_dir), 300, batch_size=batch_size)]
    )
    assert (counts.sum(axis=1) == batch_size).all()
    assert (counts.max(axis=1) - counts.min(axis=1) <= 1).all()
    if batch_size % 3:  # what is left over falls to each task as often
        more = (counts > batch_size // 3).sum(axis=0)
        assert chisquare(more).pvalue > 1e-3
        assert more.min() > 0


def test_within_a_task_all_transitions_are_as_likely(replay_dir: Path) -> None:
    batches = drawn(filled(replay_dir), 400, batch_size=30)
    pairs = [pair for batch in batches for pair in samples(batch)]
    for task in range(3):
        own = [(e, t) for e, (k, n) in enumerate(EPISODES) if k == task for t in range(n)]
        assert chisquare([pairs.count(pair) for pair in own]).pvalue > 1e-4
        assert sum(pairs.count(pair) for pair in own) == 4000


def test_proportional_batches_follow_the_transitions(replay_dir: Path) -> None:
    batches = drawn(filled(replay_dir), 400, batch_size=30, balanced=False)
    found = np.bincount(torch.cat([batch[5] for batch in batches]), minlength=3)
    assert chisquare(found, 12000 * np.array([6, 9, 39]) / 54).pvalue > 1e-4


def test_tasks_without_episodes_take_no_part(replay_dir: Path) -> None:
    storage = filled(replay_dir, episodes=2)  # of tasks 0 and 2
    for batch in drawn(storage, 20, batch_size=8):
        assert np.bincount(batch[5], minlength=3).tolist() == [4, 0, 4]


def test_tasks_whose_episodes_have_left_the_window_take_no_part(replay_dir: Path) -> None:
    storage = ReplayBufferStorage(task_specs(), replay_dir, max_size=36)
    for number in range(len(EPISODES)):
        add(storage, number)
    assert storage.window == Window(4, 7)
    assert storage.tasks == {4: 2, 5: 0, 6: 1}
    assert {e for batch in drawn(storage, 20, max_size=36) for e, _ in samples(batch)} == {4, 5, 6}
    assert [episodes.tolist() for episodes, _ in storage.ends_by_task(storage.window)] == [[5], [6], [4]]


@pytest.mark.parametrize("where", ["disk", "cpu"])
def test_every_sample_has_the_task_of_its_episode_and_the_returns_of_its_discount(replay_dir: Path, where: str) -> None:
    storage = filled(replay_dir)
    naive = []
    for gamma in GAMMAS:
        naive.append(NaiveReplay(3, gamma))
        for number, (_, length) in enumerate(EPISODES):
            for time_step in make_episode(number, length, terminal=bool(number % 2)):
                naive[-1].add(time_step)
    for batch in drawn(storage, 20, replay_device=where):
        assert (batch[5].dtype, batch[5].shape) == (torch.int64, (32,))
        assert batch[5].tolist() == [EPISODES[number][0] for number, _ in samples(batch)]
        for task, one in enumerate(naive):
            one.check(tuple(x[batch[5] == task] for x in batch))


@pytest.mark.parametrize("balanced", [True, False])
@pytest.mark.parametrize("observation", ["pixels", "vector"])
def test_workers_and_a_copy_on_a_device_give_the_same_batches(
    replay_dir: Path, balanced: bool, observation: str
) -> None:
    storage = filled(replay_dir, observation=observation)
    expected = drawn(storage, 30, balanced=balanced)
    assert len(expected[0]) == 6
    assert same(drawn(storage, 30, balanced=balanced, num_workers=2), expected)
    assert same(drawn(storage, 30, balanced=balanced, replay_device="cpu"), expected)


def test_a_dict_of_observations_is_followed_by_the_task_too(replay_dir: Path) -> None:
    storage = filled(replay_dir, observation="dict")
    for where in ("disk", "cpu"):
        (batch,) = drawn(storage, 1, replay_device=where)
        assert isinstance(batch[0], dict)
        assert isinstance(batch[4], dict)
        assert batch[5].tolist() == [EPISODES[number][0] for number, _ in samples(batch)]


def test_a_state_keeps_the_tasks_and_the_unfinished_episodes_own(replay_dir: Path) -> None:
    storage = filled(replay_dir, episodes=4)
    time_steps = [time_step._replace(task=2) for time_step in make_episode(4, 6)]
    for time_step in time_steps[:3]:
        storage.add(time_step, env=5)
    state = storage.state_dict()
    expected = drawn(storage, 5)
    for number in (4, 5):  # another history
        add(storage, number)

    restored = ReplayBufferStorage(task_specs(), replay_dir)
    restored.load_state_dict(state)
    assert restored.tasks == {0: 0, 1: 2, 2: 0, 3: 1}
    assert same(drawn(restored, 5), expected)
    for time_step in time_steps[3:]:
        restored.add(time_step, env=5)
    assert restored.tasks[4] == 2
    assert restored.load_episode(4)["task"][:, 0].tolist() == [2] * 7


def test_a_sampler_continues_with_the_batch_that_would_have_come_next(replay_dir: Path) -> None:
    storage = filled(replay_dir)
    loader = make_replay_loader(replay_dir, None, 8, 0, False, 3, GAMMAS, storage=storage, balanced=True)
    list(islice(loader, 4))
    state = loader.state_dict()
    expected = [tuple(x.clone() for x in batch) for batch in islice(loader, 20)]
    again = make_replay_loader(replay_dir, None, 8, 0, False, 3, GAMMAS, storage=storage, balanced=True)
    again.load_state_dict(state)
    assert same([tuple(x.clone() for x in batch) for batch in islice(again, 20)], expected)


def test_the_episodes_of_a_finished_run_say_their_tasks(replay_dir: Path) -> None:
    expected = drawn(filled(replay_dir), 5)
    found = ReplayBufferStorage(task_specs(), replay_dir, existing=True)
    assert found.tasks == {number: task for number, (task, _) in enumerate(EPISODES)}
    assert same(drawn(found, 5), expected)
    newest = ReplayBufferStorage(task_specs(), replay_dir, 36, existing=True)
    assert newest.tasks == {4: 2, 5: 0, 6: 1}


def test_rewards_and_discounts_of_the_transitions_of_an_episode(replay_dir: Path) -> None:
    storage = filled(replay_dir, episodes=4)
    time_steps = make_episode(3, 5, terminal=True)[1:]
    rewards, discounts = storage.load_rewards(3)
    np.testing.assert_allclose(rewards, [time_step.reward for time_step in time_steps], rtol=1e-6)
    np.testing.assert_allclose(discounts, [time_step.discount for time_step in time_steps], rtol=1e-6)
    assert discounts[-1] == 0
