"""Files that are whole or not there, and snapshots that load without running any code."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path
from typing import Any

import torch

from drqv2.errors import UserError

VERSION = 2


def write_atomically(path: Path, data: bytes) -> None:
    """Write `data` to `path` so that the file there is either the old one or the whole new one, also after a crash.

    A temporary name in the same folder, flush, fsync, rename, fsync of the folder.

    Args:
        path: file to make or replace; its folder must be there.
        data: the whole content.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as f:
            f.write(data)
            f.flush()
            os.fsync(f.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def save(path: Path, state: dict[str, Any]) -> None:
    """Write a snapshot atomically.

    Args:
        path: where it goes.
        state: nested dicts and lists of tensors, numbers, strings and None.
    """
    for left in path.parent.glob(f".{path.name}.*.tmp"):
        left.unlink()  # by a process that was killed while it wrote
    buffer = io.BytesIO()
    torch.save({"version": VERSION, **state}, buffer)
    write_atomically(path, buffer.getvalue())


def load(path: Path) -> dict[str, Any]:
    """Read a snapshot with torch's restricted unpickler, tensors on the CPU.

    torch writes a zip archive with checksums but does not look at them when it reads, so that is done here.

    Raises:
        UserError: the file is not a snapshot, is damaged, or is of another version.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            if damaged := archive.testzip():
                raise zipfile.BadZipFile(f"the checksum of {damaged} is wrong")
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as e:  # a damaged file raises many kinds
        reason = str(e).strip().splitlines()[0] if str(e).strip() else type(e).__name__
        raise UserError(f"{path}: not a whole snapshot ({reason[:120]})") from e
    if not isinstance(state, dict) or state.get("version") != VERSION:
        got = state.get("version") if isinstance(state, dict) else type(state).__name__
        raise UserError(f"{path}: snapshot version {got!r}, this program reads version {VERSION}")
    return state
