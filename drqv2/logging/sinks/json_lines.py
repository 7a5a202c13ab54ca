"""metrics.jsonl: one JSON object per line for every dump of the logger."""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from drqv2.logging.sinks import FileSink
from drqv2.system.files import Appender, quarantine

_log = logging.getLogger(__name__)


class JsonLines(FileSink):
    """Writes lines such as {"frame": 1000, "train/episode_reward": 53.0}. While the disk is full, they are kept.

    NaN and infinity, which JSON lacks, are written as the strings "nan", "inf" and "-inf".

    Args:
        path: created with the first line.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.name = path.name
        self.path = path
        self._size = 0  # bytes written
        self._digest = hashlib.sha256()  # of the bytes written

    def write(self, points: Mapping[str, float], frame: int) -> None:
        values = {key: value if math.isfinite(value) else str(value) for key, value in points.items()}
        self._write({"frame": frame} | values)

    def video(self, tag: str, path: Path, frame: int) -> None:
        self._write({"frame": frame, tag: path.name})

    def _write(self, values: Mapping[str, float | str]) -> None:
        self._unwritten.append(json.dumps(values) + "\n")
        self._flush()

    def _flush(self) -> None:
        data = "".join(self._unwritten).encode()
        try:
            if self._file is None:
                self._file = Appender(self.path)
                if self._size == 0:
                    self._file.truncate(0)  # left by a run that stopped before its first snapshot
            self._file.append(data)
        except OSError as e:
            self._warn(e)
            return
        self._size += len(data)
        self._digest.update(data)
        self._unwritten = []

    def state_dict(self) -> dict[str, Any]:
        self._sync()
        return {"size": self._size, "sha256": self._digest.hexdigest(), "unwritten": list(self._unwritten)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._close_file()
        found = self.path.read_bytes()[: state["size"]] if self.path.exists() else b""
        self._digest = hashlib.sha256(found)
        self._size, self._unwritten = len(found), list(state["unwritten"])
        if self._digest.hexdigest() != state["sha256"]:
            if self.path.exists():
                quarantine(self.path, self.path.parent, "does not match what was logged; the CSV files hold the same")
            else:
                _log.warning("%s is missing; a new one is started. The CSV files hold the same values.", self.path)
            self._digest, self._size = hashlib.sha256(), 0
        elif self.path.exists():
            self._file = Appender(self.path)
            self._file.truncate(self._size)
