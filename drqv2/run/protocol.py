"""What the services of a run see of it; each adds, in its own file, what it alone needs."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from omegaconf import DictConfig

from drqv2.agents.protocol import Agent
from drqv2.logging.logger import Logger
from drqv2.logging.usage import TimeShares
from drqv2.run.progress import Progress
from drqv2.system.signals import StopSignals
from drqv2.utils import Timer


class Closeable(Protocol):
    """What a run may own."""

    def close(self) -> object:
        """Finish, and release files, processes and memory."""


class Run(Protocol):
    """What all services see of a run; `BaseWorkspace` says what these are."""

    cfg: DictConfig
    work_dir: Path
    progress: Progress
    stop: StopSignals
    timer: Timer
    time_shares: TimeShares
    logger: Logger
    action_repeat: int

    @property
    def agent(self) -> Agent:
        """The agent that learns."""

    @property
    def global_step(self) -> int:
        """Agent steps so far."""

    @property
    def global_episode(self) -> int:
        """Training episodes finished so far."""

    @property
    def global_frame(self) -> int:
        """Environment frames so far."""

    @property
    def num_frames(self) -> int:
        """Environment frames of the whole run."""
