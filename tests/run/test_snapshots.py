"""What a run keeps of its snapshots: when they come, and the episodes that the two newest refer to."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import replay_buffer
from drqv2 import utils
from drqv2.errors import Stopped
from drqv2.run.hooks import Hooks
from drqv2.snapshot import file as snapshot
from drqv2.system import files
from tests.run.test_epochs import opened
from tests.short_run import assert_same, resume, rows, run


def test_a_snapshot_is_saved_at_its_interval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, saved = 0.0, list[int]()
    monkeypatch.setattr(utils, "time", SimpleNamespace(perf_counter=lambda: now))

    def tick(step: int) -> None:
        nonlocal now
        now += 1.0
        workspace.snapshots.finish()  # else the next one might wait for it
        saved.append(workspace.snapshots.step)

    own = "snapshot_every_seconds=10", "snapshot_keep=0", "eval_every_frames=null", "num_train_frames=120"
    with opened(tmp_path / "run", "drqv2", *own) as workspace:
        workspace.train(Hooks(on_step=tick))
    assert sorted(set(saved)) == [-1, 0, 10, 20, 30, 40, 50]


def test_a_run_that_is_killed_long_after_its_snapshot_has_that_snapshots_episodes(
    straight: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(Exception):
        pass

    add, left = replay_buffer.ReplayBufferStorage.add, 240

    def add_and_break(self: Any, *args: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise Killed
        return add(self, *args)

    with monkeypatch.context() as m:
        m.setattr(replay_buffer.ReplayBufferStorage, "add", add_and_break)
        with pytest.raises(Killed):
            run(tmp_path / "run", "snapshot_keep=0")
    state = snapshot.load(tmp_path / "run" / "snapshot.pt")
    assert state["frame"] == 320
    resume(tmp_path / "run")
    assert_same(straight, tmp_path / "run")


def test_a_resumed_run_can_still_go_back_to_the_snapshot_before(straight: Path, tmp_path: Path) -> None:
    def stop(step: int) -> None:
        if step == 215:
            os.kill(os.getpid(), signal.SIGTERM)

    with opened(tmp_path / "run") as run, pytest.raises(Stopped):
        run.train(Hooks(on_step=stop))
    newest, before = (snapshot.load(tmp_path / "run" / name) for name in files.SNAPSHOTS)
    assert before["needs"] < newest["needs"]
    with opened(tmp_path / "run"):  # resumed, and killed before it has saved
        pass
    (tmp_path / "run/snapshot.pt").write_bytes(b"damaged")
    with opened(tmp_path / "run") as run:
        assert run.global_frame == before["frame"]
        run.train()
    for name in ("train", "eval"):
        assert rows(tmp_path / "run", name) == rows(straight, name)
