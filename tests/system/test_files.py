"""The lock on a directory, a full disk, quarantine."""

from __future__ import annotations

import errno
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from drqv2.errors import DiskError, UserError
from drqv2.system import files

ROOT = Path(__file__).resolve().parents[2]
HOLD = """
import sys, time
from pathlib import Path
from drqv2.system import files
with files.locked(Path(sys.argv[1])):
    print("locked", flush=True)
    time.sleep(100)
"""


def holder(folder: Path) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], cwd=ROOT, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"locked\n"
    return process


def test_lock_excludes_a_second_process_until_the_first_dies(tmp_path):
    assert not files.in_use(tmp_path)
    assert files.is_unbegun(tmp_path)
    first = holder(tmp_path)
    assert files.in_use(tmp_path)
    assert not files.is_unbegun(tmp_path)
    with pytest.raises(UserError, match=rf"in use by process {first.pid} on .*, started 20"), files.locked(tmp_path):
        pass
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert not files.in_use(tmp_path)
    with files.locked(tmp_path):
        pass


def test_asking_for_the_lock_does_not_release_it(tmp_path):
    ask = "import sys, pathlib, drqv2.system.files as files; sys.exit(files.in_use(pathlib.Path(sys.argv[1])))"
    with files.locked(tmp_path):
        assert files.in_use(tmp_path)
        assert subprocess.run([sys.executable, "-c", ask, str(tmp_path)], cwd=ROOT).returncode == 1
    assert not files.in_use(tmp_path)


@pytest.mark.parametrize(("content", "said"), [(b"", "another process"), (b"\xff\x00", "\ufffd")])
def test_lock_without_content_still_locks(tmp_path, content, said):
    first = holder(tmp_path)
    (tmp_path / files.LOCK).write_bytes(content)
    with pytest.raises(UserError, match=f"in use by {said}"), files.locked(tmp_path):
        pass
    first.kill()
    first.wait()
    with files.locked(tmp_path):
        pass


def test_the_lock_of_another_host_is_waited_for(tmp_path, monkeypatch, caplog):
    """A host that is lost lets go of its locks on a network file system only after some time."""
    first = holder(tmp_path)
    (tmp_path / files.LOCK).write_text("process 7 on another, started 2026")
    monkeypatch.setattr(files, "_LEASE", 0.4)
    with pytest.raises(UserError, match="in use by process 7 on another, started 2026"), files.locked(tmp_path):
        pass
    assert "waiting" in caplog.text
    monkeypatch.setattr(files, "_LEASE", 20.0)
    threading.Timer(0.5, first.kill).start()
    with files.locked(tmp_path):
        assert first.wait() == -signal.SIGKILL


def test_a_lock_that_is_a_link_is_not_followed(tmp_path):
    (tmp_path / "mine.txt").write_text("precious")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / files.LOCK).symlink_to(tmp_path / "mine.txt")
    with pytest.raises(UserError, match="cannot be written to"), files.locked(tmp_path / "run"):
        pass
    assert (tmp_path / "mine.txt").read_text() == "precious"


def test_a_child_does_not_hold_the_lock(tmp_path):
    with files.locked(tmp_path):
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"], close_fds=False)
    try:
        with files.locked(tmp_path):
            pass
    finally:
        child.kill()
        child.wait()


def test_full_disk_is_retried(tmp_path, monkeypatch, caplog):
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    left = iter([OSError(errno.ENOSPC, "No space left on device")] * 2)

    def write() -> str:
        if error := next(left, None):
            raise error
        return "written"

    with caplog.at_level(logging.WARNING):
        assert files.retry_on_full_disk(write, "x.csv") == "written"
    assert len(pauses) == 2
    assert "x.csv cannot be written (No space left on device); retrying in 1 s." in caplog.text


def test_permanently_full_disk_raises(monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda _: None)

    def write() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(DiskError, match=r"x\.csv cannot be written: No space left on device") as error:
        files.retry_on_full_disk(write, "x.csv")
    assert error.value.code == 74


def test_permanent_errors_are_not_retried(monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("waited"))

    def write() -> None:
        raise OSError(errno.EACCES, "Permission denied")

    with pytest.raises(DiskError, match="Permission denied"):
        files.retry_on_full_disk(write, "x.csv")


def test_replacing_keeps_the_old_file(tmp_path):
    path, keep = tmp_path / "file", tmp_path / "older"
    for data in (b"1", b"2", b"3"):
        with files.replacing(path, keep) as f:
            f.write(data)
    assert (path.read_bytes(), keep.read_bytes()) == (b"3", b"2")
    assert sorted(os.listdir(tmp_path)) == ["file", "older"]


def test_only_leftovers_of_this_project_are_removed(tmp_path):
    mine = [tmp_path / ".mine.tmp" / "x", tmp_path / ".notes.tmp"]
    mine[0].parent.mkdir()
    theirs = [tmp_path / ".snapshot.pt.123.tmp", tmp_path / ".train.csv.9.tmp"]
    for path in mine + theirs:
        path.touch()
    (tmp_path / f".{files.REPLAY}.tmp").mkdir()
    files.remove_leftovers(tmp_path)
    assert sorted(tmp_path.iterdir()) == [tmp_path / ".mine.tmp", tmp_path / ".notes.tmp"]


def test_quarantine_overwrites_nothing(tmp_path, caplog):
    for data in (b"1", b"2", b"3"):
        (tmp_path / "file").write_bytes(data)
        files.quarantine(tmp_path / "file", tmp_path, "is damaged")
    assert {p.read_bytes() for p in (tmp_path / "quarantine").iterdir()} == {b"1", b"2", b"3"}
    assert not (tmp_path / "file").exists()
    assert "file: is damaged; moved to" in caplog.text
