"""What eval.py evaluates: weights, the configuration they were trained with, and the tasks to play."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from omegaconf import DictConfig

from drqv2.config.checks import validate
from drqv2.config.formatting import column_name
from drqv2.errors import UserError
from drqv2.evaluation import trained_agent as trained
from drqv2.run import factory
from drqv2.run.environments import task_names


@dataclass(frozen=True)
class Subject:
    """What is evaluated.

    Attributes:
        source: the run directory or file given.
        path: the file of weights.
        cfg: the run's configuration, changed for this evaluation.
        weights: the agent's captured state.
        frame: frame of training at which it was saved.
        tasks: indices of the tasks that are played.
        played: their names.
        several: whether the run has several tasks.
        title: the tasks in a word.
        stem: path of what is written, without suffix.
    """

    source: Path
    path: Path
    cfg: DictConfig
    weights: dict[str, Any]
    frame: int
    tasks: list[int]
    played: list[str]
    several: bool
    title: str
    stem: Path


def subject_of(source: Path, args: SimpleNamespace) -> Subject:
    """Read the weights and their configuration, and apply the command line to it.

    Args:
        source: a run directory or a file of weights.
        args: the values of all keys of eval.py.

    Raises:
        UserError: there are no weights, or a value does not fit them.
    """
    path = trained.find(source, args.snapshot)
    cfg, weights, frame = trained.read(path)
    if not args.trust and not (source.is_dir() and path.resolve().is_relative_to(source.resolve())):
        trained.reject_foreign_code(cfg, path)
    another = args.task is not None and cfg.get("tasks") is None
    if args.export and (another or args.seed is not None or args.max_episode_steps):
        raise UserError("export: describes the run as it was trained; leave out task, seed and max_episode_steps")
    _override(cfg, args)
    names = task_names(cfg)
    tasks = [_index(args.task, names)] if args.task and len(names) > 1 else list(range(len(names)))
    if args.store and len(tasks) > 1:
        raise UserError("store: keeps the episodes of one task; add task=NAME, one of " + ", ".join(names))
    title = cfg.task_name if len(tasks) == len(names) else column_name(names[tasks[0]])
    folder = Path(args.out) if args.out else (source if source.is_dir() else source.parent) / "eval"
    stem = folder / f"{path.stem}_{frame}_{re.sub(r'[^A-Za-z0-9_.-]+', '_', title)}"
    return Subject(source, path, cfg, weights, frame, tasks, [names[t] for t in tasks], len(names) > 1, title, stem)


def _index(task: str, names: Sequence[str]) -> int:
    """Return the index of one of several tasks, which may be named as in the columns of eval.csv.

    Raises:
        UserError: the run has no such task.
    """
    found = [i for i, name in enumerate(names) if task in (name, column_name(name))]
    if not found:
        raise UserError(f"task={task}: the run's tasks are {', '.join(names)}")
    return found[0]


def _override(cfg: DictConfig, args: SimpleNamespace) -> None:
    """Change a run's configuration for evaluation and resolve it on this machine."""
    cfg.device, cfg.compile, cfg.num_eval_envs = args.device, "auto", args.num_envs
    cfg.precision = "auto" if cfg.precision == "bf16" else cfg.precision  # the run's machine may have been another
    cfg.replay_buffer_size = 10**9  # unused, but checked against the length of episodes
    if "device" in cfg.agent:
        cfg.agent.device = args.device
    if args.agent_dir is not None:
        cfg.agent_dir = args.agent_dir
    if args.task is not None and cfg.get("tasks") is None:
        trained.override_task(cfg, args.task)
    elif args.task is not None and len(cfg.tasks) == 1:
        cfg.tasks = [args.task]
    if args.seed is not None:
        cfg.seed = args.seed
    validate(cfg)
    factory.prepare_machine(cfg)
    if cfg.device.startswith("cuda:"):
        torch.cuda.set_device(cfg.device)
