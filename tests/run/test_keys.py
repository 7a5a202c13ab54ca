"""That keys and hooks of a run come to what they say: time, frames, rewards, returns, episodes of evaluations."""

from __future__ import annotations

import csv
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from drqv2 import utils
from drqv2.envs.episode import Environment
from drqv2.run import evaluation
from drqv2.run.hooks import Hooks
from tests.run.test_epochs import opened
from tests.short_run import rows, run


def test_time_is_that_of_training_and_fps_are_frames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(utils, "time", SimpleNamespace(perf_counter=lambda: now))
    play = evaluation.play

    def slow(*args: Any) -> Any:
        nonlocal now
        now += 1000.0
        return play(*args)

    def tick(_: int) -> None:
        nonlocal now
        now += 1.0

    monkeypatch.setattr(evaluation, "play", slow)
    with opened(tmp_path / "run") as run:
        run.train(Hooks(on_step=tick))
        assert run.epoch.summary().train_seconds == 240
        assert run.epoch.summary().frames_per_second == 2
    tables = [list(csv.DictReader((tmp_path / f"run/{name}.csv").open())) for name in ("train", "eval")]
    assert {float(row["fps"]) for row in tables[0]} == {2.0}
    assert [float(row["total_time"]) for row in tables[0]] == [30.0 * i for i in range(1, 9)]
    assert [float(row["total_time"]) for row in tables[1]] == [0, 80, 160, 240]


def test_each_evaluation_has_episodes_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[Any] = []
    begin = Environment.begin

    def noted(env: Environment, index: int, episode: int) -> Any:
        begun.append((env._seed[1], index, episode))
        return begin(env, index, episode)

    monkeypatch.setattr(Environment, "begin", noted)
    run(tmp_path / "run", "num_train_frames=160")
    assert [own for stream, *own in begun if stream == utils.EVAL_ENV] == [[0, 0], [0, 1], [1, 0], [1, 1]]


def test_transform_reward_reaches_the_replay_of_drqv2(tmp_path: Path) -> None:
    short = "num_train_frames=120"  # no update yet: the actions are the same
    plain = run(tmp_path / "plain", short)
    with opened(tmp_path / "run", "drqv2", short) as other:
        other.train(Hooks(transform_reward=lambda rewards: 10 * rewards - 1))
    for name in ("episode_00000000", "episode_00000001"):
        files = (tmp_path / folder / "buffer" / f"{name}.safetensors" for folder in ("plain", "run"))
        one, two = (load_file(path)["reward"] for path in files)
        assert np.array_equal(two[1:], 10 * one[1:] - 1)
    own, transformed = ([row["episode_reward"] for row in rows(path, "train")] for path in (plain, tmp_path / "run"))
    assert own == transformed


@pytest.mark.parametrize("regime", ["drqv2", "offline"])
def test_returns_are_those_of_nstep_and_discount(regime: str, tmp_path: Path) -> None:
    seen: set[float] = set()
    with opened(tmp_path / "run", regime, "nstep=2", "discount=0.5") as run:
        agent: Any = run.agent
        update = agent.update

        def noted(batches: Any, step: int) -> Any:
            batch = next(batches)
            seen.update(batch[3][:, 0].tolist())
            return update(iter([batch]), step)

        agent.update = noted
        run.train()
    assert seen == {0.5, 0.25}
