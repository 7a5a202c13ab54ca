"""TensorBoard event files.

TensorBoard's own writer hands records to a thread, which a full disk kills. Here the caller writes each row atomically,
in the format of TensorBoard's `RecordWriter`.
"""

from __future__ import annotations

import io
import logging
import os
import socket
import time
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from drqv2.logging.sinks import FileSink
from drqv2.logging.sinks.clips import gif
from drqv2.system.files import Appender

_log = logging.getLogger(__name__)

_Row = list[Any]  # frame, points as [tag, value], clips as [tag, path]


class EventFiles(FileSink):
    """Writes event files to `folder`, starting with the first point. While the disk is full, rows are kept for later.

    Args:
        folder: created if missing.
        hparams: hyper-parameters for the HPARAMS page: numbers and strings by dotted name.
    """

    name = "TensorBoard"

    def __init__(self, folder: Path, hparams: Mapping[str, Any] | None = None) -> None:
        super().__init__("TensorBoard's file")
        self.folder = folder
        self.frame: int | None = None  # of the last rows written
        self.newest: list[_Row] = []  # the rows at that frame
        self._hparams = hparams or {}

    def write(self, points: Mapping[str, float], frame: int) -> None:
        self._write([frame, [list(point) for point in points.items()], []])

    def video(self, tag: str, path: Path, frame: int) -> None:
        self._write([frame, [], [[tag, str(path.resolve().relative_to(self.folder.resolve().parent))]]])

    def _write(self, row: _Row) -> None:
        self._unwritten.append(row)
        self._flush()

    def _flush(self) -> None:
        new = self._file is None
        try:
            if self._file is None:
                self._file = Appender(self._next_path(), ".tfevents")
            rows = [*(self.newest if new else []), *self._unwritten]
            header = self._header(rows[0][0]) if new else []
            self._file.append(_records([*header, *(event for row in rows for event in self._events(row))]))
        except OSError as e:
            if new:
                self._close_file()
            self._warn(e)
            return
        for row in self._unwritten:
            self.newest = [*(self.newest if row[0] == self.frame else []), row]
            self.frame = row[0]
        self._unwritten = []

    def _next_path(self) -> Path:
        """Return the path of a new file that sorts after the existing ones: TensorBoard reads them in that order."""
        self.folder.mkdir(parents=True, exist_ok=True)
        parts = [path.name.split(".")[3] for path in self.folder.glob("events.out.tfevents.*")]
        stamp = max([int(time.time()), *(int(number) + 1 for number in parts if number.isdecimal())])
        return self.folder / f"events.out.tfevents.{stamp:010d}.{socket.gethostname()}.{os.getpid()}"

    def _header(self, frame: int) -> list[Any]:
        """Return the first events of a file, which make TensorBoard drop all points of older files from `frame` on."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from torch.utils.tensorboard.summary import hparams

        now = time.time()
        start = SessionLog(status=SessionLog.START)
        events = [
            Event(wall_time=now, file_version="brain.Event:2"),
            Event(wall_time=now, step=frame, session_log=start),
        ]
        if self._hparams and not self.newest:  # once per run
            values = {k: v if type(v) in (int, float) else str(v) for k, v in self._hparams.items()}
            summaries = hparams(values, {"eval/episode_reward": 0.0})
            events += [Event(wall_time=now, step=frame, summary=summary) for summary in summaries]
        return events

    def _events(self, row: _Row) -> list[Any]:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        frame, points, clips = row
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in points]
        for tag, path in clips:
            try:
                video = (self.folder.parent / path).resolve()
                if not video.is_relative_to(self.folder.parent.resolve()):  # the path may come from a snapshot
                    raise ValueError("it is outside the run's directory")
                data, (height, width) = gif(video)
            except Exception as error:  # for a damaged or deleted file, decoders raise anything
                _log.warning("TensorBoard skips %s (%s: %s).", path, type(error).__name__, error)
                continue
            image = Summary.Image(height=height, width=width, colorspace=3, encoded_image_string=data)
            values.append(Summary.Value(tag=tag, image=image))
        return [Event(wall_time=time.time(), step=frame, summary=Summary(value=[value])) for value in values]

    def state_dict(self) -> dict[str, Any]:
        self._sync()
        return deepcopy({"frame": self.frame, "newest": self.newest, "unwritten": self._unwritten})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._close_file()
        self.frame = state["frame"]
        self.newest, self._unwritten = deepcopy(state["newest"]), deepcopy(state["unwritten"])


def _records(events: list[Any]) -> bytes:
    from tensorboard.summary.writer.record_writer import RecordWriter

    buffer = io.BytesIO()
    writer = RecordWriter(buffer)
    for event in events:
        writer.write(event.SerializeToString())
    return buffer.getvalue()
