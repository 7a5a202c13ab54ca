"""TensorBoard event files.

TensorBoard's own writer hands records to a thread, which a full disk kills. Here the caller writes each row atomically,
in the format of TensorBoard's `RecordWriter`.
"""

from __future__ import annotations

import io
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from drqv2.logging.sinks import FileSink
from drqv2.system.files import Appender

_Row = list[Any]  # frame, points as [tag, value]


class EventFiles(FileSink):
    """Writes event files to `folder`, a new one for each start of the run. The first point creates it.

    Args:
        folder: created if missing.
        hparams: hyper-parameters for the HPARAMS page: numbers and strings by dotted name.
    """

    name = "TensorBoard"

    def __init__(self, folder: Path, hparams: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        # TensorBoard reads files in the order of their names.
        self._path = folder / f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}"
        self._newest: list[_Row] = []  # the rows written at the last frame
        self._hparams = hparams or {}

    def write(self, points: Mapping[str, float], frame: int) -> None:
        self._write([frame, [list(point) for point in points.items()]])

    def video(self, tag: str, path: Path, frame: int) -> None: ...  # TensorBoard cannot show mp4 files

    def _append_unwritten(self) -> None:
        rows = [*self._newest, *self._unwritten]
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = Appender(self._path, ".tfevents")
            self._file.append(_records([*self._first_events(rows[0][0]), *_events(rows)]))
        else:
            self._file.append(_records(_events(self._unwritten)))
        self._newest = [row for row in rows if row[0] == rows[-1][0]]

    def _first_events(self, frame: int) -> list[Any]:
        """Return events that make TensorBoard drop all points of older files from `frame` on."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from torch.utils.tensorboard.summary import hparams

        start = Event(step=frame, session_log=SessionLog(status=SessionLog.START))
        if self._newest or not self._hparams:  # written once per run
            return [Event(file_version="brain.Event:2"), start]
        values = {k: v if type(v) in (int, float) else str(v) for k, v in self._hparams.items()}
        summaries = hparams(values, {"eval/episode_reward": 0.0})
        return [Event(file_version="brain.Event:2"), start, *(Event(step=frame, summary=s) for s in summaries)]

    def state_dict(self) -> dict[str, Any]:
        self._flush(sync=True)
        return {"newest": list(self._newest), "unwritten": list(self._unwritten)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._close_file()
        self._newest, self._unwritten = list(state["newest"]), list(state["unwritten"])


def _events(rows: list[_Row]) -> list[Any]:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    return [
        Event(step=frame, summary=Summary(value=[Summary.Value(tag=tag, simple_value=value)]))
        for frame, points in rows
        for tag, value in points
    ]


def _records(events: list[Any]) -> bytes:
    from tensorboard.summary.writer.record_writer import RecordWriter

    buffer = io.BytesIO()
    writer = RecordWriter(buffer)
    for event in events:
        event.wall_time = time.time()
        writer.write(event.SerializeToString())
    return buffer.getvalue()
