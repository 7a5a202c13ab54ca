"""Plot a run: its learning curve and, with --videos, frames of its evaluation videos.

    python tools/plot_run.py RUN_DIR --out results/NAME
    python tools/plot_run.py RUN_DIR --out results/NAME --videos
    python tools/plot_run.py RUN_DIR --out results/NAME --published results/published/TASK.csv
    python tools/plot_run.py RUN_DIR --out results/NAME --label fp32 --beside bf16=results/OTHER/eval.csv

Writes to --out: train.csv and eval.csv (copies), curve.png and frames.png. The run may still be running.
"""

from __future__ import annotations

import argparse
import csv
import io
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import cv2
import imageio_ffmpeg
import matplotlib
import numpy as np
from omegaconf import OmegaConf
from PIL import Image

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from drqv2.report import style
from drqv2.report.published import DRQV2
from drqv2.report.style import INK, SOFT

plt.rcParams.update(style.MATPLOTLIB)
FRAMES_SHOWN = 6
TILE, GAP, MARGIN, LABEL = 200, 6, 30, 184  # pixels in the strip: longer side of a frame, gap, margin, row labels


# --- data -------------------------------------------------------------------------------------------------------


def read_columns(path: Path, *names: str) -> list[np.ndarray]:
    """Return columns of a CSV file as float64 [rows], without rows in which one of them is empty.

    Raises:
        ValueError: a column is missing, or there are no rows.
    """
    with path.open(newline="") as f:
        table = list(csv.DictReader(f))
    rows = [[float(row[name]) for name in names] for row in table if all(row.get(name) for name in names)]
    if not rows:
        raise ValueError(f"{path} has no row with {', '.join(names)}")
    return list(np.array(rows).T)


def read_published(path: Path, task: str) -> tuple[dict[str, np.ndarray], int]:
    """Return frame, mean, min and max of a task's published curve, float64 [points] each, and the number of seeds.

    Args:
        path: CSV with the columns task, frame, mean, std, min, max, n_seeds.
        task: the task's name.

    Raises:
        ValueError: the file lacks the task.
    """
    with path.open(newline="") as f:
        table = [row for row in csv.DictReader(f) if row["task"] == task]
    if not table:
        raise ValueError(f"{path} has no task {task!r}")
    columns = {name: np.array([float(row[name]) for row in table]) for name in ("frame", "mean", "min", "max")}
    return columns, int(float(table[0]["n_seeds"]))


def settings(run_dir: Path, labels: Sequence[str] = ()) -> tuple[str, str]:
    """Return the run's task and, in one line, the settings needed to compare its curve.

    Args:
        run_dir: run directory.
        labels: of all curves in the figure; those of other runs may name their seeds, such as "seed 2".
    """
    path = run_dir / "config.yaml"
    cfg: Any = OmegaConf.to_container(OmegaConf.load(path), resolve=True) if path.exists() else {}
    agent, every = cfg.get("agent", {}), cfg.get("agent", {}).get("update_every_steps")
    shown = {
        "{0}×{0} pixels": cfg.get("image_size") if cfg.get("obs_type", "pixels") == "pixels" else None,
        "{} vector": cfg.get("obs_type") if cfg.get("obs_type", "pixels") != "pixels" else None,
        "batch {}": cfg.get("batch_size"),
        "hidden {}": agent.get("hidden_dim"),
        "an update every {}": "step" if every == 1 else every and f"{every} steps",
        "{}": style.seeds([cfg["seed"], *_named_seeds(labels)]) if "seed" in cfg else None,
    }
    line = "  ·  ".join(text.format(value) for text, value in shown.items() if value is not None)
    return str(cfg.get("task_name", run_dir.name)), line


def _named_seeds(labels: Sequence[str]) -> list[int]:
    return [int(found[1]) for label in labels if (found := re.search(r"\bseed (\d+)", label))]


# --- learning curve ---------------------------------------------------------------------------------------------


def draw_curve(
    out: Path,
    run_dir: Path,
    task: str,
    published: Path | None = None,
    size: tuple[float, float] = (8.0, 4.5),
    label: str = "evaluation",
    beside: Mapping[str, Path] | None = None,
) -> None:
    """Plot evaluation returns over frames, with the returns of training episodes behind, to `out/curve.png`.

    Args:
        out: directory with train.csv and eval.csv.
        run_dir: run directory, for the settings.
        task: name of the task, for the title and for `published`.
        published: published curves, see `read_published`; drawn up to the run's last frame.
        size: width and height in inches, at 150 dpi.
        label: legend of the run's evaluations.
        beside: eval.csv of other runs to plot, by label.
    """
    frame, result = read_columns(out / "eval.csv", "frame", "episode_reward")
    end = frame[-1]
    figure, axes = plt.subplots(figsize=size)
    line: dict[str, Any] = {"lw": 2.4, "ms": 5, "mec": "white"}
    handles: list[Any] = axes.plot(frame, result, "-o", label=label, zorder=4, **line)
    try:
        train_frame, train_result = read_columns(out / "train.csv", "frame", "episode_reward")
    except ValueError:
        pass  # no training episode has finished yet
    else:
        end = max(end, train_frame[-1])
        colour = handles[0].get_color()
        handles += axes.plot(train_frame, train_result, "o", c=colour, alpha=0.3, mew=0, label="training episode")
    for i, (name, path) in enumerate((beside or {}).items(), 1):
        x, y = read_columns(path, "frame", "episode_reward")
        end = max(end, x[-1])
        handles += axes.plot(x, y, "-o", c=style.colour(i), label=name, zorder=3, **line)
    if published is not None:
        curve, seeds = read_published(published, task)
        handles.append(style.draw_published(axes, curve, f"{DRQV2} (mean and range of {seeds} seeds)"))

    _style(axes, end)
    axes.legend(
        handles=handles,
        loc="lower left",
        bbox_to_anchor=(-0.012, 1.0),
        ncols=4,
        fontsize="medium" if len(handles) < 4 else "small",
        handletextpad=0.5,
        handlelength=1.5,
        columnspacing=1.8,
    )
    figure.subplots_adjust(left=0.1, right=0.97, bottom=0.14, top=0.775)
    title(figure, task, settings(run_dir, [label, *(beside or {})])[1], left=0.1, height=size[1])
    save(figure, out / "curve.png")


def _style(axes: Any, end: float) -> None:
    axes.set_xlim(-0.012 * end, max(end, 1) * 1.012)
    axes.set_ylim(bottom=min(0.0, axes.dataLim.y0))
    axes.xaxis.set_major_formatter(style.thousands)
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.set_xlabel("environment frames", labelpad=8)
    axes.set_ylabel("return")
    axes.tick_params(pad=6)


# --- strip of frames --------------------------------------------------------------------------------------------


def choose(frames: Sequence[int], returns: Sequence[float]) -> list[int]:
    """Return the indices of the first evaluation, the one closest to the middle of their returns, and the last.

    Args:
        frames: environment frame of each evaluation, ascending.
        returns: return of each evaluation.
    """
    last = len(frames) - 1
    half = (returns[0] + returns[last]) / 2
    between = sorted(range(1, last), key=lambda i: (abs(returns[i] - half), frames[i]))[:1]
    return sorted({0, *between, last})


def read_frames(path: Path, count: int) -> tuple[list[np.ndarray], list[float]]:
    """Return `count` frames of a video, uint8 [H, W, 3], evenly spaced in time, and their times in seconds."""
    total, _ = imageio_ffmpeg.count_frames_and_secs(str(path))
    wanted = np.linspace(0, total - 1, count).round().astype(int)
    reader = imageio_ffmpeg.read_frames(str(path))
    meta = next(reader)
    width, height = meta["size"]
    found = {i: np.frombuffer(data, np.uint8) for i, data in enumerate(reader) if i in wanted}
    return [found[i].reshape(height, width, 3) for i in wanted], [float(i / meta["fps"]) for i in wanted]


def tile_size(image: np.ndarray) -> tuple[int, int]:
    """Return the width and height in pixels at which a frame [H, W, 3] is drawn, in its own proportions."""
    height, width = image.shape[:2]
    scale = TILE / max(height, width)
    return round(width * scale), round(height * scale)


def draw_strip(out: Path, run_dir: Path, task: str) -> None:
    """Draw frames of three evaluation videos, one per row, to `out/frames.png`.

    Args:
        out: directory with eval.csv.
        run_dir: run directory with eval_video/FRAME.mp4.
        task: name of the task, for the title.

    Raises:
        ValueError: no evaluation in eval.csv has a video.
    """
    columns = read_columns(out / "eval.csv", "frame", "episode_reward")
    rows = [
        (int(frame), result, path)
        for frame, result in zip(*columns, strict=True)
        if (path := run_dir / "eval_video" / f"{int(frame)}.mp4").exists()
    ]
    if not rows:
        raise ValueError(f"{run_dir / 'eval_video'} has no video of an evaluation in eval.csv")
    rows = [rows[i] for i in choose([r[0] for r in rows], [r[1] for r in rows])]
    videos = [read_frames(path, FRAMES_SHOWN) for _, _, path in rows]

    wide, tall = tile_size(videos[0][0][0])
    head = 128
    width = LABEL + FRAMES_SHOWN * (wide + GAP) - GAP + 2 * MARGIN
    height = head + len(rows) * (tall + GAP) - GAP + MARGIN
    figure = plt.figure(figsize=(width / 100, height / 100), dpi=100)
    alike = len({round(times[-1], 1) for _, times in videos}) == 1
    for row, ((frame, result, _), (images, times)) in enumerate(zip(rows, videos, strict=True)):
        bottom = height - head - row * (tall + GAP) - tall
        middle = (bottom + tall / 2) / height
        figure.text(MARGIN / width, middle, f"return {result:,.0f}", size=16, weight="bold", color=INK, va="bottom")
        figure.text(MARGIN / width, middle - 0.006, f"{frame:,} frames", size=13, color=SOFT, va="top")
        for column, (image, seconds) in enumerate(zip(images, times, strict=True)):
            left = MARGIN + LABEL + column * (wide + GAP)
            axes = figure.add_axes((left / width, bottom / height, wide / width, tall / height))
            axes.axis("off")
            shown = axes.imshow(cv2.resize(image, (wide, tall), interpolation=cv2.INTER_AREA), interpolation="nearest")
            corners = FancyBboxPatch((0, 0), 1, 1, "round,pad=0,rounding_size=0.05", transform=axes.transAxes)
            shown.set_clip_path(corners)
            if row == 0:
                ends = {0: "start", FRAMES_SHOWN - 1: "end"}
                text = f"{seconds:.3g} s" if alike else ends.get(column, "")
                figure.text((left + 2) / width, 1 - (head - 10) / height, text, size=13, color=SOFT, va="bottom")
    about = "the first episode of an evaluation  ·  return: mean of its episodes"
    title(figure, task, about, left=MARGIN / width, height=height / 100, scale=1.45)
    save(figure, out / "frames.png", dpi=100)


# --- both -------------------------------------------------------------------------------------------------------


def title(figure: Figure, text: str, below: str, left: float, height: float, scale: float = 1.0) -> None:
    """Add a title and a subtitle; `height` is the figure's in inches, `left` a fraction of its width."""
    figure.text(left, 1 - 0.16 * scale / height, text, size=13 * scale, weight="bold", color=INK, va="top")
    figure.text(left, 1 - 0.44 * scale / height, below, size=9.5 * scale, color=SOFT, va="top")


def save(figure: Figure, path: Path, dpi: int = 150) -> None:
    """Save the figure as a PNG with 256 colours, a third of the size without a visible difference."""
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=dpi, facecolor="white")
    plt.close(figure)
    image = (
        Image.open(buffer).convert("RGB").quantize(256, Image.Quantize.MEDIANCUT, kmeans=2, dither=Image.Dither.NONE)
    )
    image.save(path, optimize=True)
    print(f"{path}  {image.width}x{image.height}, {path.stat().st_size / 1000:.0f} kB")


def main(argv: Sequence[str] | None = None) -> None:
    """Copy the tables and draw the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run_dir", type=Path, help="run directory")
    parser.add_argument("--out", type=Path, required=True, help="output directory")
    parser.add_argument("--videos", action="store_true", help="also draw frames.png from eval_video/")
    parser.add_argument("--published", type=Path, help="CSV of published curves: task,frame,mean,std,min,max,n_seeds")
    parser.add_argument("--label", default="evaluation", help="legend of the run's curve")
    parser.add_argument("--beside", action="append", default=[], metavar="LABEL=EVAL.CSV", help="another run's curve")
    parser.add_argument("--task", help="name of the task in --published (default: the run's task)")
    args = parser.parse_args(argv)
    task = args.task or settings(args.run_dir)[0]
    try:
        args.out.mkdir(parents=True, exist_ok=True)
        for name in ("train.csv", "eval.csv"):
            shutil.copyfile(args.run_dir / name, args.out / name)
        beside = {name: Path(path) for name, _, path in (text.partition("=") for text in args.beside)}
        draw_curve(args.out, args.run_dir, task, args.published, label=args.label, beside=beside)
        if args.videos:
            draw_strip(args.out, args.run_dir, task)
    except (OSError, ValueError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
