"""Where metrics go besides the CSV files. A sink that fails is dropped with a warning; the run continues."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from drqv2.system.files import DISK_ERRNOS, Appender

_log = logging.getLogger(__name__)


class Sink(Protocol):
    """Receives the logger's dumps. Any method may raise; the logger then drops the sink."""

    name: str  # identifies the sink in messages and snapshots

    def write(self, points: Mapping[str, float], frame: int) -> None:
        """Write the means of one dump, by `train/NAME` or `eval/NAME`, at environment frame `frame`."""

    def video(self, tag: str, path: Path, frame: int) -> None:
        """Write a finished mp4."""

    def state_dict(self) -> dict[str, Any]:
        """Flush to disk and return the state as plain numbers, strings and lists."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Drop everything written after `state`."""

    def close(self) -> None:
        """Close files and connections."""


class FileSink:
    """Base of a sink that appends to one file. While the disk is full, rows are kept for later, after one warning."""

    name: str

    def __init__(self) -> None:
        self._warned = False
        self._file: Appender | None = None
        self._unwritten: list[Any] = []  # rows kept while the disk is full

    def _append_unwritten(self) -> None:
        """Append the unwritten rows to the file; open it if it is not open."""
        raise NotImplementedError

    def _write(self, row: Any) -> None:
        self._unwritten.append(row)
        self._flush()

    def _flush(self, sync: bool = False) -> None:
        try:
            if self._unwritten:
                self._append_unwritten()
                self._unwritten = []
            if sync and self._file is not None:
                self._file.sync()
        except OSError as error:
            self._close_file()  # the next row opens it again
            if error.errno not in DISK_ERRNOS:
                raise
            if not self._warned:
                _log.warning("%s cannot be written (%s); retrying with the next row.", self.name, error.strerror)
            self._warned = True

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def close(self) -> None:
        self._flush()
        self._close_file()
