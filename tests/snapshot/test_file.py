"""Files that are whole or not there, and snapshots that run no code."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import resource
import signal
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from drqv2.errors import UserError
from drqv2.snapshot import file as snapshot
from drqv2.system import files
from tests.malice import Malice

STATE = {
    "weights": {"layer.0": torch.arange(60_000, dtype=torch.float32).reshape(300, 200)},
    "image": torch.arange(256, dtype=torch.uint8),
    "list": [1, 2.5, None, True, "text", [torch.tensor(3)]],
    "step": 2**40,
}


def assert_same(first: Any, second: Any) -> None:
    assert type(first) is type(second)
    if isinstance(first, dict):
        assert list(first) == list(second)
        first, second = list(first.values()), list(second.values())
    if isinstance(first, list):
        for a, b in zip(first, second, strict=True):
            assert_same(a, b)
    elif isinstance(first, torch.Tensor):
        assert first.dtype == second.dtype
        assert torch.equal(first, second)
    else:
        assert first == second


def write_whole(path: Path, content: Any) -> None:
    """Write anything as a snapshot is written, its checksum right."""
    with open(path, "w+b") as f:
        snapshot._write(f, content)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_write_makes_and_replaces(tmp_path):
    path = tmp_path / "file"
    for data in (b"first, and longer", b"second", b""):
        files.write_atomically(path, data)
        assert path.read_bytes() == data
        assert names(tmp_path) == ["file"]


def test_write_that_fails_leaves_the_old_file_alone(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        files.write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


def test_write_holds_no_file_open(tmp_path):
    before = os.listdir("/proc/self/fd")
    for _ in range(20):
        files.write_atomically(tmp_path / "file", b"data")
    assert len(os.listdir("/proc/self/fd")) == len(before)


def save_and_die(path: Path, instant: str) -> None:
    """To be run in a process of its own, which is killed when it calls `os.<instant>`."""
    setattr(os, instant, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    snapshot.save(path, {"step": 2})


@pytest.mark.parametrize(("instant", "step"), [("fsync", 1), ("replace", 1), ("open", 2)])
def test_killed_while_saving(tmp_path, instant, step):
    """Before fsync or before rename the old snapshot stands, after it (the folder is opened) the new one."""
    path = tmp_path / "snapshot.pt"
    snapshot.save(path, {"step": 1})
    child = multiprocessing.get_context("fork").Process(target=save_and_die, args=(path, instant))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    assert snapshot.load(path)["step"] == step
    snapshot.save(path, {"step": 3})  # whatever was left lying there
    assert snapshot.load(path)["step"] == 3


def test_round_trip(tmp_path):
    path = tmp_path / "snapshot.pt"
    snapshot.save(path, STATE)
    loaded = snapshot.load(path)
    assert loaded.pop("version") == snapshot.VERSION
    assert_same(loaded, STATE)
    assert names(tmp_path) == ["snapshot.pt"]


def test_torch_alone_reads_it(tmp_path):
    snapshot.save(tmp_path / "snapshot.pt", STATE)
    assert torch.load(tmp_path / "snapshot.pt", weights_only=True)["step"] == STATE["step"]


@pytest.mark.parametrize("kept", [0, 1, 100, 0.5, 0.99, -1])
def test_cut_short(tmp_path, kept):
    path = tmp_path / "snapshot.pt"
    snapshot.save(path, STATE)
    data = path.read_bytes()
    path.write_bytes(data[: int(kept * len(data)) if isinstance(kept, float) else kept])
    with pytest.raises(UserError, match=r"snapshot\.pt: not a complete snapshot"):
        snapshot.load(path)


def test_flipped_bit(tmp_path):
    """torch would read other weights without a word."""
    path = tmp_path / "snapshot.pt"
    snapshot.save(path, STATE)
    data = bytearray(path.read_bytes())
    place = data.index(np.arange(60_000, dtype=np.float32)[30_000:30_010].tobytes())
    data[place] ^= 1
    path.write_bytes(data)
    assert torch.load(path, weights_only=True)["step"] == STATE["step"]
    with pytest.raises(UserError, match=r"snapshot\.pt: not a complete snapshot .*checksum"):
        snapshot.load(path)


def test_every_bit_counts(tmp_path):
    path = tmp_path / "snapshot.pt"
    snapshot.save(path, {"step": 1, "weights": torch.arange(10.0)})
    data = path.read_bytes()
    for place in range(len(data)):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1 << place % 8]) + data[place + 1 :])
        with pytest.raises(UserError, match="not a complete snapshot"):
            snapshot.load(path)


def test_a_full_disk_is_an_oserror(tmp_path, monkeypatch):
    """torch turns what fails within its writer into an error of its own."""
    path = tmp_path / "snapshot.pt"
    snapshot.save(path, {"step": 1})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
        with pytest.raises(OSError, match="File too large"):
            snapshot.save(path, STATE)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert snapshot.load(path)["step"] == 1
    assert names(tmp_path) == ["snapshot.pt"]


@pytest.mark.parametrize("data", [b"frame,step\n0,0\n", pickle.dumps({"version": 1}), bytes(5000)])
def test_another_kind_of_file(tmp_path, data):
    path = tmp_path / "snapshot.pt"
    path.write_bytes(data)
    with pytest.raises(UserError, match="not a complete snapshot"):
        snapshot.load(path)


def test_no_file_and_a_folder(tmp_path):
    with pytest.raises(UserError, match="No such file"):
        snapshot.load(tmp_path / "snapshot.pt")
    with pytest.raises(UserError, match="Is a directory"):
        snapshot.load(tmp_path)


@pytest.mark.parametrize(("content", "got"), [({"version": 99}, "99"), ({}, "None"), ([1, 2], "'list'")])
def test_another_version(tmp_path, content, got):
    write_whole(tmp_path / "snapshot.pt", content)
    with pytest.raises(UserError, match=f"snapshot version {got}; only version {snapshot.VERSION} can be read"):
        snapshot.load(tmp_path / "snapshot.pt")


@pytest.mark.parametrize("form", ["whole", "without checksum", "old"])
def test_code_in_a_snapshot_is_not_run(tmp_path, form):
    path, folder = tmp_path / "snapshot.pt", tmp_path / "made_by_malice"
    content = {"version": snapshot.VERSION, "agent": Malice(folder)}
    if form == "whole":
        write_whole(path, content)
    else:
        torch.save(content, path, _use_new_zipfile_serialization=form != "old")
    with pytest.raises(UserError, match="not a snapshot" if form == "whole" else "not a complete snapshot"):
        snapshot.load(path)
    assert not folder.exists()
    torch.load(path, weights_only=False)
    assert folder.exists()  # it would have run


def test_the_message_is_short(tmp_path):
    path = tmp_path / "snapshot.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("other", "x")
    with pytest.raises(UserError) as error:
        snapshot.load(path)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < len(str(path)) + 160
