"""Whole runs of train.py, measured by the rows of their train.csv."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# No evaluation but the one before the first update, and no snapshot.
ALONE = (
    "total_timesteps=1000000000 eval_every_frames=1000000000 num_eval_episodes=1 save_video=false save_snapshot=false "
    "use_tb=false console=off"
).split()
WAITS = ("policy_lag", "learner_waits", "actors_wait")
LooseRow = dict[str, float | None]


def speeds(words: Sequence[str], warm_up: float, seconds: float) -> Iterator[LooseRow]:
    """Yield the speed of one run after another, see `speed`."""
    while True:
        yield speed(words, warm_up, seconds)


def speed(
    words: Sequence[str],
    warm_up: float,
    seconds: float,
    checkout: Path = ROOT,
    watch: Callable[[int], LooseRow] = lambda _: {},
) -> LooseRow:
    """Start a run, end it when it was measured, and return SPS and `WAITS`; None for what it does not record.

    Args:
        words: arguments of train.py.
        warm_up: seconds of training after the first row of train.csv that do not count.
        seconds: of training that count, at least.
        checkout: the directory whose train.py runs.
        watch: returns further figures of the run from its process id, before it is ended.

    Raises:
        RuntimeError: the run ends by itself.
    """
    with tempfile.TemporaryDirectory() as folder:
        output, table = Path(folder) / "output.txt", Path(folder) / "run" / "train.csv"
        command = [sys.executable, str(checkout / "train.py"), *words, *ALONE, f"hydra.run.dir={table.parent}"]
        settings = os.environ | {"PYTHONPATH": str(checkout)}
        with (
            output.open("w") as file,
            subprocess.Popen(command, cwd=checkout, env=settings, stdout=file, stderr=file) as process,
        ):
            try:
                while not (counted := _counted(_rows(table), warm_up, seconds)):
                    if process.poll() is not None:
                        raise RuntimeError(f"{' '.join(command)} has ended:\n{output.read_text()[-2000:]}")
                    time.sleep(0.2)
                found = watch(process.pid)
            finally:
                process.terminate()
    return _summary(counted) | found


def _rows(table: Path) -> list[dict[str, float]]:
    """Return the rows that are complete."""
    if not table.exists():
        return []
    lines = table.read_text().splitlines(keepends=True)
    complete = [line for line in lines if line.endswith("\n")]
    return [{name: float(x) for name, x in row.items() if x} for row in csv.DictReader(complete)]


def _counted(rows: list[dict[str, float]], warm_up: float, seconds: float) -> list[dict[str, float]]:
    """Return the rows from the end of the warm-up on; none if there are not yet enough."""
    counted = [row for row in rows if row["total_time"] >= rows[0]["total_time"] + warm_up]
    enough = len(counted) > 1 and counted[-1]["total_time"] - counted[0]["total_time"] >= seconds
    return counted if enough else []


def _summary(rows: list[dict[str, float]]) -> LooseRow:
    steps, seconds = _passed(rows, "step"), _passed(rows, "total_time")
    for row in rows:  # shares are of all the time until then, and those of the loop of its evaluation, too
        row["run_time"] = row["total_time"] / (1 - row["performance_evaluation"])
    return {
        "SPS": steps / seconds,
        "policy_lag": _mean(rows, "policy_lag", "step"),
        "learner_waits": _share(rows, "performance_actors", "run_time"),
        "actors_wait": _mean(rows, "actors_waiting", "total_time"),
    }


def _passed(rows: Sequence[dict[str, float]], name: str) -> float:
    return rows[-1][name] - rows[0][name]


def _mean(rows: Sequence[dict[str, float]], name: str, clock: str) -> float | None:
    """Return the mean over a clock of a column that holds means since the row before."""
    pairs = [(before, row) for before, row in pairwise(rows) if name in row]
    total = sum(row[name] * _passed([before, row], clock) for before, row in pairs)
    return total / _passed(rows, clock) if pairs else None


def _share(rows: Sequence[dict[str, float]], name: str, clock: str) -> float | None:
    """Return the share of the time between two rows, where a column is the share of the time until then."""
    first, last = rows[0], rows[-1]
    if name not in first or name not in last:
        return None
    share = (last[name] * last[clock] - first[name] * first[clock]) / _passed(rows, "total_time")
    return min(max(share, 0.0), 1.0)  # the clocks differ by milliseconds
