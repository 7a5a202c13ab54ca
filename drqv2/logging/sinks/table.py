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
        self.rows: list[str] = []  # lines of text below the header
        self._file: Appender | None = None

    def append(self, values: Mapping[str, float]) -> None:
        if self._file is None and not self.rows:
            self._discard_earlier_run()
        new = sorted(set(values) - set(self.columns))
        if new or self._file is None:
            self.close()
            self.columns = [*self.columns, *new]
            self.rows = [row.removesuffix("\n") + "," * len(new) + "\n" for row in self.rows]
            self._replace(_line(self.columns) + "".join(self.rows))
            self._file = Appender(self.path)
        file, row = self._file, _line([_cell(name, values.get(name)) for name in self.columns])
        retry_on_full_disk(lambda: file.append(row.encode()), str(self.path))
        self.rows.append(row)

    def text(self) -> str:
        """Flush the file to disk and return its text. A snapshot must not count rows that a power cut could lose."""
        if self._file is None and not self.rows:
            return ""
        if self._file is not None:
            self._file.sync()
        return _line(self.columns) + "".join(self.rows)

    def restore(self, columns: list[str], text: str) -> None:
        """Restore the file to `text`, which has these columns. A file that does not begin with it is quarantined."""
        self.close()
        header = _line(columns)
        self.columns, self.rows = columns, text[len(header) :].splitlines(keepends=True)
        found = self._read()
        later_column = found.startswith(header.removesuffix("\n") + ",")
        if found and not found.startswith(text) and not later_column:
            quarantine(self.path, self.path.parent, "does not match what was logged; restored from the snapshot")
        if text:
            self._replace(text)
        else:
            self.path.unlink(missing_ok=True)

    def values(self) -> list[dict[str, float]]:
        """Return the rows as numbers by column, without empty cells."""
        rows = csv.reader(self.rows)
        return [{name: float(cell) for name, cell in zip(self.columns, row, strict=True) if cell} for row in rows]

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _discard_earlier_run(self) -> None:
        """Make way for the first row: a run that was killed before its first snapshot starts again."""
        found = self._read()
        if found.startswith(",".join(self.columns)):
            _log.warning("%s of an earlier run in this directory is replaced.", self.path)
        elif found:
            quarantine(self.path, self.path.parent, "is not a log of this project")

    def _read(self) -> str:
        try:
            return self.path.read_bytes().decode("utf-8", "replace") if self.path.exists() else ""
        except OSError as e:
            raise UserError(f"{self.path}: cannot be read ({e.strerror})") from e

    def _replace(self, text: str) -> None:
        retry_on_full_disk(lambda: write_atomically(self.path, text.encode()), str(self.path))


def _line(cells: list[str]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerow(cells)
    return buffer.getvalue()


def _cell(column: str, value: float | None) -> str:
    """Return the shortest text that reads back as exactly this number; counters have no decimal point."""
    if value is None:
        return ""
    if column in _INTEGER_COLUMNS and float(value).is_integer():
        return str(int(value))
    return repr(float(value))
