"""Plot learning runs of `make gpu` over the published range: `python tools/plot_learning.py learning.csv curves.png`.

A panel for each task, which is the beginning of a run's name. Grey: the published seeds of DrQ-v2, their range and mean
(results/published).
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from drqv2.report import style
from drqv2.report.published import DRQV2

plt.rcParams.update(style.MATPLOTLIB)
PUBLISHED = Path(__file__).resolve().parents[1] / "results" / "published" / "drqv2.csv"
Rows = list[dict[str, str]]


def main() -> None:
    """Run the command line described above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path, help="learning.csv")
    parser.add_argument("out", type=Path, help="the image to write")
    args = parser.parse_args()
    published = by(read(PUBLISHED), "task")
    runs = by([row for row in read(args.table) if row["kind"] == "eval"], "run")
    task_of = {
        run: max((task for task in published if f"{run}_".startswith(f"{task}_")), key=len, default="") for run in runs
    }
    tasks = sorted({task for task in task_of.values() if task})
    if not tasks:
        parser.error(f"{args.table}: there is no evaluation of a task with published curves")
    figure, axes = plt.subplots(1, len(tasks), figsize=(3.6 * len(tasks), 3), squeeze=False, layout="constrained")
    for axis, task in zip(axes[0], tasks, strict=True):
        own = {name: rows for name, rows in runs.items() if task_of[name] == task}
        end = max(float(row["frame"]) for rows in own.values() for row in rows)
        rows = [row for row in published[task] if float(row["frame"]) <= end]
        band = {name: column(rows, name) for name in ("frame", "min", "max", "mean")}
        style.draw_published(axis, band, DRQV2)
        for name, rows in own.items():
            axis.plot(column(rows, "frame"), column(rows, "episode_reward"), marker="o", label=name)
        axis.set(title=task, xlabel="environment frames")
        axis.xaxis.set_major_formatter(style.thousands)
        axis.legend(fontsize=7)
    axes[0][0].set_ylabel("return")
    figure.savefig(args.out, dpi=110)


def read(path: Path) -> Rows:
    """Return the rows of a CSV file."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def by(rows: Rows, name: str) -> dict[str, Rows]:
    """Return the rows by their value in a column."""
    groups = defaultdict(list)
    for row in rows:
        groups[row[name]].append(row)
    return dict(groups)


def column(rows: Rows, name: str) -> list[float]:
    """Return a column's numbers."""
    return [float(row[name]) for row in rows]


if __name__ == "__main__":
    main()
