"""Long episodes: their steps go to disk in parts, and a resume finds them wherever they are by then."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from drqv2.replay import unfinished
from drqv2.replay.storage import ReplayBufferStorage
from tests.naive_replay import data_specs, make_episode

PART = 4


@pytest.fixture(autouse=True)
def _short_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unfinished, "PART_STEPS", PART)


def storage(folder: Path) -> ReplayBufferStorage:
    return ReplayBufferStorage(data_specs(), folder)


def reloaded(state: dict[str, Any]) -> dict[str, Any]:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    loaded: dict[str, Any] = torch.load(buffer, weights_only=True)
    return loaded


def parts(folder: Path) -> list[str]:
    return sorted(path.name[11:26] for path in folder.glob("unfinished_*"))


def contents(store: ReplayBufferStorage, episode: int) -> dict[str, np.ndarray]:
    return store.load_episode(episode)


def same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("length", [2, 3, 4, 11])
def test_an_episode_is_the_same_in_parts(tmp_path, monkeypatch, length) -> None:
    steps = make_episode(0, length)
    in_parts = storage(tmp_path / "parts")
    for t, step in enumerate(steps):
        in_parts.add(step)
        assert len(parts(tmp_path / "parts")) == (0 if step.last() else (t + 1) // PART)
    monkeypatch.setattr(unfinished, "PART_STEPS", 100)
    at_once = storage(tmp_path / "once")
    for step in steps:
        at_once.add(step)
    assert same(contents(in_parts, 0), contents(at_once, 0))


@pytest.mark.parametrize("length", [3, 4, 11])
def test_an_episode_can_be_ended_where_it_is(tmp_path, length) -> None:
    steps = make_episode(0, 20)[: length + 1]
    store = storage(tmp_path)
    assert store.end() is None
    for step in steps:
        store.add(step)
    assert store.end() == 0
    assert store.end() is None
    assert len(store) == store.lengths[0] == length
    assert contents(store, 0)["discount"][-1] == steps[-1].discount
    assert parts(tmp_path) == []


def test_a_snapshot_holds_no_more_than_a_part(tmp_path) -> None:
    store = storage(tmp_path)
    for step in make_episode(0, 30)[:-1]:
        store.add(step)
        (saved,) = store.state_dict()["current"].values()
        assert all(len(values) < PART for values in saved["steps"].values())
    assert len(parts(tmp_path)) == 30 // PART


@pytest.mark.parametrize("later", ["nothing", "goes on", "ends", "ends, and another begins"])
@pytest.mark.parametrize("taken", [5, 8, 10])
def test_a_resume_finds_the_steps_wherever_they_are(tmp_path, taken, later) -> None:
    steps, others = make_episode(0, 13), make_episode(1, 9)
    store = storage(tmp_path)
    for step in steps[:taken]:
        store.add(step)
    state = reloaded(store.state_dict())
    ahead = {"nothing": [], "goes on": steps[taken:12], "ends": steps[taken:]}.get(later, [*steps[taken:], *others[:6]])
    for step in ahead:
        store.add(step)
    resumed = storage(tmp_path)
    resumed.load_state_dict(state)
    assert resumed.num_episodes == 0
    assert parts(tmp_path) == [f"00000000_{i:06d}" for i in range(taken // PART)]
    for step in [*steps[taken:], *others]:
        resumed.add(step)
    whole = storage(tmp_path / "whole")
    for step in [*steps, *others]:
        whole.add(step)
    assert all(same(contents(resumed, e), contents(whole, e)) for e in range(2))
    assert parts(tmp_path) == []


def test_steps_that_are_damaged_are_not_stored_and_the_rest_is(tmp_path, caplog) -> None:
    steps = make_episode(0, 13)
    store = storage(tmp_path)
    for step in steps[:10]:
        store.add(step)
    state = reloaded(store.state_dict())
    next(tmp_path.glob("unfinished_*_000001*")).write_bytes(b"damaged")
    resumed = storage(tmp_path)
    resumed.load_state_dict(state)
    assert "steps of an unfinished episode are lost" in caplog.text
    for step in steps[10:]:
        resumed.add(step)
    assert resumed.lengths == {0: len(steps[10:]) - 1}
    assert parts(tmp_path) == []


def test_an_episode_that_is_dropped_leaves_nothing(tmp_path) -> None:
    store = storage(tmp_path)
    for step in [*make_episode(0, 13)[:9], *make_episode(1, 2)]:
        store.add(step)
    assert parts(tmp_path) == []
    assert store.lengths == {0: 2}
