"""The two newest snapshots, milestones, and writing that fails."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from drqv2.errors import DiskError, NotFiniteError, UserError
from drqv2.snapshot import file as snapshot
from drqv2.snapshot.agent_state import capture
from drqv2.snapshot.agent_weights import not_finite
from drqv2.snapshot.checkpoints import Checkpoints
from drqv2.system import files


def state(frame: int, needs: int = 0, weight: float = 1.0) -> dict[str, Any]:
    net = {"kind": "module", "name": "net", "value": {"weight": torch.full((3,), weight)}, "learnt": ["weight"]}
    return {
        "frame": frame,
        "progress": {},
        "needs": needs,
        "config": {"seed": 1},
        "agent": {"kind": "object", "children": {"net": net, "steps": frame}},
    }


def frames(run_dir: Path) -> list[int]:
    return [snapshot.load(run_dir / name)["frame"] for name in files.SNAPSHOTS if (run_dir / name).exists()]


def full_for(prefix: str) -> Callable[..., None]:
    """Return a `snapshot.save` for which the disk is full, for files whose names begin so."""
    save = snapshot.save

    def full(path: Path, *args: Any, **how: Any) -> None:
        if path.name.startswith(prefix):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        save(path, *args, **how)

    return full


def test_the_two_newest_are_kept(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    for frame in (1, 2, 3):
        checkpoints.save(state(frame))
    checkpoints.close()
    assert frames(tmp_path) == [3, 2]
    assert sorted(os.listdir(tmp_path)) == sorted(files.SNAPSHOTS)


def test_it_is_a_copy_that_is_written(tmp_path, monkeypatch):
    may_write = threading.Event()
    save = snapshot.save
    monkeypatch.setattr(snapshot, "save", lambda *args, **how: (may_write.wait(), save(*args, **how)))
    checkpoints, saved = Checkpoints(tmp_path), state(1)
    checkpoints.save(saved)
    assert checkpoints.busy
    saved["agent"]["children"]["net"]["value"]["weight"].fill_(5.0)
    may_write.set()
    checkpoints.close()
    loaded = snapshot.load(tmp_path / "snapshot.pt")
    assert loaded["agent"]["children"]["net"]["value"]["weight"].tolist() == [1.0] * 3


def test_milestones_hold_weights_only(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(state(7), milestone=True)
    checkpoints.save(state(8))
    checkpoints.close()
    kept = snapshot.load(tmp_path / "weights_7.pt")
    assert kept.keys() == {"version", "frame", "config", "agent"}
    assert kept["agent"].keys() == {"net.weight"}


def test_what_the_two_newest_and_the_coming_one_need(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.needed is None
    needed: list[int | None] = []
    for frame in range(5):
        checkpoints.save(state(frame, needs=frame))
        needed.append(checkpoints.needed)
    checkpoints.close()
    assert needed == [0, 0, 0, 1, 2]
    assert checkpoints.needed == 3
    again = Checkpoints(tmp_path)
    found = again.load()
    assert found is not None
    assert found["frame"] == 4
    assert again.needed == 3
    again.close()


def test_a_bad_snapshot_gives_way(tmp_path, caplog):
    checkpoints = Checkpoints(tmp_path)
    for frame in (1, 2):
        checkpoints.save(state(frame))
    checkpoints.close()
    (tmp_path / "snapshot.pt").write_bytes(b"nonsense")
    found = Checkpoints(tmp_path).load()
    assert found is not None
    assert found["frame"] == 1
    assert (tmp_path / "quarantine" / "snapshot.pt").read_bytes() == b"nonsense"
    assert "previous snapshot, of frame 1" in caplog.text


def test_with_no_good_one_all_stay(tmp_path):
    for name in files.SNAPSHOTS:
        (tmp_path / name).write_bytes(b"nonsense")
    with pytest.raises(UserError, match=r"snapshot\.pt: not a complete snapshot"):
        Checkpoints(tmp_path).load()
    assert sorted(os.listdir(tmp_path)) == sorted(files.SNAPSHOTS)
    assert Checkpoints(tmp_path / "elsewhere").load() is None


def test_a_full_disk_keeps_the_old_ones_and_the_run(tmp_path, monkeypatch, caplog):
    checkpoints = Checkpoints(tmp_path)
    for frame in (1, 2):
        checkpoints.save(state(frame, needs=frame))
    checkpoints.wait()
    with monkeypatch.context() as m:

        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        m.setattr(os, "fsync", full)
        checkpoints.save(state(3, needs=3))
        checkpoints.wait()
        assert "the snapshot of frame 3 cannot be written (No space left on device)" in caplog.text
        assert frames(tmp_path) == [2, 1]
        assert checkpoints.needed == 1
        checkpoints.save(state(4, needs=4))
        with pytest.raises(DiskError, match="frame 4 cannot be written"):
            checkpoints.wait(last=True)
    checkpoints.save(state(5, needs=5))
    checkpoints.close()
    assert frames(tmp_path) == [5, 2]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_state_that_is_not_finite_is_never_saved(tmp_path, value):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(state(1))
    with pytest.raises(NotFiniteError, match=r"agent\.net\.weight is not finite at frame 2"):
        checkpoints.save(state(2, weight=value))
    checkpoints.close()
    assert frames(tmp_path) == [1]


def test_weights_under_a_snapshots_name_give_way_to_the_one_before(tmp_path, caplog):
    checkpoints = Checkpoints(tmp_path)
    for frame in (1, 2):
        checkpoints.save(state(frame), milestone=True)
    checkpoints.close()
    (tmp_path / "weights_2.pt").replace(tmp_path / "snapshot.pt")
    loaded = Checkpoints(tmp_path).load()
    assert loaded is not None
    assert loaded["frame"] == 1
    assert "not a run's snapshot" in caplog.text


def test_a_milestone_that_failed_for_lack_of_space_is_written_later(tmp_path, monkeypatch, caplog):
    checkpoints = Checkpoints(tmp_path)
    with monkeypatch.context() as m:
        m.setattr(snapshot, "save", full_for("weights"))
        checkpoints.save(state(1, needs=1), milestone=True)
        checkpoints.wait()
    assert "the weights of frame 1 cannot be written" in caplog.text
    assert frames(tmp_path) == [1]
    assert checkpoints.needed == 1
    checkpoints.save(state(2, needs=2))
    checkpoints.close()
    assert snapshot.load(tmp_path / "weights_1.pt")["frame"] == 1


def test_weights_are_written_later_where_their_snapshot_failed(tmp_path, monkeypatch, caplog):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(state(1), milestone=True)
    checkpoints.wait()
    with monkeypatch.context() as m:
        m.setattr(snapshot, "save", full_for(""))
        checkpoints.save(state(2), milestone=True, outdated=[1])
        checkpoints.wait()
        best = state(2)["agent"]
        checkpoints.save_best(2, {}, best)
        assert "best.pt: the weights of frame 2 cannot be written (No space left on device)" in caplog.text
    best["children"]["net"]["value"]["weight"].zero_()  # the agent learns on
    checkpoints.save(state(3))
    checkpoints.close()
    assert sorted(path.name for path in tmp_path.glob("weights_*.pt")) == ["weights_2.pt"]
    assert snapshot.load(tmp_path / "weights_2.pt")["frame"] == 2
    written = snapshot.load(tmp_path / "best.pt")
    assert written["frame"] == 2
    assert written["agent"]["net.weight"].all()


def test_outdated_weights_that_failed_do_not_come_back(tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path)
    with monkeypatch.context() as m:
        m.setattr(snapshot, "save", full_for("weights"))
        checkpoints.save(state(1), milestone=True)
        checkpoints.save(state(2), milestone=True, outdated=[1])
        checkpoints.wait()
    checkpoints.save(state(3))
    checkpoints.close()
    assert [path.name for path in tmp_path.glob("weights_*.pt")] == ["weights_2.pt"]


def test_a_failure_that_was_told_is_not_forgotten_at_the_end(tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path)
    with monkeypatch.context() as m:
        m.setattr(snapshot, "save", full_for(""))
        checkpoints.save(state(1))
        checkpoints.wait()
    with pytest.raises(DiskError, match="frame 1 cannot be written"):
        checkpoints.wait(last=True)
    checkpoints.save(state(2))
    checkpoints.wait(last=True)
    checkpoints.close()


NAN = torch.tensor([0.0, float("nan")])


@pytest.mark.parametrize(
    ("agent", "named"),
    [
        (SimpleNamespace(nets=[nn.Linear(2, 2), nn.Linear(2, 2).requires_grad_(False)]), None),
        (SimpleNamespace(nets={"a": [nn.ParameterList([nn.Parameter(NAN.clone())])]}), "agent.nets.a.0.0"),
        (SimpleNamespace(log_alpha=NAN.clone().requires_grad_()), "agent.log_alpha"),
        (SimpleNamespace(lowest=torch.tensor(float("inf")), mask=torch.tensor([-float("inf")])), None),
        (SimpleNamespace(net=nn.BatchNorm1d(0)), None),
        (SimpleNamespace(state_dict=lambda: {"w": NAN, "step": 1}, load_state_dict=print), "agent.w"),
    ],
)
def test_parameters_are_found_wherever_they_are(agent, named):
    assert not_finite(capture(agent), "agent") == named
