"""Where metrics go besides the CSV files. A sink that fails is dropped with a warning; the run continues."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from drqv2.system.files import DISK_ERRNOS

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


class FullDisk:
    """Warns once about a full disk, for a sink that keeps unwritten rows for later.

    Args:
        what: name of the file in messages.
    """

    def __init__(self, what: object) -> None:
        self._what = what
        self._warned = False

    def warn(self, error: OSError) -> None:
        """Log a warning, the first time only.

        Raises:
            OSError: `error`, if it has another cause than the disk.
        """
        if error.errno not in DISK_ERRNOS:
            raise error
        if not self._warned:
            _log.warning("%s cannot be written (%s); retrying with the next row.", self._what, error.strerror)
        self._warned = True
