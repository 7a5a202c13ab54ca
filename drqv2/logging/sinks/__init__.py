"""Where a run's figures go beside its CSV files. A sink that fails is dropped with a warning; the run goes on."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from drqv2.system.files import DISK_ERRNOS

_log = logging.getLogger(__name__)


class Sink(Protocol):
    """Takes what the logger dumps. Any method may raise: the logger then goes on without it."""

    name: str  # in messages and in a snapshot

    def write(self, points: Mapping[str, float], frame: int) -> None:
        """Take the means of one dump, by `train/NAME` or `eval/NAME`, at a number of environment frames."""

    def video(self, tag: str, path: Path, frame: int) -> None:
        """Take a finished mp4."""

    def state_dict(self) -> dict[str, Any]:
        """Return plain numbers, strings and lists; what is written so far is on the disk."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Forget what was written after `state`."""

    def close(self) -> None:
        """Close files and connections."""


class FullDisk:
    """Takes the errors of a sink that keeps what it cannot write for later.

    Args:
        what: is written, in messages.
    """

    def __init__(self, what: object) -> None:
        self._what = what
        self._told = False

    def tell(self, error: OSError) -> None:
        """Say, the first time, that the disk is full.

        Raises:
            OSError: `error` is another one.
        """
        if error.errno not in DISK_ERRNOS:
            raise error
        if not self._told:
            _log.warning("%s cannot be written (%s); the next row tries again.", self._what, error.strerror)
        self._told = True
