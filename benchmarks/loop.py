"""Frames a second of `train.py` as a whole: `python -m benchmarks.loop [--json]`."""

from __future__ import annotations

import csv
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.common import Row, main

ABOUT = "frames a second of train.py before (collecting) and after (learning) the first update"
ROOT = Path(__file__).resolve().parents[1]
EPISODE, COLLECTING, LEARNING = 100, 3, 4  # frames of an episode; episodes without and with updates


def short_cartpole() -> Any:
    """Return cartpole_balance_sparse with episodes of EPISODE frames (0.01 s each), so that a few take seconds."""
    from dm_control import suite  # not before drqv2.envs has chosen which OpenGL draws

    return suite.load("cartpole", "balance_sparse", task_kwargs={"time_limit": EPISODE * 0.01})


def measure(quick: bool = False) -> list[Row]:
    """Return a row for a run of a few short episodes; the first of either kind is warm-up."""
    preset = "debug" if quick else "cpu"
    frames = EPISODE * (COLLECTING + LEARNING)
    with tempfile.TemporaryDirectory() as folder:
        train(
            Path(folder),
            f"preset={preset}",
            "action_repeat=2",
            "env._target_=benchmarks.loop.short_cartpole",
            f"num_seed_frames={EPISODE * COLLECTING}",
            f"num_train_frames={frames}",
            f"eval_every_frames={frames}",  # evaluation takes no part in the figures
            "num_eval_episodes=1",
            "save_video=false",
            "save_train_video=false",
        )
        with (Path(folder) / "train.csv").open(newline="") as f:
            fps = [float(row["fps"]) for row in csv.DictReader(f)]
    return [
        {
            "preset": preset,
            "task": "cartpole_balance_sparse",
            "episode_frames": EPISODE,
            "frames": frames,
            "collecting_fps": statistics.median(fps[1:COLLECTING]),
            "learning_fps": statistics.median(fps[COLLECTING + 1 :]),
        }
    ]


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
