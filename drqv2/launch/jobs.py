"""One run of Hydra's, here or where a launcher has taken it: how it is called, and how it ends in plain words."""

from __future__ import annotations

import os
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from drqv2.config.checks import settle
from drqv2.errors import DiskError, Stopped, UserError
from drqv2.system import files
from drqv2.system.signals import resume_hint

Run = Callable[[DictConfig, Path], Any]


class JobFailed(Exception):
    """A job of a sweep has failed, and has said why; the others go on."""


class Job:
    """What Hydra calls for each job, here or in a process or on a machine that a launcher has chosen.

    Args:
        run: gets the checked configuration and the run's directory.

    Attributes:
        crashes: what single runs raised that was no mistake of the user's.
        failed: jobs of a sweep that failed in this process.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._home = (socket.gethostname(), os.getpid())
        self._script = sys.argv[0]
        self.crashes: list[Exception] = []
        self.failed = 0
        self.__wrapped__ = run  # Hydra names its job after the module of the function that this one wraps

    def __call__(self, cfg: DictConfig) -> Any:
        """Check the configuration and run it; return what it returns.

        Raises:
            SystemExit: a single run has ended before its time; with its exit code.
            JobFailed: one of several has.
        """
        hydra = HydraConfig.get()
        work_dir = Path(hydra.runtime.output_dir)
        sweep = hydra.mode == RunMode.MULTIRUN
        elsewhere = (socket.gethostname(), os.getpid()) != self._home
        if elsewhere:
            sys.argv[0] = self._script  # for what people are told to type
        try:
            settle(cfg)
            return self._run(cfg, work_dir)
        except UserError as error:
            words, code = f"error: {error}", error.code
        except Stopped as stopped:
            sweep = sweep and elsewhere  # the jobs of a sweep that is run one after another, here, end together
            words, code = f"\n{stopped}; {resume_hint(work_dir)}", stopped.code
        except KeyboardInterrupt:
            sweep = False
            words, code = f"\ninterrupted; {resume_hint(work_dir)}", 130
        except Exception as error:
            told = in_plain_words(error, work_dir)
            if not told and not sweep:
                self.crashes.append(error)
                raise
            words, code = (f"error: {told}", told.code) if told else (traceback.format_exc(), 1)
        # Outside the handlers: what a job of a sweep held in memory is not kept alive by its error.
        self._leave(sweep, words, code)

    def _leave(self, sweep: bool, words: str, code: int) -> NoReturn:
        print(words, file=sys.stderr, flush=True)
        if sweep:
            self.failed += 1
            raise JobFailed(words.strip())
        sys.exit(code)


def in_plain_words(error: Exception, work_dir: Path) -> UserError | None:
    """Return in plain words what the machine lacks, None for a fault of the program's."""
    if isinstance(error, OSError) and error.errno in files.DISK_ERRNOS:
        return DiskError(f"{error}\nThe disk is full or fails: make room; {resume_hint(work_dir)}")
    if type(error).__name__ == "OutOfMemoryError":  # torch's, of a GPU
        return UserError(
            f"the GPU is out of memory: {' '.join(str(error).split())[:120]}\n"
            f"Smaller batch_size, agent.hidden_dim or num_envs, replay_device=disk or compile=false need less; "
            f"{resume_hint(work_dir)}"
        )
    if type(error).__name__ == "SafetensorError" or (isinstance(error, FileNotFoundError) and "episode_" in str(error)):
        said = next((line for line in str(error).splitlines() if "episode_" in line), str(error))
        return UserError(
            f"an episode was damaged or deleted while the run was reading it: {said.strip()[:200]}\n"
            f"Its file is checked at each start; {resume_hint(work_dir)}"
        )
    if isinstance(error, FileNotFoundError) and str(error.filename or "").startswith(str(work_dir)):
        return UserError(
            f"{error.filename} was deleted while the run was using it\n"
            f"What a snapshot holds of it is written anew at a start; {resume_hint(work_dir)}"
        )
    if isinstance(error, MemoryError) or "DefaultCPUAllocator" in str(error):
        return UserError(
            "there is no memory left\nSmaller batch_size, agent.hidden_dim, replay_buffer_num_workers or num_envs need "
            f"less; {resume_hint(work_dir)}"
        )
    return None
