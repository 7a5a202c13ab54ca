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
    """Print a line for each file; return 1 if any of them differs, or there is none."""
    folders = [Path(name) for name in sys.argv[1:3]]
    names = sorted({path.relative_to(folder) for folder in folders for path in folder.glob("*/*.csv")})
    differ = not names
    for name in names:
        a, b = (rows(folder / name) if (folder / name).exists() else None for folder in folders)
        differ |= a != b
        print(f"{name}: {len(a or b or ())} rows {'the same' if a == b else 'DIFFER'}")
    return int(differ)


if __name__ == "__main__":
    sys.exit(main())
