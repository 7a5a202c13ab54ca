"""Read run directories from the outside, whether a run has finished, is running or was killed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from drqv2.config.formatting import column_name
from drqv2.config.schema import length, stored
from drqv2.errors import UserError
from drqv2.report.tables import number, read_json_lines, read_table

_NEEDED = {"task_name": str, "seed": int, "action_repeat": int, "num_envs": int}


@dataclass
class Run:
    """One run, or one task's part of a run of several tasks.

    Attributes:
        path: the run directory.
        task: name of the task; of a run of several tasks its label, such as mt10.
        seed: the run's seed.
        config: configuration by dotted name.
        finished: whether the run has reached its end: with evaluations, the last of them.
        frames: environment frame of each evaluation, [N]; frames are those of one task.
        returns: mean return of each evaluation, [N]; of several tasks, the mean over tasks.
        success: fraction of successful episodes of each evaluation, [N]; NaN where the environment does not report it.
        hours: hours of training at each evaluation, [N].
        speeds: environment frames per second in each row of train.csv, [M].
        starts: the entries of starts.jsonl, one per start or resume.
        videos: evaluation videos, oldest first.
        faults: messages about what could not be read.
        action_repeat: environment frames in an agent step.
        parts: of a run of several tasks, each task's own part.
        whole: of a part, the label of the run's tasks; "" of a run.
        learnt: False of a part whose task the run plays but does not learn from.
        stopped: whether stop_return has ended the run.
        given: what the command line said, by name preset and agent too.
    """

    path: Path
    task: str
    seed: int
    config: dict[str, Any]
    finished: bool
    frames: np.ndarray
    returns: np.ndarray
    success: np.ndarray
    hours: np.ndarray
    speeds: np.ndarray
    starts: list[dict[str, Any]]
    videos: list[Path]
    faults: list[str]
    action_repeat: int
    parts: list[Run] = field(default_factory=list)
    whole: str = ""
    learnt: bool = True
    stopped: bool = False
    given: dict[str, str] = field(default_factory=dict)

    @property
    def fps(self) -> float:
        """Frames per second of the latest rows of train.csv; NaN before the first."""
        return float(np.median(self.speeds[-20:])) if len(self.speeds) else float("nan")

    @property
    def frames_per_round(self) -> int:
        """Environment frames of one round of the training loop."""
        return self.action_repeat * _steps_per_round(self.config)

    @property
    def several(self) -> bool:
        """Whether this is the whole of a run of several tasks."""
        tasks = self.config.get("tasks")
        return isinstance(tasks, list) and len(tasks) > 1 and not self.whole

    @property
    def has_success(self) -> bool:
        """Whether the environment reports success."""
        return bool(np.isfinite(self.success).any())


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
        plain: Any = OmegaConf.to_container(OmegaConf.load(path / "config.yaml"), resolve=True)
        config = stored(plain if isinstance(plain, dict) else {})
    except (OSError, ValueError, YAMLError, OmegaConfBaseException) as e:
        raise UserError(f"config.yaml cannot be read ({' '.join(str(e).split())[:100]})") from e
    for name, kind in _NEEDED.items():
        if not isinstance(config.get(name), kind):
            raise UserError(f"config.yaml is damaged ({name}={config.get(name)})")
    if (end := length(config)) is None:
        raise UserError(f"config.yaml is damaged (num_train_frames={config.get('num_train_frames')})")
    faults: list[str] = []
    rows = read_table(path / "eval.csv", ("frame", "episode_reward", "total_time"), faults)
    rows.sort(key=lambda row: row[1][0])
    frames, returns, seconds = np.array([values for _, values in rows]).reshape(-1, 3).T
    speeds = np.array([fps for _, (fps,) in read_table(path / "train.csv", ("fps",), faults)])
    videos = [video for video in path.glob("eval_video/*.mp4") if video.stem.isdecimal()]
    end -= config["action_repeat"] * _steps_per_round(config)
    run = Run(
        path=path,
        task=config["task_name"],
        seed=config["seed"],
        config=config,
        finished=len(frames) > 0 and bool(frames[-1] >= end),
        stopped=good_enough(frames, returns, config.get("stop_return")),
        frames=frames,
        returns=returns,
        success=np.array([number(row, "success") for row, _ in rows]),
        hours=seconds / 3600,
        speeds=speeds,
        starts=read_json_lines(path / "starts.jsonl", faults),
        videos=sorted(videos, key=lambda video: int(video.stem)),
        faults=faults + [f"{p.name} was damaged and is in quarantine" for p in sorted(path.glob("quarantine/*"))],
        action_repeat=config["action_repeat"],
        given=_given(path),
    )
    run.finished |= run.stopped
    if run.several:
        names = enumerate(map(str, config["tasks"]))
        found = (_part(run, [row for row, _ in rows], i, name) for i, name in names)
        run.parts = [part for part in found if len(part.frames)]
    return run


def _given(path: Path) -> dict[str, str]:
    """Return what the command line of a run's first start said, by name; {} of a run that a program has started."""
    try:
        words = OmegaConf.to_container(OmegaConf.load(path / ".hydra/overrides.yaml"))
    except (OSError, ValueError, YAMLError, OmegaConfBaseException):
        return {}
    parts = (str(word).lstrip("+~").partition("=") for word in words or ())
    return {name: value for name, _, value in parts}


def _part(run: Run, rows: Sequence[dict[str, str]], index: int, name: str) -> Run:
    """Return one task's part of a run of several tasks; frames are counted with the task's own action_repeat.

    Args:
        run: the run.
        rows: its evaluations, ordered by frame.
        index: the task's index.
        name: the task's name in `tasks`, which may begin with a library's.
    """
    task = column_name(name)

    def column(metric: str) -> np.ndarray:  # a resume may have changed metric_names
        named, numbered = ([number(row, f"{metric}_{key}") for row in rows] for key in (task, f"env_index_{index}"))
        return np.where(np.isnan(named), numbered, named)

    returns = column("episode_reward")
    played = np.isfinite(returns)
    repeat = run.config.get(f"per_task.{name}.action_repeat")
    repeat = repeat if isinstance(repeat, int) else run.action_repeat
    return replace(
        run,
        task=task,
        frames=run.frames[played] * repeat / run.action_repeat,
        returns=returns[played],
        success=column("success")[played],
        hours=run.hours[played],
        videos=[],  # shown with the run
        action_repeat=repeat,
        whole=run.task,
        learnt=name not in (run.config.get("exclude_tasks") or ()),
    )


def good_enough(frames: np.ndarray, returns: np.ndarray, stop_return: float | None) -> bool:
    """Return whether stop_return has ended a run; the evaluation before the first frame does not count."""
    return stop_return is not None and len(frames) > 0 and bool(frames[-1] > 0 and returns[-1] >= stop_return)


def _steps_per_round(config: dict[str, Any]) -> int:
    if "unroll_length" in config:
        return int(config["batch_size"] * config["unroll_length"])
    return int(config["segments"] * config["horizon"] if "segments" in config else config["num_envs"])
