"""Compare agents that have learnt from stored data with the data: python tools/plot_offline.py RUN ... --out DIR.

RUN is a run of regime=offline whose data are still there, or the returns.csv of an earlier call; runs of the same data
and agent are seeds. Writes returns.csv (a row a run: the mean of its last --last evaluations, beside the mean return of
the data) and returns.png to --out; prints a table.
"""

from __future__ import annotations

import argparse
import csv
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from omegaconf import OmegaConf

from drqv2.config.cfgs import CFGS
from drqv2.datasets import formats
from drqv2.datasets.options import ReadOptions
from drqv2.report import style

plt.rcParams.update(style.MATPLOTLIB)
COLOURS = {"bc": style.GREY, "drqv2_bc": style.colour(0), "drqv2": style.colour(1), "cql": style.colour(2)}
Row = dict[str, Any]


@cache
def mean_return(data: str, options: ReadOptions) -> float:
    """Return the mean return of a data set's episodes."""
    return float(np.mean([episode.total for episode in formats.read(data, print, options)]))


def agent_name(target: str) -> str:
    """Return what `agent=` calls a class; its own name where that has none."""
    for path in (CFGS / "agent").glob("*.yaml"):
        if OmegaConf.load(path)._target_ == target:
            return path.stem
    return target.rpartition(".")[2]


def read(path: Path, last: int) -> list[Row]:
    """Return the row of a run, or the rows of a file that this tool wrote."""
    if path.suffix == ".csv":
        with path.open(newline="") as file:
            return [
                {**row, "return": float(row["return"]), "of_data": float(row["of_data"])}
                for row in csv.DictReader(file)
            ]
    cfg: Any = OmegaConf.load(path / "config.yaml")
    with (path / "eval.csv").open(newline="") as file:
        evaluations = list(csv.DictReader(file))[-last:]
    if not evaluations:
        raise SystemExit(f"{path}: has no evaluation")
    data = Path(cfg.data)
    row = {
        "task": cfg.task_name,
        "data": data.parent.name if data.name == "buffer" else data.name,
        "agent": agent_name(cfg.agent._target_),
        "seed": cfg.seed,
    }
    row |= {"updates": int(evaluations[-1]["step"]), "of_data": round(mean_return(cfg.data, ReadOptions.of(cfg)), 1)}
    return [row | {"return": round(float(np.mean([float(one["episode_reward"]) for one in evaluations])), 1)}]


def main() -> None:
    """Collect the rows, write, plot and print them."""
    parser = argparse.ArgumentParser("python tools/plot_offline.py", description=__doc__.split("\n\n")[0])
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--last", type=int, default=2, help="evaluations of a run, at its end, whose mean counts")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    rows = [row for path in args.runs for row in read(path, args.last)]
    rows.sort(key=lambda row: (row["task"], row["of_data"], row["agent"], int(row["seed"])))
    with (args.out / "returns.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    agents = [name for name in COLOURS if any(row["agent"] == name for row in rows)]
    agents += sorted({row["agent"] for row in rows} - set(agents))
    show(rows, agents)
    plot(rows, agents, args.out / "returns.png")


def sets(rows: list[Row]) -> dict[tuple[str, str], list[Row]]:
    """Return the rows of each task and data set."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        found.setdefault((row["task"], row["data"]), []).append(row)
    return found


def show(rows: list[Row], agents: list[str]) -> None:
    """Print a table: mean over seeds, and each seed."""
    print("| task | data | its mean return | " + " | ".join(agents) + " |\n|---|---|---|" + "---|" * len(agents))
    for (task, data), own in sets(rows).items():
        cells = []
        for agent in agents:
            returns = [row["return"] for row in own if row["agent"] == agent]
            each = ", ".join(f"{value:.0f}" for value in returns)
            cells.append(f"{np.mean(returns):.0f} ({each})" if returns else "")
        print(f"| {task} | {data} | {own[0]['of_data']:.0f} | " + " | ".join(cells) + " |")


def plot(rows: list[Row], agents: list[str], path: Path) -> None:
    """Draw a panel for each task: bars for the mean over seeds, a dot for each, a line for the data."""
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    figure, grid = plt.subplots(1, len(tasks), figsize=(5.5 * len(tasks), 3.4), squeeze=False, layout="constrained")
    width = 0.8 / len(agents)
    for axes, task in zip(grid.flat, tasks, strict=True):
        found = sets([row for row in rows if row["task"] == task])
        for x, own in enumerate(found.values()):
            axes.hlines(
                own[0]["of_data"], x - 0.45, x + 0.45, color=style.INK, linewidth=1.2, label=None if x else "data"
            )
            for i, agent in enumerate(agents):
                returns = [row["return"] for row in own if row["agent"] == agent] or [float("nan")]
                at = x - 0.4 + width * (i + 0.5)
                axes.bar(
                    at,
                    np.mean(returns),
                    0.9 * width,
                    color=COLOURS.get(agent, style.colour(3)),
                    alpha=0.55,
                    label=None if x else agent,
                )
                axes.plot([at] * len(returns), returns, "o", color=COLOURS.get(agent, style.colour(3)), markersize=4)
        axes.set_xticks(range(len(found)), [name.replace("_", " ") for _, name in found], fontsize=8)
        axes.set_title(f"{task}, {style.seeds(int(row['seed']) for row in rows if row['task'] == task)}")
        axes.set_ylim(0, 1030)
    grid[0, 0].set_ylabel("return")
    figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=len(agents) + 1)
    figure.savefig(path, dpi=90)


if __name__ == "__main__":
    main()
