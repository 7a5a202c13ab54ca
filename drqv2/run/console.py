"""The console of a run, and what it shows."""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import Protocol

import torch

from drqv2.logging.console import Console, Dashboard, PlainConsole, Status
from drqv2.logging.usage import Usage
from drqv2.run import protocol
from drqv2.run.environments import task_suffixes


class Run(protocol.Run, Protocol):
    """What a console needs of a run."""

    device: torch.device

    def details(self) -> dict[str, str]:
        """Return further lines of a dashboard, by label, where a regime has some."""


def make_console(run: Run) -> Console:
    """Return the console that is configured: auto is a dashboard on terminals that can move their cursor."""
    cfg = run.cfg
    tasks = [suffix[1:] for suffix in task_suffixes(cfg)] if "tasks" in cfg else []  # as in eval.csv
    if cfg.console == "rich" or (cfg.console == "auto" and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"):
        return Dashboard(f"{cfg.task_name}, seed {cfg.seed}", partial(status, run), Usage(run.device), tasks=tasks)
    return Console() if cfg.console == "off" else PlainConsole(tasks)


def status(run: Run) -> Status:
    """Return what a dashboard shows of a run."""
    p, cfg = run.progress, run.cfg
    return Status(
        frame=run.global_frame,
        num_frames=run.num_frames,
        best_return=p.best_return,
        shares=run.time_shares.shares(),
        details=run.details(),
        epoch=p.epoch + 1,
        epoch_frame=(p.step - p.epoch_step) * run.action_repeat,
        epoch_frames=cfg.epoch_frames or cfg.eval_every_frames or run.num_frames,
        env_step=p.step,
        gradient_step=p.gradient_step,
    )
