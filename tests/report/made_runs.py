"""Directories such as runs leave behind, written by hand."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

ROOT = Path(__file__).resolve().parents[2]


CONFIG = {"task_name": "cheetah_run", "seed": 1, "action_repeat": 2, "num_train_frames": 100_000, "lr": 1e-4}


CONFIG |= {"agent": {"lr": "${lr}", "hidden_dim": 1024}}


def make_run(path: Path, returns: Any, every: int = 10_000, hours: float = 0.1, **config: Any) -> Path:
    """Write what a run leaves: an evaluation every `every` frames, which takes `hours` of training to come to."""
    path.mkdir(parents=True)
    OmegaConf.save(OmegaConf.merge(CONFIG, config), path / "config.yaml")
    with (path / "eval.csv").open("w", newline="") as f:
        writer = csv.writer(f)
        writer.writerow(["frame", "step", "episode", "episode_length", "episode_reward", "total_time", "more"])
        for i, value in enumerate(returns):
            writer.writerow([i * every, i * every // 2, i, 1000, value, 3600 * hours * i, 0.5])
    with (path / "train.csv").open("w", newline="") as f:
        csv.writer(f).writerows([["frame", "fps", "total_time"], [1000, 90.0, 11.0], [2000, 110.0, 20.0]])
    return path
