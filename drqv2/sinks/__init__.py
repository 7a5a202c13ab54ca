"""Where a run's figures go beside its CSV files. A sink that fails is dropped with a warning; the run goes on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol


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
