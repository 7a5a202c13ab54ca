"""Transitions drawn by their reward: which ones, how often, and the same ones after a resume."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dm_env import specs

from drqv2.replay.levels import LEVELS, RewardLevels
from drqv2.replay.sampler import LOOKAHEAD, ReplaySampler
from drqv2.replay.storage import episode_path
from replay_buffer import ReplayBufferStorage, make_replay_loader
from tests.naive_replay import data_specs, make_episode, on_cpu, same
from tests.short_run import rows, run


def shares(rewards: Sequence[float], enough: int = 1000, number: int = 40_000) -> np.ndarray:
    """Return how often each transition is drawn, in parts of all draws."""
    drawn = RewardLevels(np.array(rewards, np.float32), enough).draw(np.random.default_rng(0), number)
    return np.bincount(drawn, minlength=len(rewards)) / number


@pytest.mark.parametrize("scale", [1.0, -1.0, 1e-3, 1e6])
def test_rare_rewards_are_drawn_as_often_as_frequent_ones(scale: float) -> None:
    rewards = scale * np.array([0.0] * 95 + [1.0] * 5)
    found = shares(rewards.tolist(), enough=5)
    np.testing.assert_allclose(found, [0.5 / 95] * 95 + [0.5 / 5] * 5, rtol=0.35)
    assert found[95:].sum() == pytest.approx(0.5, abs=0.01)


def test_a_level_of_few_transitions_counts_in_proportion_to_them() -> None:
    assert shares([0.0] * 99 + [1.0], enough=9)[99] == pytest.approx(0.1, abs=0.01)


@pytest.mark.parametrize("value", [0.0, -3.5, 1e30])
def test_equal_rewards_are_drawn_alike(value: float) -> None:
    np.testing.assert_allclose(shares([value] * 8), [1 / 8] * 8, rtol=0.1)


def test_levels_are_of_equal_width() -> None:
    counts = np.arange(LEVELS) + 1
    level = np.repeat(np.arange(LEVELS), counts)
    found = shares([0.0, *(level[1:] + 0.5), float(LEVELS)], enough=1)
    np.testing.assert_allclose(np.bincount(np.append(level, LEVELS - 1), found), 1 / LEVELS, rtol=0.1)


# --- in batches -----------------------------------------------------------------------------------------------------


def stored(folder: Path, rewards: Sequence[Sequence[float]], tasks: bool = False) -> ReplayBufferStorage:
    """Return a storage of episodes with these rewards; with `tasks`, each of its own task."""
    task = specs.Array((1,), np.int64, "task")
    storage = ReplayBufferStorage((*data_specs(), task) if tasks else data_specs(), folder)
    for number, values in enumerate(rewards):
        for step, reward in zip(make_episode(number, len(values)), [0.0, *values], strict=True):
            storage.add(step._replace(reward=reward, task=number))
    return storage


def counts(storage: ReplayBufferStorage, batch: int, number: int = 400, **options: Any) -> np.ndarray:
    """Return how often samples began with each transition of each episode, [episodes, T]."""
    sampler = ReplaySampler(storage, batch, 3, **options)
    found = np.zeros((storage.num_episodes, max(storage.lengths.values())))
    requests = None
    for _ in range(number):
        with sampler.taking():
            requests = requests or iter(sampler)
            taken = next(requests)
        np.add.at(found, (taken.episode, taken.start), 1)
    return found / found.sum()


def test_a_share_of_each_batch_is_drawn_by_reward(tmp_path: Path) -> None:
    rewards = np.zeros((4, 25))
    rewards[2, [10, 20]] = 1
    found = counts(stored(tmp_path, rewards.tolist()), batch=16, by_reward=0.5)
    # Of 16, 8 are drawn from all, and 8 by reward: 2 / (2 + 16) of these with a reward.
    np.testing.assert_allclose(found[2, [10, 20]], 0.5 / 100 + 0.5 * (1 / 18), rtol=0.15)
    assert found[rewards == 0].sum() == pytest.approx(0.5 * 0.98 + 0.5 * 16 / 18, abs=0.02)


def test_a_rewarded_transition_is_at_any_place_of_a_sample(tmp_path: Path) -> None:
    rewards = np.zeros((1, 30))
    rewards[0, [1, 20]] = 1
    found = counts(stored(tmp_path, rewards.tolist()), batch=2, number=3000, by_reward=1.0, reach=3)[0]
    # Half of the draws are of the two with a reward, a third of these at each place.
    np.testing.assert_allclose(found[[18, 19, 20]], 1 / 12 + 0.5 / 28, rtol=0.2)
    assert found[0] > found[1] > 0.06  # a sample does not begin before its episode


def test_each_task_has_its_own_levels(tmp_path: Path) -> None:
    rewards = np.zeros((2, 50))
    rewards[0, 7], rewards[1, 9] = 1, 1000
    found = counts(stored(tmp_path, rewards.tolist(), tasks=True), batch=4, by_reward=1.0, balanced=True)
    assert found[0, 7] == pytest.approx(found[1, 9], rel=0.2)
    assert found[0, 7] == pytest.approx(0.5 / 5, rel=0.2)  # of one rewarded and up to 4 others


@pytest.mark.parametrize("place", [{}, {"num_workers": 2}, {"replay_device": "cpu"}], ids=str)
@pytest.mark.parametrize("anew", [True, False])
def test_batches_drawn_by_reward_are_the_same_after_a_resume(tmp_path: Path, place: dict[str, Any], anew: bool) -> None:
    """While episodes come and leave; into new objects, or into those that have gone on."""
    rewards = np.random.default_rng(0).exponential(size=(9, 12)).tolist()
    options: dict[str, Any] = {"seed": 4, "segment": 3, "fading": 0.99, "by_reward": 0.5} | place
    workers = options.pop("num_workers", 0)

    def more(storage: ReplayBufferStorage, loader: Any, numbers: Sequence[int]) -> list[Any]:
        drawn = []
        for number in numbers:
            for step, reward in zip(make_episode(number, 12), [0.0, *rewards[number]], strict=True):
                storage.add(step._replace(reward=reward))
            drawn += [on_cpu(next(loader)) for _ in range(LOOKAHEAD + 1)]
        return drawn

    storage = ReplayBufferStorage(data_specs(), tmp_path, 40)
    loader = make_replay_loader(tmp_path, 40, 8, workers, True, 3, 0.9, storage=storage, **options)
    more(storage, loader, range(5))
    storage.pin("snapshots", storage.first_needed)
    saved = storage.state_dict(), loader.state_dict()
    expected = more(storage, loader, range(5, 9))
    assert storage.window.first == 6
    if anew:
        loader.close()
        storage = ReplayBufferStorage(data_specs(), tmp_path, 40)
        loader = make_replay_loader(tmp_path, 40, 8, 0, True, 3, 0.9, storage=storage, **options)
    storage.load_state_dict(saved[0])
    loader.load_state_dict(saved[1])
    assert same(more(storage, loader, range(5, 9)), expected)
    loader.close()


@pytest.mark.parametrize(("batch", "tasks"), [(1, 1), (1, 3), (2, 3)])
def test_the_share_is_right_on_average_however_small_a_batch(tmp_path: Path, batch: int, tasks: int) -> None:
    rewards = np.zeros((3, 40))
    rewards[:, 5] = 1
    storage = stored(tmp_path, rewards.tolist(), tasks=tasks > 1)
    found = counts(storage, batch, number=4000, by_reward=0.5, balanced=tasks > 1)
    enough = min(3, batch) if tasks == 1 else 1  # rewarded transitions of a part, and its others, that count
    share = enough / (enough + batch)
    assert found[:, 5].sum() == pytest.approx(0.5 / 40 + 0.5 * share, rel=0.15)


def test_a_damaged_episode_is_not_drawn_by_reward(tmp_path: Path) -> None:
    storage = stored(tmp_path, [[0.0] * 10, [1.0] * 10, [0.5] * 10])
    storage.pin("snapshots", 0)
    state = storage.state_dict()
    path = episode_path(tmp_path, 1)
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    storage.load_state_dict(state)
    found = counts(storage, batch=8, by_reward=1.0)
    assert found[1].sum() == 0
    assert found[0].sum() == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize("own", [{"segment": 3}, {}], ids=["segment", "nstep"])
def test_a_loader_reads_existing_episodes_and_reaches_as_far_as_its_samples(
    tmp_path: Path, own: dict[str, Any]
) -> None:
    rewards = np.zeros((1, 30))
    rewards[0, 20] = 1
    stored(tmp_path, rewards.tolist())
    loader = make_replay_loader(tmp_path, None, 1, 0, False, 3, 1.0, by_reward=1.0, **own)
    drawn = [bool(next(loader)[2].any()) for _ in range(1000)]
    # Half of the draws are of the one with a reward, which each of the three begins within reach of.
    assert np.mean(drawn) == pytest.approx(0.5 + 0.5 * 3 / 29, abs=0.06)


@pytest.mark.parametrize(("key", "values"), [("replay_by_reward", (0, 1)), ("replay_fading", ("null", 0.5))])
def test_a_run_draws_as_its_keys_say(tmp_path: Path, key: str, values: Any) -> None:
    rewards = []
    for value in values:
        folder = run(tmp_path / str(value), f"{key}={value}", "num_train_frames=300")
        rewards.append([float(row["batch_reward"]) for row in rows(folder, "train") if row["batch_reward"]])
    assert len(rewards[0]) == len(rewards[1]) > 1
    assert all(a != b for a, b in zip(*rewards, strict=True))


def test_rewards_follow_the_window(tmp_path: Path) -> None:
    """Episodes that have left are not drawn, and their rewards no longer set the levels."""
    storage = stored(tmp_path, [[1000.0] * 20])
    storage.max_size = 40
    sampler = ReplaySampler(storage, 8, 3, by_reward=1.0)
    with sampler.taking():
        requests = iter(sampler)
        next(requests)
    for number in range(1, 6):
        for step, reward in zip(make_episode(number, 20), [0.0] + [0.0] * 19 + [1.0], strict=True):
            storage.add(step._replace(reward=reward))
    found = []
    for _ in range(LOOKAHEAD + 200):
        with sampler.taking():
            found.append(next(requests))
    late = found[LOOKAHEAD + 1 :]
    assert storage.window.first == 4
    assert all((taken.episode >= 4).all() for taken in late)
    assert np.mean([(taken.start == 19).mean() for taken in late]) == pytest.approx(2 / (2 + 8), abs=0.04)
