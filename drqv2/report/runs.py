"""What lies in run directories: read from outside, whether a run has ended, goes on or was killed."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from drqv2.resuming import leaves
from drqv2.schema import FREE

_NEEDED = ("frame", "episode_reward", "total_time")
# What differs between runs of one setting.
_OWN = {*FREE, "seed", "agent.obs_shape", "agent.action_shape"}


@dataclass
class Run:
    """One run.

    Attributes:
        path: its directory.
        config: its configuration by dotted names.
        frames: environment frames of its evaluations, [N].
        returns: their mean returns, [N].
        hours: hours of training at each, [N].
        fps: frames a second of its newest training episodes, NaN before the first.
        starts: what starts.jsonl says, a dict for each start.
        videos: of its evaluations, oldest first.
        faults: what could not be read, in words.
    """

    path: Path
    config: dict[str, Any]
    frames: np.ndarray
    returns: np.ndarray
    hours: np.ndarray
    fps: float = float("nan")
    starts: list[dict[str, Any]] = field(default_factory=list)
    videos: list[Path] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    @property
    def task(self) -> str:
        """Name of its task."""
        return str(self.config.get("task_name"))

    @property
    def seed(self) -> Any:
        """Its seed."""
        return self.config.get("seed")

    @property
    def ended(self) -> bool:
        """Whether it has had all its frames."""
        length = int(self.config.get("num_train_frames", 0))
        return len(self.frames) > 0 and self.frames[-1] >= length - int(self.config.get("action_repeat", 1))

    @property
    def setting(self) -> dict[str, Any]:
        """Return the keys that make it learn as it does: all but seed and what moves no curve."""
        return {name: value for name, value in self.config.items() if name not in _OWN}


def find(roots: list[Path]) -> Iterator[Path]:
    """Yield the run directories in and below some folders, in the order of their paths."""
    for root in roots:
        for folder, below, names in os.walk(root, followlinks=True):
            below.sort()
            if "config.yaml" in names and {"eval.csv", "train.csv"} & set(names):
                below.clear()
                yield Path(folder)


def read(path: Path) -> Run | None:
    """Return the run in a directory; None where its configuration is missing or damaged."""
    try:
        stored = OmegaConf.load(path / "config.yaml")
        config: Any = OmegaConf.to_container(stored, resolve=True) if isinstance(stored, DictConfig) else None
    except (OSError, ValueError, YAMLError, OmegaConfBaseException):
        return None
    if not isinstance(config, dict) or "task_name" not in config:
        return None
    faults: list[str] = []
    table = _columns(path / "eval.csv", _NEEDED, faults)
    order = np.argsort(table[:, 0], kind="stable")
    speed = _columns(path / "train.csv", ("fps",), faults)[-20:, 0]
    return Run(
        path=path,
        config=leaves(config),
        frames=table[order, 0],
        returns=table[order, 1],
        hours=table[order, 2] / 3600,
        fps=float(np.median(speed)) if len(speed) else float("nan"),
        starts=list(_json_lines(path / "starts.jsonl", faults)),
        videos=sorted(path.glob("eval_video/*.mp4"), key=lambda p: (len(p.stem), p.stem)),
        faults=faults + [f"{p.name} was damaged and is in quarantine" for p in sorted(path.glob("quarantine/*"))],
    )


def _columns(path: Path, names: tuple[str, ...], faults: list[str]) -> np.ndarray:
    """Return columns, float64 [rows, len(names)]; rows that cannot be read are left out, and that is said."""
    rows, bad = [], 0
    try:
        with path.open(newline="", encoding="utf-8", errors="replace") as f:
            for row in csv.DictReader(f):
                try:
                    rows.append([float(row[name]) for name in names])
                except (KeyError, TypeError, ValueError):
                    bad += 1
    except FileNotFoundError:
        pass  # it has only begun
    except (OSError, csv.Error) as e:
        faults.append(f"{path.name} cannot be read ({e})")
    if bad:
        faults.append(f"{bad} damaged rows in {path.name}")
    return np.array(rows, float).reshape(-1, len(names))


def _json_lines(path: Path, faults: list[str]) -> Iterator[dict[str, Any]]:
    try:
        lines = path.read_text("utf-8", errors="replace").splitlines()
    except FileNotFoundError:  # a run of an older version
        return
    except OSError as e:
        faults.append(f"{path.name} cannot be read ({e.strerror})")
        return
    for line in lines:
        try:
            value = json.loads(line)
        except ValueError:
            faults.append(f"a damaged line in {path.name}")
            continue
        if isinstance(value, dict):
            yield value
