"""train.csv and eval.csv: one row for every dump of the logger."""

from __future__ import annotations

import csv
import io
import logging
from collections.abc import Mapping
from pathlib import Path

from drqv2.errors import UserError
from drqv2.system.files import Appender, quarantine, retry_on_full_disk, write_atomically

_log = logging.getLogger(__name__)

_INTEGER_COLUMNS = frozenset("frame step episode episode_length buffer_size".split())


class CsvTable:
    """A CSV file that grows by rows (appended and flushed) and by columns (the file is replaced atomically).

    Its text is also kept in memory, so that damage to the file during a run does not reach a snapshot.
    """

    def __init__(self, path: Path, columns: list[str]) -> None:
        self.path = path
        self.columns = columns
        self.rows = 0
        self._texts: list[str] = []  # the file's text, in pieces
        self._file: Appender | None = None

    def append(self, values: Mapping[str, float]) -> None:
        earlier = [] if self._file is not None or self.rows else self._rows_of_earlier_run(values["frame"])
        new = sorted(set(values) - set(self.columns))
        if new or self._file is None:
            rows = _rows("".join(self._texts)) if self.rows else earlier
            self.columns = [*self.columns, *new]
            self._replace(rows)
            self._file = Appender(self.path)
        line = _csv_line([_cell(name, values[name]) if name in values else "" for name in self.columns])
        file = self._file
        retry_on_full_disk(lambda: file.append(line.encode()), str(self.path))
        self._texts.append(line)
        self.rows += 1

    def text(self) -> str:
        """Flush the file to disk and return its text. A snapshot must not count rows that a power cut could lose."""
        if self._file is not None:
            self._file.sync()
        self._texts = ["".join(self._texts)]
        return self._texts[0]

    def restore(self, columns: list[str], rows: int, text: str) -> None:
        """Restore the file to `text`, which has `rows` rows under `columns`. A damaged file is quarantined."""
        self.close()
        self.columns, self.rows, self._texts = columns, rows, [text]
        found = self._read()
        if found == text.encode():
            return
        kept = _rows(found.decode("utf-8", "replace"))[:rows]
        if found and (self._lines(kept) if rows else "") != text:
            quarantine(self.path, self.path.parent, "does not match what was logged; restored from the snapshot")
        elif not found:
            lost = "empty" if self.path.exists() else "missing"
            _log.warning("%s is %s; restored from the snapshot.", self.path, lost)
        if text:
            retry_on_full_disk(lambda: write_atomically(self.path, text.encode()), str(self.path))
        else:
            self.path.unlink(missing_ok=True)

    def _read(self) -> bytes:
        try:
            return self.path.read_bytes() if self.path.exists() else b""
        except OSError as e:
            raise UserError(f"{self.path}: cannot be read ({e.strerror})") from e

    def _rows_of_earlier_run(self, frame: float) -> list[dict[str, str]]:
        """Return the rows before `frame` of an earlier run in this directory; later rows are superseded."""
        found = self._read().decode("utf-8", "replace")
        if not found:
            return []
        rows = _rows(found)
        if rows and not rows[0].keys() >= set(self.columns):
            quarantine(self.path, self.path.parent, "is not a log of this project")
            return []
        kept = [row for row in rows if _frame(row) < frame]
        _log.warning("%s of an earlier run: %d of %d rows replaced.", self.path, len(rows) - len(kept), len(rows))
        self.columns = list(dict.fromkeys([*self.columns, *(rows[0] if rows else ())]))
        return kept

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _replace(self, rows: list[dict[str, str]]) -> None:
        """Atomically rewrite the file with these rows under `columns`."""
        self.close()
        text = self._lines(rows)
        retry_on_full_disk(lambda: write_atomically(self.path, text.encode()), str(self.path))
        self.rows, self._texts = len(rows), [text]

    def _lines(self, rows: list[dict[str, str]]) -> str:
        cells = ([row.get(name) or "" for name in self.columns] for row in rows)
        return "".join(map(_csv_line, [self.columns, *cells]))


def _rows(text: str) -> list[dict[str, str]]:
    """Return the rows of a file without a last line that was only partly written; one empty row for no CSV file."""
    lines = text.splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines.pop()
    try:
        return list(csv.DictReader(lines, restval=""))
    except csv.Error:
        return [{}]


def _frame(row: Mapping[str, str]) -> float:
    try:
        return float(row.get("frame") or 0)
    except ValueError:
        return float("inf")  # damaged: the row is dropped


def _csv_line(cells: list[str]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerow(cells)
    return buffer.getvalue()


def _cell(column: str, value: float) -> str:
    """Return the shortest text that reads back as exactly this number; counters have no decimal point."""
    if column in _INTEGER_COLUMNS and float(value).is_integer():
        return str(int(value))
    return repr(float(value))
