"""Crash-safe files: atomic writes, appending, retries on a full disk, a lock per run directory, quarantine."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import io
import logging
import os
import shutil
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import BinaryIO, TextIO, TypeVar

from drqv2.errors import DiskError, UserError

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

_LEASE = 150.0  # seconds for which an NFS server keeps the locks of a lost host; 90 is typical
LOCK = "lock"
QUARANTINE = "quarantine"
REPLAY = "buffer"  # folder of episodes in the run directory
BEST = "best.pt"  # weights of the best evaluation
SNAPSHOTS = ("snapshot.pt", "snapshot_previous.pt")  # newest first
_FOLDERS = (REPLAY, "tb", "eval_video", "train_video")  # of a run
DISK_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ESTALE)  # may be transient
_LOCKED: set[Path] = set()  # folders, by this process, which a POSIX lock does not keep from another lock
_FLOCK = "hhqqi4x"  # struct flock of 64-bit Linux: type, whence, start, length, process
_PAUSES = (1.0, 5.0, 15.0, 30.0)  # seconds before each retry of a write


def cannot_write(path: Path, error: OSError, advice: str) -> UserError:
    """Return the error to raise when a tool cannot write `path`: `DiskError` if the disk is at fault."""
    kind = DiskError if error.errno in DISK_ERRNOS else UserError
    return kind(f"{path} cannot be written ({error.strerror or error}); {advice}")


def crash_point(name: str) -> None:
    """Mark a point where a crash would leave work half done. Tests replace this function to crash there."""


@contextmanager
def replacing(path: Path, keep: Path | None = None) -> Iterator[BinaryIO]:
    """Open a temporary file that is synced and atomically replaces `path` at the end; on error the old file stays.

    Args:
        path: file to create or replace; its folder must exist.
        keep: where to move the old file. Between the two renames there is no file at `path`.

    Raises:
        OSError: the file cannot be written.
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
    """Return whether `run_dir` holds a snapshot to resume from."""
    return any((run_dir / name).is_file() for name in SNAPSHOTS)


def write_atomically(path: Path, data: bytes) -> None:
    """Write `data` to `path` atomically; see `replacing`."""
    with replacing(path) as f:
        f.write(data)


class Appender(io.FileIO):
    """An append-only file whose writes are all or nothing; created if missing.

    The crash point is named after `kind`, by default the path's suffix.
    """

    def __init__(self, path: Path, kind: str = "") -> None:
        new = not path.exists()
        super().__init__(path, "a")
        self._kind = kind or path.suffix
        if new:
            sync_folder(path.parent)

    def append(self, data: bytes) -> None:
        """Append all of `data`; or nothing, and raise an OSError."""
        end = os.fstat(self.fileno()).st_size
        try:
            if self.write(data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            crash_point(f"{self._kind}: row written")
        except OSError:
            self.truncate(end)
            raise

    def sync(self) -> None:
        """Flush the file to disk (fsync)."""
        os.fsync(self.fileno())


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to disk, so that renames in it survive a power cut."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def remove_leftovers(run_dir: Path) -> None:
    """Delete the half-written files that killed processes left in a run directory. Call it with the run locked."""
    for pattern in (".*.[0-9]*.tmp", f"{REPLAY}/.*.[0-9]*.tmp", "*_video/.tmp-*.mp4"):
        for path in run_dir.glob(pattern):
            path.unlink(missing_ok=True)
    for name in _FOLDERS:
        shutil.rmtree(run_dir / f".{name}.tmp", ignore_errors=True)  # see `discard`


def is_unbegun(run_dir: Path) -> bool:
    """Return whether no run has written anything into a directory, and none is starting there."""
    return run_dir.is_dir() and not {path.name for path in run_dir.iterdir()} - {".hydra", LOCK} and not in_use(run_dir)


def remove_failed(run_dir: Path) -> None:
    """Remove the directory of a start that failed, and those of its parents below the current one that become empty."""
    shutil.rmtree(run_dir, ignore_errors=True)
    with suppress(OSError):  # the first that is not empty
        for folder in run_dir.parents:
            if Path.cwd() not in folder.parents:
                return
            folder.rmdir()


def delete_run(run_dir: Path) -> None:
    """Delete what a run has written into its directory, snapshots first; the list of its starts is kept."""
    for pattern in (*SNAPSHOTS, "weights_[0-9]*.pt", BEST, "train.csv", "eval.csv", "metrics.jsonl", "config.yaml"):
        for path in run_dir.glob(pattern):
            path.unlink()
    for name in _FOLDERS:
        if (run_dir / name).exists():
            discard(run_dir / name)


def discard(folder: Path) -> None:
    """Delete a folder atomically: after a crash, either all of it or nothing is left under its name."""
    doomed = folder.with_name(f".{folder.name}.tmp")
    os.replace(folder, doomed)
    sync_folder(folder.parent)
    crash_point("folder: renamed")
    shutil.rmtree(doomed)


def retry_on_full_disk(write: Callable[[], _T], what: str) -> _T:
    """Return `write()`, which writes all or nothing, retrying after a pause while the disk is full or failing.

    Raises:
        DiskError: the last attempt failed, too.
    """
    pauses = iter(_PAUSES)
    while True:
        try:
            return write()
        except OSError as e:
            pause = next(pauses, None)
            if e.errno not in DISK_ERRNOS or pause is None:
                raise DiskError(
                    f"{what} cannot be written: {e.strerror or e}\n"
                    "The run has stopped. Free some disk space, then resume it from its newest snapshot: resume=RUN_DIR"
                ) from e
            _log.warning("%s cannot be written (%s); retrying in %.0f s.", what, e.strerror, pause)
            time.sleep(pause)


def digest(path: Path) -> bytes:
    """Return the SHA-256 of a file."""
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").digest()


def quarantine(path: Path, root: Path, reason: str) -> None:
    """Move an unusable file to `root/quarantine` and log a warning."""
    folder = root / QUARANTINE
    folder.mkdir(exist_ok=True)
    target, number = folder / path.name, 0
    while target.exists():
        number += 1
        target = folder / f"{path.name}.{number}"
    os.replace(path, target)
    _log.warning("%s: %s; moved to %s", path, reason, target)


@contextmanager
def locked(folder: Path, key: str = "hydra.run.dir") -> Iterator[None]:
    """Hold the exclusive lock on `folder`. The kernel releases it when the process dies.

    This is a POSIX lock: children do not inherit it, and closing any descriptor of the lock file releases it. On a
    network file system the lock of a lost host survives for a while; this waits for it.

    Args:
        folder: directory to lock.
        key: the user's name for it, for messages.

    Raises:
        UserError: another process holds the lock, or this one does.
    """
    own = folder.resolve()
    if own in _LOCKED:
        raise UserError(f"{folder} is in use by this process: close the run there first, or choose another directory")
    try:
        # O_NOFOLLOW: a run directory from another user could contain a link to one of your files.
        opened = os.open(folder / LOCK, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    except OSError as e:
        raise UserError(f"{folder} cannot be written to ({e.strerror}): choose another {key}") from e
    with os.fdopen(opened, "a+", errors="replace") as f:
        _lock(f, folder, key)
        _LOCKED.add(own)
        try:
            yield
        finally:
            _LOCKED.remove(own)


def in_use(folder: Path) -> bool:
    """Return whether a process holds the lock on `folder`. The lock itself is left alone."""
    if folder.resolve() in _LOCKED:
        return True  # closing the file, as below, would release this process's own lock
    try:
        with open(folder / LOCK, "rb") as f:
            found = fcntl.fcntl(f, fcntl.F_GETLK, struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    except FileNotFoundError:
        return False
    return bool(struct.unpack(_FLOCK, found)[0] != fcntl.F_UNLCK)


def _lock(file: TextIO, folder: Path, key: str) -> None:
    host, until = socket.gethostname(), time.monotonic() + _LEASE
    while True:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except (BlockingIOError, PermissionError):
            file.seek(0)
            holder = file.read(200) or "another process"
            elsewhere = " on " in holder and f" on {host}," not in holder
            if not elsewhere or time.monotonic() > until:
                raise UserError(
                    f"{folder} is in use by {holder}\nWait for it, stop it, or choose another {key}."
                ) from None
            _log.warning("The run is in use by %s; waiting, in case that host is lost.", holder)
            time.sleep(_LEASE / 20)
        except OSError as e:
            _log.warning("%s cannot be locked (%s): make sure that no second run uses it.", folder, e.strerror)
            return
    file.truncate(0)
    file.write(f"process {os.getpid()} on {host}, started {datetime.now():%Y-%m-%d %H:%M:%S}")
    file.flush()
