"""Directories such as runs leave behind, written by hand."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
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


def make_run_of_tasks(
    path: Path,
    returns: Mapping[str, Sequence[float]],
    success: Mapping[str, Sequence[float]] | None = None,
    names: str = "task",
    every: int = 10_000,
    **config: Any,
) -> Path:
    """Write what a run of several tasks leaves: by task, an evaluation every `every` frames."""
    label = "+".join(name.rpartition(":")[2] for name in returns)
    base: dict[str, Any] = {"regime": "multitask", "tasks": list(returns), "task_name": label, "metric_names": names}
    make_run(path, (), **(base | config))
    columns = {"episode_reward": returns, "success": success or {}}
    rows: list[dict[str, float]] = []
    for n in range(len(next(iter(returns.values())))):
        row: dict[str, float] = {"frame": n * every, "step": n * every // 2, "total_time": 360.0 * n}
        for metric, tasks in columns.items():
            for i, (name, values) in enumerate(tasks.items()):
                suffix = name.rpartition(":")[2] if names == "task" else f"env_index_{i}"
                row[f"{metric}_{suffix}"] = values[n]
            if tasks:
                row[metric] = sum(values[n] for values in tasks.values()) / len(tasks)
        rows.append(row)
    with (path / "eval.csv").open("w", newline="") as f:
        writer = csv.DictWriter(f, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return path


def make_many(folder: Path) -> None:
    """Write 48 runs of 20 settings of a task."""
    rng = np.random.default_rng(0)
    for i in range(48):
        agent = {"critic": ("drqv2", "residual")[i % 2], "hidden_dim": (256, 512, 1024, 2048, 4096)[i % 5]}
        values = 800 * (1 - np.exp(-np.arange(51) / 10)) + rng.normal(0, 30, 51)
        more: dict[str, Any] = {"seed": i // 20, "lr": (1e-4, 3e-4)[i % 4 // 2], "agent": agent}
        make_run(folder / f"run{i:02}", values, task_name="walker_walk", **more)
