"""metrics.jsonl: one JSON object per line for every dump of the logger."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from drqv2.logging.sinks import FileSink
from drqv2.system.files import Appender, quarantine

_log = logging.getLogger(__name__)


class JsonLines(FileSink):
    """Writes lines such as {"frame": 1000, "train/episode_reward": 53.0} to a file that the first line creates.

    NaN and infinity, which JSON lacks, are written as the strings "nan", "inf" and "-inf".
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.name = path.name
        self.path = path
        self._size = 0  # bytes written
        self._digest = hashlib.sha256()  # of the bytes written

    def write(self, points: Mapping[str, float], frame: int) -> None:
        values = {key: value if math.isfinite(value) else str(value) for key, value in points.items()}
        self._write(json.dumps({"frame": frame} | values) + "\n")

    def video(self, tag: str, path: Path, frame: int) -> None:
        self._write(json.dumps({"frame": frame, tag: path.name}) + "\n")

    def _append_unwritten(self) -> None:
        if self._file is None:
            self._file = Appender(self.path)
            if self.path.stat().st_size < self._size:  # deleted meanwhile
                self._size, self._digest = 0, hashlib.sha256()
            self._file.truncate(self._size)  # drops lines of an earlier start that had no snapshot
        data = "".join(self._unwritten).encode()
        self._file.append(data)
        self._size += len(data)
        self._digest.update(data)

    def state_dict(self) -> dict[str, Any]:
        self._flush(sync=True)
        return {"size": self._size, "sha256": self._digest.hexdigest(), "unwritten": list(self._unwritten)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._close_file()
        found = self.path.read_bytes()[: state["size"]] if self.path.exists() else b""
        self._digest, self._size = hashlib.sha256(found), len(found)
        self._unwritten = list(state["unwritten"])
        if self._digest.hexdigest() != state["sha256"]:
            if self.path.exists():
                quarantine(self.path, self.path.parent, "does not match what was logged; the CSV files hold the same")
            else:
                _log.warning("%s is missing; a new one is started. The CSV files hold the same values.", self.path)
            self._digest, self._size = hashlib.sha256(), 0
        elif self.path.exists():
            os.truncate(self.path, self._size)
