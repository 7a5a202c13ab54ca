"""The results as they come: summary.md to read, results.json, learning.csv and log.txt."""

from __future__ import annotations

import csv
import json
import os
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.gpu.child import Outcome

FILES = ("summary.md", "results.json", "learning.csv", "log.txt")
CURVE = ("run", "kind", "frame", "episode_reward", "fps", "total_time")
_APPENDED = ("learning.csv", "log.txt")  # the others are replaced
_MOST_ROWS = 500  # of a section
_MOST_BYTES = {"learning.csv": 4_000_000, "log.txt": 1_000_000}  # log.txt: of a section
_LAST_LINES = 12  # of the output of a section that has failed
_LINE = 200  # characters of each
_NO_GPU = (
    "**There is no GPU** that torch can use here. Everything ran on the CPU with small sizes: the figures show that "
    "the measurements work, and nothing about a GPU."
)

_ENDS = {
    "cut": "Cut off after {seconds} seconds, its share of the time.",
    "failed": "Failed with exit status {exit_status} after {seconds} seconds; log.txt has its output, which ends:",
    "stopped": "Stopped from outside after {seconds} seconds.",
}


class Results:
    """Writes the results of sections into a folder. Its files are complete at any time.

    Args:
        folder: exists. Results of an earlier call in it are replaced.
        titles: of all sections, by name and in their order.
        minutes: for all sections together.
    """

    def __init__(self, folder: Path, titles: Mapping[str, str], minutes: float) -> None:
        self.folder = folder
        for name in _APPENDED:
            (folder / name).unlink(missing_ok=True)
        self._sections: dict[str, dict[str, Any]] = {
            name: {"title": title, "status": "not begun", "rows": []} for name, title in titles.items()
        }
        self._head: dict[str, Any] = {"started": _now(), "minutes": minutes, "status": "running"}
        self._keys: dict[str, int] = {}  # places of rows that later ones replace
        self._last: deque[str] = deque(maxlen=_LAST_LINES)
        self._logged = 0
        self._write()

    def begin(self, name: str, seconds: float) -> None:
        """Note that a section begins, which may take this long."""
        self._now = self._sections[name]
        self._now |= {"status": "running", "limit_seconds": round(seconds, 1)}
        self._keys.clear()
        self._last.clear()
        self._logged = 0
        self.log(f"== {name}, up to {seconds:.0f} s, {_now()}")
        self._write()

    def add(self, row: Mapping[str, Any]) -> None:
        """Take what the section prints: {"row": ..., "key": ...}, {"about": ...}, {"note": ...} or {"curve": ...}.

        A row with the key of an earlier one replaces it.
        """
        if "curve" in row:
            self._append(row["curve"])
            return
        if "row" in row:
            rows, key = self._now["rows"], row.get("key")
            if key in self._keys:
                rows[self._keys[key]] = row["row"]
            elif len(rows) < _MOST_ROWS:
                self._keys |= {} if key is None else {key: len(rows)}
                rows.append(row["row"])
        for name in ("about", "note"):
            if name in row:
                self._now[name] = str(row[name])
        self._write()

    def log(self, line: str) -> None:
        """Append a line to log.txt, unless the section has written too much already."""
        self._last.append(line[:_LINE])
        self._logged += len(line.encode()) + 1
        if self._logged <= _MOST_BYTES["log.txt"]:
            with (self.folder / "log.txt").open("a") as file:
                file.write(line + "\n")

    def end(self, outcome: Outcome) -> None:
        """Note how the section has ended."""
        self._now |= {"status": outcome.status, "seconds": round(outcome.seconds, 1)}
        if outcome.status == "failed":
            self._now |= {"exit_status": outcome.code, "output": list(self._last)}
        self._write()

    def leave_out(self, name: str, why: str) -> None:
        """Note that a section is left out."""
        self._sections[name] |= {"status": "left out", "note": why}
        self._write()

    def finish(self, status: str) -> None:
        """Note how everything has ended: complete or stopped."""
        self._head |= {"status": status, "ended": _now()}
        self._write()

    def failed(self) -> list[str]:
        """Return the sections that have failed, and those in which a test has."""
        return [
            name
            for name, section in self._sections.items()
            if section["status"] == "failed" or any(row.get("outcome") == "failed" for row in section["rows"])
        ]

    def _append(self, point: Mapping[str, Any]) -> None:
        path = self.folder / "learning.csv"
        new = not path.exists()
        if not new and path.stat().st_size > _MOST_BYTES["learning.csv"]:
            return
        with path.open("a", newline="") as file:
            writer = csv.DictWriter(file, CURVE, extrasaction="ignore", lineterminator="\n")
            if new:
                writer.writeheader()
            writer.writerow(point)

    def _write(self) -> None:
        document = {**self._head, "sections": self._sections}
        _replace(self.folder / "results.json", json.dumps(document, indent=1) + "\n")
        _replace(self.folder / "summary.md", summary(document))


def summary(results: Mapping[str, Any]) -> str:
    """Return the page for the contents of results.json."""
    sections = results["sections"]
    lines = [
        "# Measurements on this machine",
        "",
        f"Started {results['started']}, {results['minutes']:g} minutes in all: {results['status']}.",
        "",
    ]
    facts = {row["fact"]: row["value"] for row in sections.get("facts", {}).get("rows", ())}
    if "gpu" in facts and facts["gpu"] is None:
        lines += [_NO_GPU, ""]
    lines += table([{"section": name, **_state(section)} for name, section in sections.items()])
    for name, section in sections.items():
        lines += [*[""] * bool(lines[-1]), f"## {section['title']}", ""]
        if "about" in section:
            lines += [section["about"][:1].upper() + section["about"][1:] + ".", ""]
        if "note" in section:
            lines += [section["note"], ""]
        if section["status"] in _ENDS:
            lines += [_ENDS[section["status"]].format(**section), ""]
        if "output" in section:
            lines += ["```", *section["output"], "```", ""]
        rows = _counted(section["rows"]) if name == "tests" else section["rows"]
        for _, alike in groupby(rows, key=list):
            lines += [*table(list(alike)), ""]
    return "\n".join(lines).rstrip() + "\n"


def _state(section: Mapping[str, Any]) -> dict[str, Any]:
    return {name: section.get(name) for name in ("status", "seconds", "limit_seconds")}


def _counted(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the number of tests by their outcome, and the rows of those that have failed."""
    outcomes = Counter(row["outcome"] for row in rows)
    counts = [
        {
            "outcome": outcome,
            "tests": count,
            "seconds": sum(row["seconds"] for row in rows if row["outcome"] == outcome),
        }
        for outcome, count in outcomes.items()
    ]
    return [*counts, *(row for row in rows if row["outcome"] == "failed")]


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the lines of a Markdown table of rows with the same keys."""
    names = list(rows[0])
    cells = [names, ["---"] * len(names), *([_cell(row[name]) for name in names] for row in rows)]
    return ["| " + " | ".join(line) + " |" for line in cells]


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return " ".join(str(value).split()).replace("|", "\\|")


def _replace(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text)
    os.replace(temporary, path)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
