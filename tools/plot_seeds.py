"""Plot several runs of one task: returns over frames and over seconds of training.

python tools/plot_seeds.py RUN... --out results/ppo/cartpole --solved 475

A RUN is a run directory, or a SEED.csv that an earlier call wrote. Writes to --out: SEED.csv (a copy of each run's
eval.csv) and curves.png; prints a row of a table for each run. --peers adds other curves, files NAME_SEED.csv such as
those of `python -m benchmarks.learning`, in grey, and copies them too.
"""

from __future__ import annotations

import argparse
import csv
import shutil
from pathlib import Path
from typing import NamedTuple

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from omegaconf import OmegaConf

from drqv2.report import style

plt.rcParams.update(style.MATPLOTLIB)
PEERS = {"sb3": "--", "tianshou": ":"}  # how each side's curves are drawn; others: "-."


class Curve(NamedTuple):
    """The evaluations of one run."""

    seed: int
    frames: list[float]
    returns: list[float]
    seconds: list[float]


def read(path: Path, seed: int) -> Curve:
    """Return the evaluations in a CSV file."""
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    columns = ([float(row[name]) for row in rows] for name in ("frame", "episode_reward", "total_time"))
    return Curve(seed, *columns)


def keep(path: Path, copy: Path) -> None:
    """Copy a file, unless it is the copy."""
    if not (copy.exists() and copy.samefile(path)):
        shutil.copyfile(path, copy)


def table_row(curve: Curve, solved: float) -> str:
    """Return when the run was solved, its best and its last evaluation, as a row of a Markdown table."""
    found = [(f, s) for f, value, s in zip(curve.frames, curve.returns, curve.seconds, strict=True) if value >= solved]
    frame, second = (f"{found[0][0]:,.0f}", f"{found[0][1]:.1f}") if found else ("never", "")
    last = f"{curve.returns[-1]:,.1f} at {curve.frames[-1]:,.0f}"
    return f"| {curve.seed} | {frame} | {second} | {max(curve.returns):,.1f} | {last} |"


def main() -> None:
    """Run the command line described above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, help="run directories or SEED.csv")
    parser.add_argument("--out", type=Path, required=True, help="output directory")
    parser.add_argument("--solved", type=float, required=True, help="mean return at which the task counts as solved")
    parser.add_argument("--title", help="the task (default: the name of --out)")
    parser.add_argument("--peers", nargs="*", type=Path, default=[], help="CSV files of other curves")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), sharey=True, layout="constrained")
    seeds = []
    for run in args.runs:
        is_csv = run.suffix == ".csv"
        path = run if is_csv else run / "eval.csv"
        curve = read(path, int(run.stem if is_csv else OmegaConf.load(run / "config.yaml").seed))
        for axis, xs in zip(axes, (curve.frames, curve.seconds), strict=True):
            axis.plot(xs, curve.returns, marker=".", label=f"seed {curve.seed}")
        seeds.append(curve.seed)
        keep(path, args.out / f"{curve.seed}.csv")
        print(table_row(curve, args.solved))
    for path in args.peers:
        side, _, seed = path.stem.partition("_")
        curve = read(path, int(seed))
        for axis, xs in zip(axes, (curve.frames, curve.seconds), strict=True):
            axis.plot(
                xs, curve.returns, color=style.GREY, linestyle=PEERS.get(side, "-."), label=f"{side}, seed {seed}"
            )
        keep(path, args.out / path.name)
    for axis, label in zip(axes, ("environment frames", "seconds of training"), strict=True):
        axis.axhline(args.solved, color=style.EDGE, linewidth=0.8, linestyle="--")
        axis.set_xlabel(label)
    axes[0].xaxis.set_major_formatter(style.thousands)
    axes[0].set_ylabel("mean return of an evaluation")
    axes[0].set_title(f"{args.title or args.out.resolve().name}, {style.seeds(seeds)}")
    axes[0].legend(fontsize="x-small")
    figure.savefig(args.out / "curves.png", dpi=100)


if __name__ == "__main__":
    main()
