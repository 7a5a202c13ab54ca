"""One job of Hydra's, in this process or where a launcher runs it: how it is called, and what is said when it fails."""

from __future__ import annotations

import os
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from drqv2.config.checks import validate_in_place
from drqv2.errors import DiskError, Stopped, UserError
from drqv2.system import files
from drqv2.system.signals import resume_hint

Run = Callable[[DictConfig, Path], Any]


class JobFailed(Exception):
    """A job of a sweep has failed and printed why; the other jobs continue."""


class Job:
    """What Hydra calls for each job, in this process or in one that a launcher starts, here or on another machine.

    Args:
        run: gets the checked configuration and the run's directory.

    Attributes:
        crashes: exceptions of single runs that are bugs.
        failed: number of jobs of a sweep that failed in this process.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._home = (socket.gethostname(), os.getpid())
        self._script = sys.argv[0]
        self.crashes: list[Exception] = []
        self.failed = 0
        self.__wrapped__ = run  # Hydra names its job after the module of the function that this one wraps

    def __call__(self, cfg: DictConfig) -> Any:
        """Check the configuration and run it; return what `run` returns.

        Raises:
            SystemExit: a single run failed or was stopped; with its exit code.
            JobFailed: one of several did.
        """
        hydra = HydraConfig.get()
        work_dir = Path(hydra.runtime.output_dir)
        sweep = hydra.mode == RunMode.MULTIRUN
        elsewhere = (socket.gethostname(), os.getpid()) != self._home
        if elsewhere:
            sys.argv[0] = self._script  # for the commands in messages
        try:
            validate_in_place(cfg)
            return self._run(cfg, work_dir)
        except UserError as error:
            message, code = f"error: {error}", error.code
        except Stopped as stopped:
            sweep = sweep and elsewhere  # a signal stops all jobs that run one after another in this process
            message, code = f"\n{stopped}; {resume_hint(work_dir)}", stopped.code
        except KeyboardInterrupt:
            sweep = False
            message, code = f"\ninterrupted; {resume_hint(work_dir)}", 130
        except Exception as error:
            told = translate(error, work_dir)
            if not told and not sweep:
                self.crashes.append(error)
                raise
            message, code = (f"error: {told}", told.code) if told else (traceback.format_exc(), 1)
        # Outside the handlers, so that the exception does not keep alive what the job held in memory.
        self._fail(sweep, message, code)

    def traceback_of(self, crash: Exception) -> TracebackType | None:
        """Return the traceback of one of `crashes` from this object's frame on."""
        frames = crash.__traceback__
        while frames is not None and frames.tb_frame.f_code is not Job.__call__.__code__:
            frames = frames.tb_next
        return frames

    def _fail(self, sweep: bool, message: str, code: int) -> NoReturn:
        print(message, file=sys.stderr, flush=True)
        if sweep:
            self.failed += 1
            raise JobFailed(message.strip())
        sys.exit(code)


def translate(error: Exception, work_dir: Path) -> UserError | None:
    """Return what to tell the user about an error that is the machine's fault; None if it is a bug.

    Args:
        error: what the run raised.
        work_dir: the run's directory.
    """
    for message_of, kind in _TRANSLATORS:
        if message := message_of(error, work_dir):
            return kind(f"{message}; {resume_hint(work_dir)}")
    return None


def _disk_full(error: Exception, work_dir: Path) -> str:
    if not isinstance(error, OSError) or error.errno not in files.DISK_ERRNOS:
        return ""
    return f"{error}\nThe disk is full or failing: free some space"


def _no_gpu_memory(error: Exception, work_dir: Path) -> str:
    if type(error).__name__ != "OutOfMemoryError":  # torch's, which this module does not import
        return ""
    return (
        f"the GPU is out of memory: {' '.join(str(error).split())[:120]}\n"
        "Reduce batch_size, agent.hidden_dim or num_envs, or set replay_device=disk or compile=false"
    )


def _no_memory(error: Exception, work_dir: Path) -> str:
    if not isinstance(error, MemoryError) and "DefaultCPUAllocator" not in str(error):
        return ""
    return "out of memory\nReduce batch_size, agent.hidden_dim, replay_buffer_num_workers or num_envs"


def _episode_lost(error: Exception, work_dir: Path) -> str:
    unreadable = type(error).__name__ == "SafetensorError"
    if not unreadable and not (isinstance(error, FileNotFoundError) and "episode_" in str(error)):
        return ""
    line = next((line for line in str(error).splitlines() if "episode_" in line), str(error))
    return (
        f"an episode file was damaged or deleted while the run was reading it: {line.strip()[:200]}\n"
        "Every start checks these files"
    )


def _file_deleted(error: Exception, work_dir: Path) -> str:
    if not isinstance(error, FileNotFoundError) or not str(error.filename or "").startswith(str(work_dir)):
        return ""
    return f"{error.filename} was deleted while the run was using it\nResuming restores what the snapshot holds of it"


# Each returns what to say about an error of its own sort, "" about any other.
_TRANSLATORS: tuple[tuple[Callable[[Exception, Path], str], type[UserError]], ...] = (
    (_disk_full, DiskError),
    (_no_gpu_memory, UserError),
    (_no_memory, UserError),
    (_episode_lost, UserError),
    (_file_deleted, UserError),
)
