"""Compare the CSV rows of runs, times apart: python tools/same_rows.py RUNS_A RUNS_B, each a directory of runs."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

_TIMES = ("fps", "total_time")


def rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file without the columns that depend on the clock."""
    with path.open(newline="") as file:
        return [{name: x for name, x in row.items() if name not in _TIMES} for row in csv.DictReader(file)]


def main() -> int:
    """Print a line for each file; return 1 if any of them differs."""
    a, b = map(Path, sys.argv[1:3])
    differ = False
    for path in sorted(a.glob("*/*.csv")):
        other = b / path.relative_to(a)
        same = other.exists() and rows(path) == rows(other)
        differ |= not same
        print(f"{path.relative_to(a)}: {len(rows(path))} rows {'the same' if same else 'DIFFER'}")
    return int(differ)


if __name__ == "__main__":
    sys.exit(main())
