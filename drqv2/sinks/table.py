"""A CSV file with a row for each dump of the logger: a run's record."""

from __future__ import annotations

import csv
import io
import logging
from collections.abc import Mapping
from pathlib import Path

from drqv2.errors import UserError
from drqv2.files import Appender, persist, quarantine, write_atomically

_log = logging.getLogger(__name__)

_INTEGER_COLUMNS = frozenset("frame step episode episode_length buffer_size".split())


class CsvTable:
    """A CSV file that only grows: by rows (appended, flushed) and by columns (the file is replaced as a whole)."""

    def __init__(self, path: Path, columns: list[str]) -> None:
        self.path = path
        self.columns = columns
        self.rows = 0
        self._file: Appender | None = None

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
            self._file = Appender(self.path)
        line = _csv_line([_cell(name, values[name]) if name in values else "" for name in self.columns])
        file = self._file
        persist(lambda: file.append(line.encode()), str(self.path))
        self.rows += 1

    def text(self) -> str:
        """Return the whole file, brought to the disk: a snapshot never counts rows that a power cut can take away."""
        if self._file is not None:
            self._file.sync()
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


def _cell(column: str, value: float) -> str:
    """Text of a number that reads back as that very number; counters without a decimal point."""
    if column in _INTEGER_COLUMNS and float(value).is_integer():
        return str(int(value))
    return repr(float(value))
