"""One `log()` in front of CSV files, the console and TensorBoard.

Values are averaged between two dumps. A dump writes one row to `train.csv` or `eval.csv`, one line to the
console and one TensorBoard point for each key, all placed at the dump's frame.
"""

from __future__ import annotations

import csv
import datetime
import errno
import io
import logging
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from drqv2 import files
from drqv2.errors import UserError
from drqv2.files import FULL, persist, quarantine, write_atomically

_log = logging.getLogger(__name__)

# (column, console label, kind): the console shows exactly these, and every CSV file begins with them.
_TRAIN_FORMAT = (
    ("frame", "F", "int"),
    ("step", "S", "int"),
    ("episode", "E", "int"),
    ("episode_length", "L", "int"),
    ("episode_reward", "R", "float"),
    ("buffer_size", "BS", "int"),
    ("fps", "FPS", "float"),
    ("total_time", "T", "time"),
)
_FORMATS = {
    "train": _TRAIN_FORMAT,
    "eval": tuple(entry for entry in _TRAIN_FORMAT if entry[0] not in ("buffer_size", "fps")),
}
_INTEGER_COLUMNS = frozenset(name for name, _, kind in _TRAIN_FORMAT if kind == "int")
_SHOW: dict[str, Callable[[float], object]] = {
    "int": int,
    "float": "{:.4f}".format,
    "time": lambda seconds: datetime.timedelta(seconds=int(seconds)),
}
_COLOURS = {"train": "\033[33m", "eval": "\033[32m"}


def _cell(column: str, value: float) -> str:
    """Text of a number that reads back as that very number; counters without a decimal point."""
    if column in _INTEGER_COLUMNS and float(value).is_integer():
        return str(int(value))
    return repr(float(value))


class _Meter:
    """Running mean. A tensor is added on its own device: nothing waits for it before `total` is read."""

    def __init__(self, total: float = 0.0, count: int = 0) -> None:
        self._total: float | torch.Tensor = total
        self.count = count

    def update(self, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            dtype = torch.float32 if value.device.type == "mps" else torch.float64  # MPS knows no float64
            self._total = self._total + value.detach().to(dtype).reshape(())
        else:
            self._total = self._total + float(value)
        self.count += 1

    @property
    def total(self) -> float:
        return float(self._total)

    @property
    def mean(self) -> float:
        return self.total / self.count


class _Table:
    """A CSV file that only grows: by rows (appended, flushed) and by columns (the file is replaced as a whole)."""

    def __init__(self, path: Path, columns: list[str]) -> None:
        self.path = path
        self.columns = columns
        self.rows = 0
        self._file: io.TextIOWrapper | None = None

    def append(self, values: Mapping[str, float]) -> None:
        rows = [] if self._file is not None else self._read()
        if rows and self.rows == 0:
            # An earlier run left this file and nothing was restored: what it wrote from here on is superseded.
            found, rows = len(rows), [row for row in rows if _frame(row) < values["frame"]]
            _log.warning("%s of an earlier run: %d of %d rows replaced.", self.path, found - len(rows), found)
            self.columns = list(dict.fromkeys([*self.columns, *(rows[0] if rows else ())]))
        new = sorted(set(values) - set(self.columns))
        if new or self._file is None:
            rows = rows if self._file is None else self._read()
            self.columns = [*self.columns, *new]
            self._replace(rows)
            self._file = self.path.open("a", newline="", encoding="utf-8")
        line = _csv_line([_cell(name, values[name]) if name in values else "" for name in self.columns])
        persist(lambda: self._append(line), str(self.path))
        self.rows += 1

    def _append(self, line: str) -> None:
        assert self._file is not None
        end, data = os.fstat(self._file.fileno()).st_size, line.encode()
        try:
            if os.write(self._file.fileno(), data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            files.boundary(".csv: row written")
        except OSError:
            os.ftruncate(self._file.fileno(), end)  # no half a row
            raise

    def text(self) -> str:
        """Return the whole file, brought to the disk: a snapshot never counts rows that a power cut can take away."""
        if self._file is not None:
            os.fsync(self._file.fileno())
        return self.path.read_text("utf-8") if self.rows else ""

    def restore(self, columns: list[str], rows: int, text: str) -> None:
        """Cut the file back to `text`, which held `rows` rows under `columns`; a damaged one is made anew from it."""
        self.close()
        self.columns, self.rows = columns, rows
        try:
            found = self.path.read_bytes() if self.path.exists() else b""
        except OSError as e:
            raise UserError(f"{self.path}: cannot be read ({e.strerror})") from e
        if found == text.encode():
            return
        if found and self._cut_back(rows) != text:
            quarantine(self.path, self.path.parent, "is not what was logged; it is made anew from the snapshot")
        if text:
            persist(lambda: write_atomically(self.path, text.encode()), str(self.path))
        else:
            self.path.unlink(missing_ok=True)

    def _cut_back(self, rows: int) -> str | None:
        """Return the file's first rows under `columns`, None if it cannot be read."""
        try:
            found = self._read()[:rows]
        except csv.Error:
            return None
        return self._lines(found) if rows else ""

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _replace(self, rows: list[dict[str, str]]) -> None:
        """Write the file anew with these rows under `columns`; a kill leaves the old or the new file."""
        self.close()
        persist(lambda: write_atomically(self.path, self._lines(rows).encode()), str(self.path))
        self.rows = len(rows)

    def _lines(self, rows: list[dict[str, str]]) -> str:
        cells = ([row.get(name) or "" for name in self.columns] for row in rows)
        return "".join(map(_csv_line, [self.columns, *cells]))

    def _read(self) -> list[dict[str, str]]:
        if not self.path.exists():
            return []
        with self.path.open(newline="", encoding="utf-8", errors="replace") as file:
            lines = list(file)
        if lines and not lines[-1].endswith("\n"):
            lines.pop()  # a kill came while this row was being written
        return list(csv.DictReader(lines, restval=""))


def _frame(row: Mapping[str, str]) -> float:
    try:
        return float(row.get("frame") or 0)
    except ValueError:
        return float("inf")  # damaged: it goes


def _csv_line(cells: list[str]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerow(cells)
    return buffer.getvalue()


class _TensorBoard:
    """Event files in `folder`, opened with the first point; a failure is told once and ends the writing."""

    def __init__(self, folder: Path, enabled: bool) -> None:
        self.folder = folder
        self.frame: int | None = None  # of the newest points that are written
        self.newest: list[tuple[str, float]] = []  # the points at that frame
        self.unwritten: list[tuple[int, list[tuple[str, float]]]] = []  # later ones, by frame: the disk was full
        self._told = False
        self._enabled = enabled
        self._writer: Any = None

    def write(self, points: Mapping[str, float], frame: int) -> None:
        if not self._enabled:
            return
        self.unwritten.append((frame, list(points.items())))
        rows = list(self.unwritten)
        try:
            if self._writer is None:
                from torch.utils.tensorboard import SummaryWriter

                if self.frame is not None:
                    rows.insert(0, (self.frame, self.newest))
                # Readers forget what older files hold from purge_step on: the points of that very frame come again.
                self._writer = SummaryWriter(str(self.folder), purge_step=rows[0][0])
            for at, row in rows:
                for tag, value in row:
                    self._writer.add_scalar(tag, value, at)
            self._writer.flush()
        except Exception as error:  # a broken tensorboard install fails in many ways, none worth a training run
            if isinstance(error, OSError) and error.errno in FULL:
                if not self._told:
                    _log.warning("TensorBoard's file cannot be written (%s); the next row tries again.", error)
                self._told = True
                self.close()
                return
            self._enabled = False
            reason = f"{type(error).__name__}: {error}"
            _log.warning("TensorBoard is off from here on, the CSV files go on (%s).", reason)
        for at, row in self.unwritten:
            self.newest = [*(self.newest if at == self.frame else []), *row]
            self.frame = at
        self.unwritten.clear()

    def state_dict(self) -> dict[str, Any]:
        return {"frame": self.frame, "newest": _lists(self.newest), "unwritten": _lists(self.unwritten)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.close()
        self.frame = state["frame"]
        self.newest = [(tag, value) for tag, value in state["newest"]]
        self.unwritten = [(at, [(tag, value) for tag, value in row]) for at, row in state["unwritten"]]

    def close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            try:
                writer.close()
            except OSError as error:
                _log.warning("TensorBoard's file cannot be closed (%s).", error)


def _lists(value: Any) -> Any:
    """Return nested tuples as lists, copied."""
    return [_lists(item) for item in value] if isinstance(value, list | tuple) else value


class Logger:
    """Logs of one run: `train.csv` and `eval.csv`, console lines, TensorBoard events in `tb/`.

    Columns begin with the public ones (frame, step, episode, ...); others follow as they come, and rows written
    before a column was known are empty there. Numbers read back exactly.

    Args:
        log_dir: Folder of the run; made when missing.
        use_tb: Whether to write TensorBoard events. Without a working tensorboard, one warning says so.
    """

    def __init__(self, log_dir: str | Path, use_tb: bool) -> None:
        self._log_dir = Path(log_dir)
        self._log_dir.mkdir(parents=True, exist_ok=True)
        self._meters: dict[str, _Meter] = {}
        self._tables = {
            ty: _Table(self._log_dir / f"{ty}.csv", [name for name, _, _ in entries])
            for ty, entries in _FORMATS.items()
        }
        self._tensorboard = _TensorBoard(self._log_dir / "tb", use_tb)

    def log(self, key: str, value: float | torch.Tensor, frame: int) -> None:
        """Add a value to the mean that the next dump writes.

        Args:
            key: `train/NAME` or `eval/NAME`.
            value: A number or a tensor of one element; a tensor is not read (no synchronisation) before the dump.
            frame: Environment frame of the value. The dump's frame is what is written.

        Raises:
            ValueError: The key has neither prefix, or a tensor has several elements.
        """
        if key.partition("/")[0] not in self._tables or key.partition("/")[2] == "":
            raise ValueError(f"log key {key!r} must be train/NAME or eval/NAME")
        if isinstance(value, torch.Tensor) and value.numel() != 1:
            raise ValueError(f"{key} is a tensor of shape {tuple(value.shape)}; log one number, such as its mean()")
        self._meters.setdefault(key, _Meter()).update(value)

    def log_metrics(self, metrics: Mapping[str, float | torch.Tensor], frame: int, ty: str) -> None:
        """Log each metric under `ty` ("train" or "eval")."""
        for name, value in metrics.items():
            self.log(f"{ty}/{name}", value, frame)

    def dump(self, frame: int, ty: str | None = None) -> None:
        """Write the means since the last dump; without values there is no row.

        Args:
            frame: Environment frames so far.
            ty: "train", "eval", or None for both.
        """
        for prefix in self._tables if ty is None else (ty,):
            points = {key: meter.mean for key, meter in self._meters.items() if key.startswith(f"{prefix}/")}
            if not points:
                continue
            for key in points:
                del self._meters[key]
            row = {key.partition("/")[2].replace("/", "_"): value for key, value in points.items()} | {"frame": frame}
            self._tables[prefix].append(row)
            self._tensorboard.write(points, frame)
            self._print(prefix, row)

    @contextmanager
    def log_and_dump_ctx(self, frame: int, ty: str) -> Iterator[Callable[[str, float | torch.Tensor], None]]:
        """`with logger.log_and_dump_ctx(frame, "train") as log: log("fps", fps)` logs, then dumps at the end."""
        yield lambda key, value: self.log(f"{ty}/{key}", value, frame)
        self.dump(frame, ty)

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers, strings and containers: each file's text, undumped means, newest points."""
        return {
            "texts": {ty: table.text() for ty, table in self._tables.items()},
            "rows": {ty: table.rows for ty, table in self._tables.items()},
            "columns": {ty: list(table.columns) for ty, table in self._tables.items()},
            "meters": {key: [meter.total, meter.count] for key, meter in self._meters.items()},
            "tensorboard": self._tensorboard.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go back to `state`: CSV rows and columns that came after it are cut, TensorBoard forgets later points."""
        for ty, table in self._tables.items():
            table.restore(list(state["columns"][ty]), int(state["rows"][ty]), state["texts"][ty])
        self._meters = {key: _Meter(float(total), int(count)) for key, (total, count) in state["meters"].items()}
        self._tensorboard.load_state_dict(state["tensorboard"])

    def not_finite_loss(self) -> str | None:
        """Return the name of a loss whose mean since the last dump is NaN or infinite, or None.

        A sum that one such value went into stays NaN or infinite: the sums are flags on the losses' device.
        """
        losses = (key for key in self._meters if key.startswith("train/") and "loss" in key)
        return next((key.partition("/")[2] for key in losses if not math.isfinite(self._meters[key].total)), None)

    def close(self) -> None:
        """Close all files; a later dump opens them again."""
        for table in self._tables.values():
            table.close()
        self._tensorboard.close()

    @staticmethod
    def _print(ty: str, row: Mapping[str, float]) -> None:
        colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        name = f"{_COLOURS[ty]}{ty}\033[0m" if colour else ty
        pieces = [f"| {name}{' ' * (5 - len(ty))}"]
        for column, label, kind in _FORMATS[ty]:
            if column in row:
                pieces.append(f"{label}: {_SHOW[kind](row[column])}")
        print(" | ".join(pieces), flush=True)
