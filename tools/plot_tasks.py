"""Plot runs of several tasks: success, or return, of each task over its frames, and the mean over tasks.

python tools/plot_tasks.py blind=RUN plain=RUN brc=RUN --out results/multitask/mt10

Each argument is NAME=RUN, a run directory or a CSV file that an earlier call wrote; runs of one name are seeds of one
setting. Writes to --out NAME_SEED.csv, a copy of each run's eval.csv, and curves.png; prints a table of the last rows.
"""

from __future__ import annotations

import argparse
import csv
import math
import shutil
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from omegaconf import OmegaConf

from drqv2.config.formatting import rewards_of
from drqv2.report import style

plt.rcParams.update(style.MATPLOTLIB)
Columns = dict[str, np.ndarray]
Settings = dict[str, dict[int, Columns]]  # the evaluations of each setting's seeds


def read(path: Path) -> Columns:
    """Return the columns of a CSV file."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {name: np.array([float(row[name] or "nan") for row in rows]) for name in rows[0]}


def collect(argument: str, out: Path) -> tuple[str, int, Columns]:
    """Return name, seed and evaluations of NAME=RUN, and keep a copy of them; name the rewards of its tasks."""
    name, _, place = argument.partition("=")
    path = Path(place)
    if path.is_dir():
        cfg = OmegaConf.load(path / "config.yaml")
        if rewards := rewards_of(cfg.tasks):
            print(f"{name}: {rewards}")
        path = Path(shutil.copy(path / "eval.csv", out / f"{name}_{cfg.seed}.csv"))
    return name, int(path.stem.rpartition("_")[2]), read(path)


def main() -> None:
    """Copy the evaluations, plot them, print the table."""
    parser = argparse.ArgumentParser("python tools/plot_tasks.py", description=__doc__.split("\n\n")[0])
    parser.add_argument("runs", nargs="+", metavar="NAME=RUN")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    settings: Settings = {}
    for argument in args.runs:
        name, seed, columns = collect(argument, args.out)
        settings.setdefault(name, {})[seed] = columns
    first = next(iter(next(iter(settings.values())).values()))
    metric = "success" if "success" in first else "episode_reward"
    tasks = [name.removeprefix(f"{metric}_") for name in first if name.startswith(f"{metric}_")]
    plot(settings, metric, tasks, args.out / "curves.png")
    show(settings, metric, tasks)


def plot(settings: Settings, metric: str, tasks: list[str], path: Path) -> None:
    """Draw a panel for the mean and one for each task."""
    columns = min(len(tasks) + 1, 4)
    rows = math.ceil((len(tasks) + 1) / columns)
    figure, grid = plt.subplots(
        rows, columns, figsize=(3 * columns, 2.2 * rows), sharex=True, squeeze=False, layout="constrained"
    )
    for axes, task in zip(grid.flat, [None, *tasks], strict=False):
        for index, (name, runs) in enumerate(settings.items()):
            label = f"{name}, {style.seeds(runs)}"
            for i, run in enumerate(runs.values()):
                values = run[metric if task is None else f"{metric}_{task}"]
                axes.plot(run["frame"], values, color=style.colour(index), label=None if i else label)
        axes.set_title(f"mean {metric.replace('episode_reward', 'return')}" if task is None else task)
        axes.set_ylim(bottom=0, top=1.03 if metric == "success" else None)
        axes.xaxis.set_major_formatter(style.thousands)
    for axes in grid.flat[len(tasks) + 1 :]:
        axes.axis("off")
    figure.supxlabel("environment frames of each task", x=0.01, ha="left", color=style.SOFT, fontsize="medium")
    figure.legend(*grid.flat[0].get_legend_handles_labels(), loc="outside lower right", ncols=len(settings))
    figure.savefig(path, dpi=90)


def show(settings: Settings, metric: str, tasks: list[str]) -> None:
    """Print a table: each task's value at the last frame at which all runs were evaluated, mean over seeds."""
    last = max(set.intersection(*(set(run["frame"]) for runs in settings.values() for run in runs.values())))
    print(f"| {metric.replace('episode_reward', 'return')} at {last:,.0f} frames | " + " | ".join(settings) + " |")
    print("|---|" + "---|" * len(settings))
    for task in [*tasks, None]:
        column = metric if task is None else f"{metric}_{task}"
        every = [list(runs.values()) for runs in settings.values()]
        cells = [np.mean([run[column][run["frame"] == last][0] for run in runs]) for runs in every]
        digits = 2 if metric == "success" else 0
        print(f"| {task or 'mean'} | " + " | ".join(f"{cell:.{digits}f}" for cell in cells) + " |")


if __name__ == "__main__":
    main()
