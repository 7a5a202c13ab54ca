"""Plot runs for the pages in results/: `python tools/plot.py COMMAND ...`.

run RUN_DIR --out DIR            a learning curve beside others; with --videos frames of its evaluation videos
seeds RUN... --out DIR           runs of one task: returns over frames and over seconds (but for --no-seconds)
tasks NAME=RUN... --out DIR      runs of several tasks: success, or return, of each task and of their mean
offline RUN... --out DIR         agents that have learnt from stored data, compared with the data
learning TABLE IMAGE             learning runs of `make gpu` over the published range

`python tools/plot.py run RUN_DIR --out results/NAME --videos`; COMMAND --help tells more. The evaluations that a figure
shows are copied beside it, and all commands but `run` and `learning` also take such copies in place of runs. Tables for
Markdown are printed.
"""

from __future__ import annotations

import argparse
import csv
import math
import re
import shutil
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import imageio.v3 as iio
import matplotlib.pyplot as plt
import numpy as np
from omegaconf import OmegaConf
from PIL import Image

from benchmarks import figures
from benchmarks.figures import EDGE, INK, SOFT
from drqv2.config.formatting import rewards_of
from drqv2.config.schema import find
from drqv2.datasets import formats
from drqv2.datasets.options import ReadOptions
from drqv2.report.charts import COLOURS, GREY
from drqv2.report.published import DRQV2

PUBLISHED = Path(__file__).resolve().parents[1] / "results" / "published" / "drqv2.csv"
FRAMES_SHOWN = 6  # of a video
PEERS = {"sb3": "--", "tianshou": ":"}  # how another library's curves are drawn; others: "-."
AGENTS = {"bc": GREY, "drqv2_bc": COLOURS[0], "drqv2": COLOURS[1], "cql": COLOURS[2]}  # of regime=offline
Rows = list[dict[str, str]]


def read(path: Path) -> Rows:
    """Return the rows of a CSV file.

    Raises:
        ValueError: it has none.
    """
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    if not rows:
        raise ValueError(f"{path} has no rows")
    return rows


def column(rows: Rows, name: str) -> np.ndarray:
    """Return a column's numbers, float64 [rows]; NaN where it is empty."""
    return np.array([float(row[name] or "nan") for row in rows])


def published(path: Path, task: str, end: float) -> dict[str, np.ndarray]:
    """Return a task's published curve up to a frame: frame, mean, min and max, [points] each.

    Raises:
        ValueError: the file lacks the task.
    """
    rows = [row for row in read(path) if row["task"] == task and float(row["frame"]) <= end]
    if not rows:
        raise ValueError(f"{path} has no task {task!r}")
    return {name: column(rows, name) for name in ("frame", "mean", "min", "max")}


def keep(path: Path, copy: Path) -> None:
    """Copy a file, unless it is the copy."""
    if not (copy.exists() and copy.samefile(path)):
        shutil.copyfile(path, copy)


def save(figure: Any, path: Path) -> None:
    """Save a figure as a PNG with 256 colours, a third of the size without a visible difference."""
    figure.savefig(path, dpi=100)
    Image.open(path).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)


# --- run --------------------------------------------------------------------------------------------------------


def draw_run(args: argparse.Namespace) -> None:
    """Copy a run's tables, draw its learning curve to curve.png and, with --videos, frames to frames.png."""
    for name in ("train.csv", "eval.csv"):
        shutil.copyfile(args.run_dir / name, args.out / name)
    evaluations = read(args.out / "eval.csv")
    cfg = OmegaConf.load(args.run_dir / "config.yaml")
    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    beside = dict(text.split("=", 1) for text in args.beside)
    curves = {args.label: evaluations} | {name: read(Path(path)) for name, path in beside.items()}
    for label, rows in curves.items():
        axes.plot(column(rows, "frame"), column(rows, "episode_reward"), "-o", label=label, zorder=3, mec="white")
    training = read(args.out / "train.csv")
    episodes = column(training, "frame"), column(training, "episode_reward")
    axes.plot(*episodes, "o", color=COLOURS[0], alpha=0.3, mew=0, label="training episode")
    if args.published is not None:
        task = args.task or cfg.task_name
        figures.draw_published(axes, published(args.published, task, axes.dataLim.x1), DRQV2)
    axes.set(title=title(cfg, list(curves)), xlabel="environment frames", ylabel="return")
    axes.set_ylim(bottom=min(0.0, axes.dataLim.y0))
    axes.xaxis.set_major_formatter(figures.thousands)
    axes.legend()
    save(figure, args.out / "curve.png")
    if args.videos:
        draw_frames(args.run_dir / "eval_video", evaluations, cfg.task_name, args.out / "frames.png")


def title(cfg: Any, labels: Sequence[str]) -> str:
    """Return task and seeds of the curves in a figure; labels of other runs may name theirs, such as "seed 2"."""
    named = re.findall(r"\bseed (\d+)", " ".join(labels))
    return f"{cfg.task_name}, {figures.seeds([cfg.seed, *map(int, named)])}"


def draw_frames(folder: Path, evaluations: Rows, task: str, path: Path) -> None:
    """Draw frames of the first video, of the one closest to the middle of their returns, and of the last.

    Raises:
        ValueError: no evaluation has a video.
    """
    films = [(int(row["frame"]), float(row["episode_reward"])) for row in evaluations]
    films = [film for film in films if (folder / f"{film[0]}.mp4").exists()]
    if not films:
        raise ValueError(f"{folder} has no video of an evaluation in eval.csv")
    half = (films[0][1] + films[-1][1]) / 2
    between = sorted(films[1:-1], key=lambda film: (abs(film[1] - half), film[0]))[:1]
    chosen = sorted({films[0], *between, films[-1]})
    size = (2 * FRAMES_SHOWN, 2 * len(chosen) + 0.5)
    figure, grid = plt.subplots(len(chosen), FRAMES_SHOWN, figsize=size, squeeze=False, layout="constrained")
    for line, (frame, result) in zip(grid, chosen, strict=True):
        video = iio.imread(folder / f"{frame}.mp4", plugin="FFMPEG")  # [T, H, W, 3]
        for axes, index in zip(line, np.linspace(0, len(video) - 1, FRAMES_SHOWN).round().astype(int), strict=True):
            axes.imshow(video[index])
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set_visible(False)
        line[0].set_ylabel(f"return {result:,.0f}\n{frame:,} frames", color=INK)
    figure.suptitle(f"{task}: the first episode of an evaluation, from its start to its end", color=INK)
    save(figure, path)


# --- seeds ------------------------------------------------------------------------------------------------------


def draw_seeds(args: argparse.Namespace) -> None:
    """Copy the evaluations, draw them to curves.png, print a row of a table for each run."""
    labels = {"frame": "environment frames"} | ({} if args.no_seconds else {"total_time": "seconds of training"})
    size = (9 if len(labels) == 2 else 6, 3.4)
    figure, grid = plt.subplots(1, len(labels), figsize=size, sharey=True, layout="constrained", squeeze=False)
    panels = dict(zip(labels, grid[0], strict=True))
    seeds = []
    for run in args.runs:
        is_csv = run.suffix == ".csv"
        path = run if is_csv else run / "eval.csv"
        seeds.append(int(run.stem if is_csv else OmegaConf.load(run / "config.yaml").seed))
        rows = read(path)
        _draw_over(panels, rows, marker=".", label=f"seed {seeds[-1]}")
        keep(path, args.out / f"{seeds[-1]}.csv")
        print(solved(seeds[-1], rows, args.solved))
    for path in args.peers:
        side, _, seed = path.stem.partition("_")
        style = {"color": GREY, "linestyle": PEERS.get(side, "-."), "label": f"{side}, seed {seed}"}
        _draw_over(panels, read(path), **style)
        keep(path, args.out / path.name)
    for name, axes in panels.items():
        axes.axhline(args.solved, color=EDGE, linewidth=0.8, linestyle="--")
        axes.set_xlabel(labels[name])
    first = panels["frame"]
    first.xaxis.set_major_formatter(figures.thousands)
    first.set_ylabel("mean return of an evaluation")
    first.set_title(f"{args.title or args.out.resolve().name}, {figures.seeds(seeds)}")
    first.legend(fontsize="x-small")
    save(figure, args.out / "curves.png")


def _draw_over(panels: Mapping[str, Any], rows: Rows, **style: Any) -> None:
    for x, axes in panels.items():
        axes.plot(column(rows, x), column(rows, "episode_reward"), **style)


def solved(seed: int, rows: Rows, least: float) -> str:
    """Return when a run reached a return, its best and its last evaluation, as a row of a Markdown table."""
    frames, returns, seconds = (column(rows, name) for name in ("frame", "episode_reward", "total_time"))
    found = np.flatnonzero(returns >= least)
    first = f"{frames[found[0]]:,.0f} | {seconds[found[0]]:.1f}" if len(found) else "never | "
    return f"| {seed} | {first} | {returns.max():,.1f} | {returns[-1]:,.1f} at {frames[-1]:,.0f} |"


# --- tasks ------------------------------------------------------------------------------------------------------


def draw_tasks(args: argparse.Namespace) -> None:
    """Copy the evaluations, draw a panel for the mean and one for each task to curves.png, print a table."""
    settings: dict[str, dict[int, Rows]] = {}  # the evaluations of each setting's seeds
    for argument in args.runs:
        name, _, place = argument.partition("=")
        path = Path(place)
        if path.is_dir():
            cfg = OmegaConf.load(path / "config.yaml")
            if rewards := rewards_of(cfg.tasks):
                print(f"{name}: {rewards}")
            path = Path(shutil.copy(path / "eval.csv", args.out / f"{name}_{cfg.seed}.csv"))
        settings.setdefault(name, {})[int(path.stem.rpartition("_")[2])] = read(path)
    names = [*next(iter(next(iter(settings.values())).values()))[0]]
    metric = "success" if "success" in names else "episode_reward"
    columns = {"mean": metric} | {
        name.removeprefix(f"{metric}_"): name for name in names if name.startswith(f"{metric}_")
    }
    wide = min(len(columns), 4)
    tall = math.ceil(len(columns) / wide)
    size = (3 * wide, 2.2 * tall)
    figure, grid = plt.subplots(tall, wide, figsize=size, sharex=True, squeeze=False, layout="constrained")
    for axes, (task, name) in zip(grid.flat, columns.items(), strict=False):
        for colour, (setting, runs) in zip(COLOURS, settings.items(), strict=False):
            for i, rows in enumerate(runs.values()):
                label = None if i else f"{setting}, {figures.seeds(runs)}"
                axes.plot(column(rows, "frame"), column(rows, name), color=colour, label=label)
        axes.set_title(task)
        axes.set_ylim(bottom=0, top=1.03 if metric == "success" else None)
        axes.xaxis.set_major_formatter(figures.thousands)
    for axes in grid.flat[len(columns) :]:
        axes.axis("off")
    figure.supxlabel("environment frames of each task", x=0.01, ha="left", color=SOFT, fontsize="medium")
    figure.legend(*grid.flat[0].get_legend_handles_labels(), loc="outside lower right", ncols=len(settings))
    save(figure, args.out / "curves.png")
    _print_tasks(settings, metric, columns)


def _print_tasks(settings: Mapping[str, Mapping[int, Rows]], metric: str, columns: Mapping[str, str]) -> None:
    """Print each task's value at the last frame at which all runs were evaluated, a mean over seeds."""
    every = [[{float(row["frame"]): row for row in rows} for rows in runs.values()] for runs in settings.values()]
    last = max(set.intersection(*(set(run) for runs in every for run in runs)))
    print(f"| {metric.replace('episode_reward', 'return')} at {last:,.0f} frames | {' | '.join(settings)} |")
    print("|---|" + "---|" * len(settings))
    for task, name in sorted(columns.items(), key=lambda item: item[0] == "mean"):
        cells = [np.mean([float(run[last][name]) for run in runs]) for runs in every]
        print(f"| {task} | " + " | ".join(f"{cell:.{2 if metric == 'success' else 0}f}" for cell in cells) + " |")


# --- offline ----------------------------------------------------------------------------------------------------


def draw_offline(args: argparse.Namespace) -> None:
    """Write a row a run to returns.csv, draw the means of data sets and agents to returns.png, print a table."""
    rows = [row for path in args.runs for row in (read(path) if path.suffix == ".csv" else [_offline(path, args.last)])]
    rows.sort(key=lambda row: (row["task"], float(row["of_data"]), row["agent"], int(row["seed"])))
    with (args.out / "returns.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    found = {row["agent"] for row in rows}
    agents = [*filter(found.__contains__, AGENTS), *sorted(found - AGENTS.keys())]
    sets: dict[tuple[str, str], Rows] = {}
    for row in rows:
        sets.setdefault((row["task"], row["data"]), []).append(row)
    print("| task | data | its mean return | " + " | ".join(agents) + " |\n|---|---|---|" + "---|" * len(agents))
    for (task, data), own in sets.items():
        every = [column([row for row in own if row["agent"] == agent], "return") for agent in agents]
        cells = [f"{np.mean(x):.0f} ({', '.join(f'{value:.0f}' for value in x)})" if len(x) else "" for x in every]
        print(f"| {task} | {data} | {float(own[0]['of_data']):.0f} | " + " | ".join(cells) + " |")
    tasks = list(dict.fromkeys(task for task, _ in sets))
    size = (5.5 * len(tasks), 3.4)
    figure, grid = plt.subplots(1, len(tasks), figsize=size, squeeze=False, layout="constrained")
    for axes, task in zip(grid.flat, tasks, strict=True):
        _bars(axes, {data: own for (name, data), own in sets.items() if name == task}, agents)
        axes.set_title(f"{task}, {figures.seeds(int(row['seed']) for row in rows if row['task'] == task)}")
    grid[0, 0].set_ylabel("return")
    figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=len(agents) + 1)
    save(figure, args.out / "returns.png")


def _offline(run: Path, last: int) -> dict[str, str]:
    """Return the row of a run: the mean of its last evaluations beside the mean return of its data."""
    cfg: Any = OmegaConf.load(run / "config.yaml")
    names = {agent.target: name for name, agent in find("offline").agents.items()}
    evaluations, data, target = read(run / "eval.csv")[-last:], Path(cfg.data), cfg.agent._target_
    return {
        "task": cfg.task_name,
        "data": data.parent.name if data.name == "buffer" else data.name,
        "agent": names.get(target, target.rpartition(".")[2]),
        "seed": str(cfg.seed),
        "updates": evaluations[-1]["step"],
        "of_data": f"{_mean_return(cfg.data, ReadOptions.of(cfg)):.1f}",
        "return": f"{column(evaluations, 'episode_reward').mean():.1f}",
    }


@cache
def _mean_return(data: str, options: ReadOptions) -> float:
    return float(np.mean([episode.total for episode in formats.read(data, print, options)]))


def _bars(axes: Any, sets: Mapping[str, Rows], agents: Sequence[str]) -> None:
    """Draw the data sets of a task: a line for the data, a bar for each agent's mean, a dot for each seed."""
    width = 0.8 / len(agents)
    for x, own in enumerate(sets.values()):
        of_data = float(own[0]["of_data"])
        axes.hlines(of_data, x - 0.45, x + 0.45, color=INK, linewidth=1.2, label=None if x else "data")
        for i, agent in enumerate(agents):
            returns = column([row for row in own if row["agent"] == agent], "return")
            at, colour = x - 0.4 + width * (i + 0.5), AGENTS.get(agent, COLOURS[3])
            height = returns.mean() if len(returns) else 0.0
            axes.bar(at, height, 0.9 * width, color=colour, alpha=0.55, label=None if x else agent)
            axes.plot(np.full(len(returns), at), returns, "o", color=colour)
    axes.set_xticks(range(len(sets)), [name.replace("_", " ") for name in sets], fontsize=8)
    axes.set_ylim(0, 1030)


# --- learning ---------------------------------------------------------------------------------------------------


def draw_learning(args: argparse.Namespace) -> None:
    """Draw a panel for each task, which is the beginning of a run's name, with the published range.

    Raises:
        ValueError: there is no evaluation of a task with published curves.
    """
    known = sorted({row["task"] for row in read(PUBLISHED)}, key=len)
    tasks: dict[str, dict[str, Rows]] = {}
    for row in read(args.table):
        own = [task for task in known if f"{row['run']}_".startswith(f"{task}_")]
        if own and row["kind"] == "eval":
            tasks.setdefault(own[-1], {}).setdefault(row["run"], []).append(row)
    if not tasks:
        raise ValueError(f"{args.table}: there is no evaluation of a task with published curves")
    size = (3.6 * len(tasks), 3)
    figure, grid = plt.subplots(1, len(tasks), figsize=size, squeeze=False, layout="constrained")
    for axes, (task, runs) in zip(grid.flat, sorted(tasks.items()), strict=True):
        end = max(column(rows, "frame").max() for rows in runs.values())
        figures.draw_published(axes, published(PUBLISHED, task, end), DRQV2)
        for name, rows in runs.items():
            axes.plot(column(rows, "frame"), column(rows, "episode_reward"), marker="o", label=name)
        axes.set(title=task, xlabel="environment frames")
        axes.xaxis.set_major_formatter(figures.thousands)
        axes.legend(fontsize=7)
    grid[0, 0].set_ylabel("return")
    save(figure, args.out)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line described above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    run = commands.add_parser("run")
    run.add_argument("run_dir", type=Path, help="run directory; the run may still be running")
    run.add_argument("--videos", action="store_true", help="also draw frames.png from eval_video/")
    run.add_argument("--published", type=Path, help="CSV of published curves: task,frame,mean,std,min,max,n_seeds")
    run.add_argument("--label", default="evaluation", help="legend of the run's curve")
    run.add_argument("--beside", action="append", default=[], metavar="LABEL=EVAL.CSV", help="another run's curve")
    run.add_argument("--task", help="name of the task in --published (default: the run's task)")
    run.set_defaults(draw=draw_run)

    seeds = commands.add_parser("seeds")
    seeds.add_argument("runs", nargs="+", type=Path, help="run directories, or SEED.csv of an earlier call")
    seeds.add_argument("--solved", type=float, required=True, help="mean return at which the task counts as solved")
    seeds.add_argument("--title", help="the task (default: the name of --out)")
    seeds.add_argument(
        "--peers", nargs="*", type=Path, default=[], help="NAME_SEED.csv of benchmarks.learning or peers.sb3_sac"
    )
    seeds.add_argument("--no-seconds", action="store_true", help="no panel over seconds: the machine was busy")
    seeds.set_defaults(draw=draw_seeds)

    tasks = commands.add_parser("tasks")
    tasks.add_argument("runs", nargs="+", metavar="NAME=RUN", help="run directories, or NAME_SEED.csv; as a setting")
    tasks.set_defaults(draw=draw_tasks)

    offline = commands.add_parser("offline")
    offline.add_argument("runs", nargs="+", type=Path, help="runs whose data are still there, or returns.csv")
    offline.add_argument("--last", type=int, default=2, help="evaluations of a run, at its end, whose mean counts")
    offline.set_defaults(draw=draw_offline)

    for command in (run, seeds, tasks, offline):
        command.add_argument("--out", type=Path, required=True, help="output directory")

    learning = commands.add_parser("learning")
    learning.add_argument("table", type=Path, help="learning.csv")
    learning.add_argument("out", type=Path, metavar="image", help="the image to write")
    learning.set_defaults(draw=draw_learning)

    args = parser.parse_args(argv)
    try:
        (args.out.parent if "table" in args else args.out).mkdir(parents=True, exist_ok=True)
        args.draw(args)
    except (OSError, ValueError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
