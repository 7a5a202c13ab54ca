"""Snapshot files: a torch archive that ends in its own checksum and loads without running any code."""

from __future__ import annotations

import hashlib
import io
import struct
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

import torch
from torch import Tensor

from drqv2.errors import UserError
from drqv2.system.files import replacing

VERSION = 10
# torch writes a zip archive, whose last field is the length of a comment; the comment is the checksum of all that is
# before it, that field taken as it was written: 0.
_NO_COMMENT = struct.pack("<H", 0)
_MARK = struct.pack("<H", len(b"sha256:") + 64) + b"sha256:"


def save(path: Path, state: dict[str, Any], keep: Path | None = None) -> None:
    """Write a snapshot atomically: after a crash there is either the old or the complete new one.

    Args:
        path: where it goes.
        state: nested dicts and lists of tensors, numbers, strings and None.
        keep: where the old one goes.

    Raises:
        OSError: it cannot be written; the old one is still there.
    """
    with replacing(path, keep) as f:
        _write(f, {"version": VERSION, **state})


def _write(file: BinaryIO, content: Any) -> None:
    hashing = _Hashing(file)
    try:
        torch.save(content, cast("IO[bytes]", hashing))
    except RuntimeError as e:  # torch's own, when a write fails
        raise hashing.error or e from e
    file.seek(-len(_NO_COMMENT), io.SEEK_END)
    file.write(_MARK + hashing.hash.hexdigest().encode())


class _Hashing(io.RawIOBase):
    """Writes through to a file and hashes what it writes, without a copy in memory."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__()
        self.hash = hashlib.sha256()
        self.error: OSError | None = None
        self._file = file

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.hash.update(data)
        try:
            return self._file.write(data)
        except OSError as e:
            self.error = e
            raise


def load(path: Path) -> dict[str, Any]:
    """Read a snapshot with torch's restricted unpickler, tensors on the CPU, once its checksum matches.

    Raises:
        UserError: the file is not a snapshot, is damaged, or is of another version.
    """
    try:
        data = path.read_bytes()
    except OSError as e:
        raise UserError(f"{path}: cannot be read ({e.strerror})") from e
    size = len(_MARK) + 64
    archive, end = data[:-size] + _NO_COMMENT, data[-size:]
    if not end.startswith(_MARK):
        raise UserError(f"{path}: not a complete snapshot of version {VERSION} (no checksum at its end)")
    if hashlib.sha256(archive).hexdigest().encode() != end[-64:]:
        raise UserError(f"{path}: not a complete snapshot (wrong checksum)")
    try:
        state = torch.load(io.BytesIO(archive), map_location="cpu", weights_only=True)
    except Exception as e:  # the checksum is right, but another program wrote the file: it may raise anything
        reason = str(e).strip().splitlines()[0] if str(e).strip() else type(e).__name__
        raise UserError(f"{path}: not a snapshot ({reason[:120]})") from e
    if not isinstance(state, dict) or state.get("version") != VERSION:
        got = state.get("version") if isinstance(state, dict) else type(state).__name__
        raise UserError(f"{path}: snapshot version {got!r}; only version {VERSION} can be read")
    return state


def copied(state: Any) -> Any:
    """Return a captured state with copies of its tensors, on the CPU: the originals may keep changing."""
    if isinstance(state, Tensor):
        return state.detach().to("cpu", copy=True)
    if isinstance(state, dict):
        return {key: copied(value) for key, value in state.items()}
    if isinstance(state, list):
        return [copied(value) for value in state]
    return state
