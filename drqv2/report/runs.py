"""Read run directories from the outside, whether a run has finished, is running or was killed."""

from __future__ import annotations

import csv
import json
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from drqv2.config.checks import leaves
from drqv2.config.schema import every_key, legacy, length
from drqv2.config.tables.shared import FIRST_REGIME
from drqv2.errors import UserError

_NEEDED = {"task_name": str, "seed": int, "action_repeat": int, "num_envs": int}
# Keys that may differ between runs of the same group.
_FREE = {name for name, key in every_key().items() if key.resume == "free"}
_IGNORED = _FREE - {"init_from", "agent_dir"} | {"seed", "agent.obs_shape", "agent.action_shape"}


@dataclass
class Run:
    """One run.

    Attributes:
        path: the run directory.
        task: name of the task.
        seed: the run's seed.
        config: configuration by dotted name.
        frames: environment frame of each evaluation, [N].
        returns: mean return of each evaluation, [N].
        hours: hours of training at each evaluation, [N].
        speeds: environment frames per second in each row of train.csv, [M].
        speed_hours: hours of training at each of these rows, [M].
        starts: the entries of starts.jsonl, one per start or resume.
        videos: evaluation videos, oldest first.
        faults: messages about what could not be read.
    """

    path: Path
    task: str
    seed: int
    config: dict[str, Any]
    frames: np.ndarray
    returns: np.ndarray
    hours: np.ndarray
    speeds: np.ndarray
    speed_hours: np.ndarray
    starts: list[dict[str, Any]]
    videos: list[Path]
    faults: list[str]

    @property
    def fps(self) -> float:
        """Frames per second of the latest rows of train.csv; NaN before the first."""
        return float(np.median(self.speeds[-20:])) if len(self.speeds) else float("nan")

    @property
    def finished(self) -> bool:
        """Whether the run has reached its end."""
        frames = length(self.config)
        return len(self.frames) > 0 and frames is not None and self.frames[-1] >= frames - self.frames_per_round

    @property
    def frames_per_round(self) -> int:
        """Environment frames of one round of the training loop."""
        config = self.config
        steps = config["segments"] * config["horizon"] if "segments" in config else config["num_envs"]
        return int(self.config["action_repeat"] * steps)

    @property
    def setting(self) -> dict[str, Any]:
        """The keys that affect learning, without the seed."""
        return {name: value for name, value in self.config.items() if name not in _IGNORED}


def find(roots: list[Path]) -> Iterator[Path]:
    """Yield each run directory in and below `roots` once, ordered by path."""
    seen: set[Path] = set()
    for root in roots:
        for folder, below, names in os.walk(root, followlinks=True):
            below.sort()
            if (real := Path(folder).resolve()) in seen:
                below.clear()
                continue
            seen.add(real)
            if "config.yaml" in names and {"eval.csv", "train.csv", "starts.jsonl"} & set(names):
                below.clear()
                yield Path(folder)


def read(path: Path) -> Run:
    """Return the run in a directory.

    Raises:
        UserError: its configuration is missing or damaged.
    """
    try:
        stored = leaves(OmegaConf.to_container(OmegaConf.load(path / "config.yaml"), resolve=True))
        config = legacy(stored.get("regime", FIRST_REGIME)) | stored
    except (OSError, ValueError, YAMLError, OmegaConfBaseException) as e:
        raise UserError(f"config.yaml cannot be read ({' '.join(str(e).split())[:100]})") from e
    for name, kind in _NEEDED.items():
        if not isinstance(config.get(name), kind):
            raise UserError(f"config.yaml is damaged ({name}={config.get(name)})")
    if length(config) is None:
        raise UserError(f"config.yaml is damaged (num_train_frames={config.get('num_train_frames')})")
    faults: list[str] = []
    rows = read_table(path / "eval.csv", ("frame", "episode_reward", "total_time"), faults)
    table = np.array([values for _, values in rows]).reshape(-1, 3)
    frames, returns, seconds = table[np.argsort(table[:, 0], kind="stable")].T
    speed = np.array([values for _, values in read_table(path / "train.csv", ("total_time", "fps"), faults)])
    speed_seconds, speeds = speed.reshape(-1, 2).T
    videos = [video for video in path.glob("eval_video/*.mp4") if video.stem.isdecimal()]
    return Run(
        path=path,
        task=config["task_name"],
        seed=config["seed"],
        config=config,
        frames=frames,
        returns=returns,
        hours=seconds / 3600,
        speeds=speeds,
        speed_hours=speed_seconds / 3600,
        starts=read_json_lines(path / "starts.jsonl", faults),
        videos=sorted(videos, key=lambda video: int(video.stem)),
        faults=faults + [f"{p.name} was damaged and is in quarantine" for p in sorted(path.glob("quarantine/*"))],
    )


def read_table(path: Path, names: Sequence[str], faults: list[str]) -> list[tuple[dict[str, str], list[float]]]:
    """Return the rows of a CSV file, each with its columns `names` as numbers; none if the file does not exist.

    Rows in which one of these is not a finite number are skipped and added to `faults`.
    """
    good, bad = [], 0
    try:
        rows = list(csv.DictReader(_lines(path, faults)))
    except csv.Error as e:
        faults.append(f"{path.name} is damaged ({e})")
        rows = []
    for row in rows:
        try:
            values = [float(row[name]) for name in names]
        except (KeyError, TypeError, ValueError):
            values = [math.nan]
        if all(map(math.isfinite, values)):
            good.append((row, values))
        else:
            bad += 1
    if bad:
        faults.append(f"{bad} damaged rows in {path.name}")
    return good


def read_json_lines(path: Path, faults: list[str]) -> list[dict[str, Any]]:
    """Return the objects in a file of JSON lines; none if it does not exist. Other lines are added to `faults`."""
    good: list[dict[str, Any]] = []
    bad = 0
    for line in _lines(path, faults):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict):
            good.append(value)
        else:
            bad += 1
    if bad:
        faults.append(f"{bad} damaged lines in {path.name}")
    return good


def _lines(path: Path, faults: list[str]) -> list[str]:
    try:
        return path.read_text("utf-8", errors="replace").splitlines()
    except FileNotFoundError:  # the run has just started
        return []
    except OSError as e:
        faults.append(f"{path.name} cannot be read ({e.strerror})")
        return []
