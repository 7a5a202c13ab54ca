"""Frames a second of training as a whole: `python -m benchmarks.loop [--json]`."""

from __future__ import annotations

import csv
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.baseline import loop, pixels
from benchmarks.baseline.learner import PlainDrQV2
from benchmarks.baseline.pixels import EPISODE, REPEAT
from benchmarks.common import Row, main, quartiles
from benchmarks.turns import alternate

ABOUT = "frames a second once updates have begun, the paper's settings; ratio: this over the baseline"
ROOT = Path(__file__).resolve().parents[1]
COLLECTING, LEARNING = 3, 2  # episodes without and with updates; the last one counts
WORKERS = 1  # two cores have no room for the paper's four


def measure(quick: bool = False) -> list[Row]:
    """Return a row for the baseline and one for train.py with precision=auto."""
    steps = 2 if quick else 12  # agent steps of the baseline in a figure
    sides = {"baseline": partial(plain_fps, quick, steps), "train.py": partial(own_fps, quick)}
    fps = alternate(sides, seconds=0.0, warm_up=0, least=2 if quick else 3)
    rows = []
    for name, values in fps.items():
        ratios = [own / slow for slow, own in zip(fps["baseline"], values, strict=True)]
        row = {"side": name, "task": "cartpole_balance_sparse", "batch_size": 16 if quick else 256}
        rows.append({**row, **quartiles(values, "fps"), **quartiles(ratios, "ratio"), "repetitions": len(values)})
    return rows


def plain_fps(quick: bool, steps: int) -> Iterator[float]:
    """Yield the baseline's frames a second, over `steps` agent steps each, in one run that waits in between."""
    env = pixels.wrap(pixels.short_cartpole(), camera=0)
    agent = PlainDrQV2((9, pixels.SIZE, pixels.SIZE), 1, hidden_dim=32 if quick else 1024)
    with tempfile.TemporaryDirectory() as folder:
        seed_steps = COLLECTING * EPISODE // REPEAT
        run = loop.train(env, agent, Path(folder), 16 if quick else 256, WORKERS, seed_steps)
        for _ in range(4):  # warm-up
            next(run)
        while True:
            begin = time.perf_counter()
            for _ in range(steps):
                next(run)
            yield REPEAT * steps / (time.perf_counter() - begin)


def own_fps(quick: bool) -> Iterator[float]:
    """Yield the frames a second of train.py, each of a run of its own, over the last of its episodes.

    Its environment comes from a factory, which costs it what `envs.make` saves on floors of its own making.
    """
    frames = EPISODE * (COLLECTING + LEARNING)
    small = ("preset=debug", "image_size=84", "action_repeat=2") if quick else ("preset=paper",)
    while True:
        with tempfile.TemporaryDirectory() as folder:
            train(
                Path(folder),
                *small,
                f"replay_buffer_num_workers={WORKERS}",
                "env._target_=benchmarks.baseline.pixels.short_cartpole",
                f"num_seed_frames={EPISODE * COLLECTING}",
                f"num_train_frames={frames}",
                f"eval_every_frames={frames}",  # evaluation takes no part in the figures
                "num_eval_episodes=1",
                "save_video=false",
                "save_train_video=false",
            )
            with (Path(folder) / "train.csv").open(newline="") as f:
                yield [float(row["fps"]) for row in csv.DictReader(f)][-1]


def train(run_dir: Path, *overrides: str) -> None:
    """Run train.py in `run_dir`.

    Raises:
        RuntimeError: it fails; with its last words.
    """
    command = [sys.executable, "train.py", f"hydra.run.dir={run_dir}", *overrides]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"train.py ended with status {done.returncode}:\n{done.stderr[-2000:]}")


if __name__ == "__main__":
    main("loop", ABOUT, measure)
