"""Files that are whole or not there, also after a crash; a full disk; the lock on a directory; quarantine."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import logging
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from drqv2.errors import DiskError, UserError

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

_LEASE = 150.0  # seconds for which a server of NFS keeps a lost host's locks: 90 is usual
LOCK = "lock"
QUARANTINE = "quarantine"
REPLAY = "buffer"  # the folder of episodes in a run's directory
SNAPSHOTS = ("snapshot.pt", "snapshot_previous.pt")  # of a run, newest first
DISK_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ESTALE)  # may be over after a while
_PAUSES = (1.0, 5.0, 15.0, 30.0)  # seconds before each further attempt to write


def cannot_write(path: Path, error: OSError, advice: str) -> UserError:
    """Return what to raise for a file that a tool cannot write: the disk's fault, or that of the path given."""
    kind = DiskError if error.errno in DISK_ERRNOS else UserError
    return kind(f"{path} cannot be written ({error.strerror or error}); {advice}")


def crash_point(name: str) -> None:
    """Called where a crash would leave something half done; tests put something in its place that crashes there."""


@contextmanager
def replacing(path: Path, keep: Path | None = None) -> Iterator[BinaryIO]:
    """Context with a new file that takes the place of `path` at its end, whole; after an error the old one stays.

    A temporary name in the same folder, flush, fsync, rename, fsync of the folder.

    Args:
        path: file to make or replace; its folder must be there.
        keep: where the old file goes; between the two renames there is none at `path`.

    Raises:
        OSError: it cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "w+b") as f:
            crash_point(f"{path.suffix}: begun")
            yield f
            f.flush()
            crash_point(f"{path.suffix}: written")
            os.fsync(f.fileno())
        if keep is not None and path.exists():
            os.replace(path, keep)
            crash_point(f"{path.suffix}: old one moved")
        os.replace(temporary, path)
        crash_point(f"{path.suffix}: renamed")
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def has_snapshot(run_dir: Path) -> bool:
    """Return whether there is anything in `run_dir` that a run could be gone on with."""
    return any((run_dir / name).is_file() for name in SNAPSHOTS)


def write_atomically(path: Path, data: bytes) -> None:
    """Write `data` to `path` so that the file there is either the old one or the whole new one; see `replacing`."""
    with replacing(path) as f:
        f.write(data)


class Appender:
    """A file that only grows, by whole pieces.

    Args:
        path: of the file; made when missing.
        kind: in the name of the boundary; the path's suffix by default.

    Raises:
        OSError: it cannot be opened.
    """

    def __init__(self, path: Path, kind: str = "") -> None:
        self._kind = kind or path.suffix
        new = not path.exists()
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        if new:
            sync_folder(path.parent)

    def append(self, data: bytes) -> None:
        """Add `data`, all of it or nothing.

        Raises:
            OSError: it cannot be written.
        """
        end = os.fstat(self._fd).st_size
        try:
            if os.write(self._fd, data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            crash_point(f"{self._kind}: row written")
        except OSError:
            self.truncate(end)
            raise

    def truncate(self, size: int) -> None:
        """Cut it back to a number of bytes."""
        os.ftruncate(self._fd, size)

    def sync(self) -> None:
        """Bring it to the disk, so that a power cut takes nothing away."""
        os.fsync(self._fd)

    def close(self) -> None:
        """Close it."""
        os.close(self._fd)


def sync_folder(folder: Path) -> None:
    """Bring the names in a folder to the disk."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def remove_unfinished(folder: Path, pattern: str) -> None:
    """Delete what processes that were killed while they wrote files named like `pattern` have left in `folder`."""
    for path in folder.glob(f".{pattern}.*.tmp"):
        path.unlink(missing_ok=True)


def remove_leftovers(run_dir: Path) -> None:
    """Delete what processes that were killed have left half written in a run's directory; nobody may be running there.

    The replay sees to its own folder.
    """
    own = [f".{name}.*.tmp" for name in ("snapshot*.pt", "weights_*.pt", "*.csv", "config.yaml")]
    for pattern in (*own, ".buffer.tmp", "eval_video/.tmp-*.mp4", "train_video/.tmp-*.mp4"):
        for path in run_dir.glob(pattern):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


def discard(folder: Path) -> None:
    """Delete a folder; a crash leaves all of it under its name, or nothing."""
    doomed = folder.with_name(f".{folder.name}.tmp")
    os.replace(folder, doomed)
    sync_folder(folder.parent)
    crash_point("folder: renamed")
    shutil.rmtree(doomed)


def retry_on_full_disk(write: Callable[[], _T], what: str) -> _T:
    """Return `write()`, tried again after pauses while the disk is full or fails: somebody may make room.

    Args:
        write: writes all or nothing.
        what: names it in messages.

    Raises:
        DiskError: it fails for good.
    """
    for pause in (*_PAUSES, None):
        try:
            return write()
        except OSError as e:
            if e.errno not in DISK_ERRNOS or pause is None:
                raise DiskError(
                    f"{what} cannot be written: {e.strerror or e}\n"
                    "The run has ended; make room, then go on from its newest snapshot with resume=RUN_DIR."
                ) from e
            _log.warning("%s cannot be written (%s); the next attempt is in %.0f s.", what, e.strerror, pause)
            time.sleep(pause)
    raise AssertionError("not reached")


def digest(path: Path) -> bytes:
    """Return the SHA-256 of a file."""
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").digest()


def quarantine(path: Path, root: Path, reason: str) -> None:
    """Move a file that cannot be used to `root/quarantine`, where nothing reads it, and say so."""
    folder = root / QUARANTINE
    folder.mkdir(exist_ok=True)
    target, number = folder / path.name, 0
    while target.exists():
        number += 1
        target = folder / f"{path.name}.{number}"
    os.replace(path, target)
    _log.warning("%s: %s; moved to %s", path, reason, target)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Context in which no other process may run in `folder`. The kernel lets go of the lock of a process that dies.

    A POSIX lock: children do not inherit it, and it is given up when this process closes any descriptor of the file. On
    a network file system the lock of a host that is lost outlives it for a while, which is waited for.

    Raises:
        UserError: another process has it; names it.
    """
    try:
        # Not through a link: a directory from elsewhere could have one to a file of the user's.
        f = os.fdopen(os.open(folder / LOCK, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o666), "a+b")
    except OSError as e:
        raise UserError(f"{folder} cannot be written to ({e.strerror}): take another hydra.run.dir") from e
    with f:
        try:
            _lock(f, time.monotonic() + _LEASE)
        except OSError as e:
            if e.errno in (errno.EACCES, errno.EAGAIN):
                raise UserError(
                    f"{folder} is in use by {_words(_holder(f))}\nWait for it or end it, or take another hydra.run.dir."
                ) from None
            _log.warning("%s cannot be locked (%s): see to it yourself that no second run uses it.", folder, e.strerror)
        else:
            f.truncate(0)
            started = datetime.now().isoformat(" ", "seconds")
            f.write(json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "started": started}).encode())
            f.flush()
        yield


def _lock(file: BinaryIO, until: float) -> None:
    while True:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError as e:
            elsewhere = _holder(file).get("host", socket.gethostname()) != socket.gethostname()
            if e.errno not in (errno.EACCES, errno.EAGAIN) or not elsewhere or time.monotonic() > until:
                raise
            _log.warning("in use by %s: waiting, in case that is lost.", _words(_holder(file)))
            time.sleep(_LEASE / 20)


def _holder(file: BinaryIO) -> dict[str, Any]:
    file.seek(0)
    try:
        found = json.loads(file.read(1000))
        return {"pid": int(found["pid"]), "host": str(found["host"]), "started": str(found["started"])}
    except (ValueError, KeyError, TypeError):  # it has only just been opened, or somebody wrote something else there
        return {}


def _words(holder: dict[str, Any]) -> str:
    return "process {pid} on {host}, started {started}".format(**holder) if holder else "another process"
