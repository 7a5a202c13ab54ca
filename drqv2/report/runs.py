"""Read run directories from the outside, whether a run has finished, is running or was killed."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from drqv2.config.checks import leaves
from drqv2.config.schema import every_key, legacy
from drqv2.errors import UserError

_NEEDED = ("frame", "episode_reward", "total_time")
_LARGEST = 1e15  # larger values are damage: sums could overflow, and charts cannot show them
# Keys that may differ between runs of the same group.
_FREE = {name for name, key in every_key().items() if key.resume == "free"}
_IGNORED = _FREE - {"init_from", "agent_dir"} | {"seed", "agent.obs_shape", "agent.action_shape"}


@dataclass
class Run:
    """One run.

    Attributes:
        path: the run directory.
        config: configuration by dotted name.
        frames: environment frame of each evaluation, [N].
        returns: mean return of each evaluation, [N].
        hours: hours of training at each evaluation, [N].
        fps: frames per second of the latest training episodes; NaN before the first.
        starts: the entries of starts.jsonl, one per start or resume.
        videos: evaluation videos, oldest first.
        faults: messages about what could not be read.
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
        """Name of the task."""
        return str(self.config.get("task_name"))

    @property
    def seed(self) -> Any:
        """The run's seed."""
        return self.config.get("seed")

    @property
    def finished(self) -> bool:
        """Whether the run has reached num_train_frames."""
        return len(self.frames) > 0 and self.frames[-1] >= self.config["num_train_frames"] - self.frames_per_step

    @property
    def frames_per_step(self) -> int:
        """Environment frames of one step in all environments."""
        return int(self.config["action_repeat"] * self.config["num_envs"])

    @property
    def setting(self) -> dict[str, Any]:
        """The keys that affect learning, without the seed."""
        return {name: value for name, value in self.config.items() if name not in _IGNORED}


def is_plausible(value: Any) -> bool:
    """Return whether a value is a finite number of plausible size."""
    return isinstance(value, int | float) and abs(value) <= _LARGEST  # false for NaN


def numbers(row: Mapping[str, Any], names: Sequence[str]) -> list[float] | None:
    """Return the columns `names` of a row of a CSV file; None if one is missing, no number or not plausible."""
    try:
        values = [float(row[name]) for name in names]
    except (KeyError, TypeError, ValueError):
        return None
    return values if all(map(is_plausible, values)) else None


def utf8_safe(text: str) -> str:
    """Replace what cannot be encoded as UTF-8, such as bytes of a file name, by question marks."""
    return text.encode(errors="replace").decode()


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
        stored = OmegaConf.load(path / "config.yaml")
        config: Any = OmegaConf.to_container(stored, resolve=True) if isinstance(stored, DictConfig) else None
    except (OSError, ValueError, RecursionError, YAMLError, OmegaConfBaseException) as e:
        raise UserError(f"config.yaml cannot be read ({' '.join(str(e).split())[:100]})") from e
    if not isinstance(config, dict):
        raise UserError("config.yaml is not a configuration")
    config = legacy() | leaves(config)
    for name in ("num_train_frames", "action_repeat", "num_envs"):
        if not is_plausible(config.get(name)):
            raise UserError(f"config.yaml is damaged ({name}={config.get(name)})")
    if not isinstance(config.get("task_name"), str):
        raise UserError("config.yaml is damaged (no task_name)")
    faults: list[str] = []
    table = _columns(path / "eval.csv", _NEEDED, faults)
    order = np.argsort(table[:, 0], kind="stable")
    speed = _columns(path / "train.csv", ("fps",), faults)[-20:, 0]
    videos = [video for video in path.glob("eval_video/*.mp4") if video.stem.isdecimal()]
    return Run(
        path=path,
        config=config,
        frames=table[order, 0],
        returns=table[order, 1],
        hours=table[order, 2] / 3600,
        fps=float(np.median(speed)) if len(speed) else float("nan"),
        starts=list(_starts(path / "starts.jsonl", faults)),
        videos=sorted(videos, key=lambda video: int(video.stem)),
        faults=faults + [f"{p.name} was damaged and is in quarantine" for p in sorted(path.glob("quarantine/*"))],
    )


def _columns(path: Path, names: tuple[str, ...], faults: list[str]) -> np.ndarray:
    """Return columns, float64 [rows, len(names)]. Unreadable rows are skipped and added to `faults`."""
    rows: list[list[float] | None] = []
    try:
        with path.open(newline="", encoding="utf-8", errors="replace") as f:
            rows = [numbers(row, names) for row in csv.DictReader(f)]
    except FileNotFoundError:
        pass  # the run has just started
    except (OSError, csv.Error) as e:
        faults.append(f"{path.name} cannot be read ({e})")
    good = [row for row in rows if row]
    if len(good) < len(rows):
        faults.append(f"{len(rows) - len(good)} damaged rows in {path.name}")
    return np.array(good, float).reshape(-1, len(names))


def _starts(path: Path, faults: list[str]) -> Iterator[dict[str, Any]]:
    try:
        lines = path.read_text("utf-8", errors="replace").splitlines()
    except FileNotFoundError:  # from an older version
        return
    except OSError as e:
        faults.append(f"{path.name} cannot be read ({e.strerror})")
        return
    for line in lines:
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict) and isinstance(value.get("frame", 0), int):
            yield value
        else:
            faults.append(f"a damaged line in {path.name}")
