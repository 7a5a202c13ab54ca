"""One job of Hydra's, in this process or where a launcher runs it: how it is called, and the messages when it fails."""

from __future__ import annotations

import os
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from drqv2.config.checks import label, validate
from drqv2.errors import DiskError, Stopped, UserError
from drqv2.launch.agent_errors import agent_frames, explain_agent, in_agent
from drqv2.launch.exits import plain_warnings
from drqv2.programs import as_here
from drqv2.system import files
from drqv2.system.signals import resume_hint

Run = Callable[[DictConfig, Path], Any]
PUBLISHED_SIZE = 84  # of the images that public encoders are written for, pixels
MISFITS = ("shapes cannot be multiplied", "is invalid for input of size")  # torch, of features of another size

OmegaConf.register_new_resolver("label", label, replace=True)  # in names of directories; launchers' processes, too


class JobFailed(Exception):
    """A job of a sweep has failed and printed why; the other jobs continue."""


class Job:
    """What Hydra calls for each job, in this process or in one that a launcher starts, here or on another machine.

    Args:
        run: gets the checked configuration and the run's directory.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._home = (socket.gethostname(), os.getpid())
        self._script = sys.argv[0]
        self.crash: Exception | None = None  # a bug in a single run
        self.traceback: TracebackType | None = None  # the bug's, without Hydra's frames
        self.failed = 0  # jobs of a sweep that failed in this process
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
        sys.argv[0] = self._script  # for the commands in messages, wherever this is
        try:
            validate(cfg)
            with plain_warnings():
                return self._run(cfg, work_dir)
        except UserError as error:
            message, code = f"error: {error}", error.code
        except Stopped as stopped:
            # A signal stops all jobs that run one after another in this process.
            sweep = sweep and (socket.gethostname(), os.getpid()) != self._home
            message, code = f"\n{stopped}; {resume_hint(work_dir)}", stopped.code
        except KeyboardInterrupt:
            sweep = False
            message, code = f"\ninterrupted; {resume_hint(work_dir)}", 130
        except Exception as error:
            told = _explain_run(error, work_dir) or _explain_agent(error, cfg, work_dir)
            if not told and not sweep:
                self.crash, self.traceback = error, error.__traceback__
                raise
            message, code = (f"error: {told}", told.code) if told else (traceback.format_exc(), 1)
        # Outside the handlers, so that the exception does not keep alive what the job held in memory.
        print(as_here(message), file=sys.stderr, flush=True)
        if code == UserError.code and files.is_unbegun(work_dir):
            files.remove_failed(work_dir)
        if sweep:
            self.failed += 1
            raise JobFailed(message.strip())
        sys.exit(code)


def _explain_run(error: Exception, work_dir: Path) -> UserError | None:
    """Return the message for an error that is the machine's fault; None if it is a bug."""
    text, name = str(error), type(error).__name__  # some are compared by name: of packages that are not imported here
    kind: type[UserError] = UserError
    if isinstance(error, OSError) and error.errno in files.DISK_ERRNOS:
        kind, message = DiskError, f"{error}\nThe disk is full or failing: free some space"
    elif name == "OutOfMemoryError":
        message = (
            f"the GPU is out of memory: {' '.join(text.split())[:120]}\n"
            "Set replay_device=disk or compile=false, or a smaller batch_size with resume_force=true; a new run can "
            "have a smaller agent.hidden_dim or num_envs"
        )
    elif isinstance(error, MemoryError) or "DefaultCPUAllocator" in text:
        message = (
            "out of memory\nReduce replay_buffer_num_workers or num_eval_envs, or batch_size with resume_force=true; a "
            "new run can have a smaller agent.hidden_dim or num_envs"
        )
    elif name == "SafetensorError" or (isinstance(error, FileNotFoundError) and str(work_dir) in text):
        end = " ".join(text.split())[-200:]  # a loader's process sends its traceback first
        message = f"a file of the run was damaged or deleted while it was in use: {end}\nEvery start checks these files"
    else:
        return None
    return kind(f"{message}; {resume_hint(work_dir)}")


def _explain_agent(error: Exception, cfg: DictConfig, work_dir: Path) -> UserError | None:
    """Return the message for an error in the user's agent files; None if it is elsewhere."""
    size, published = cfg.image_size, PUBLISHED_SIZE
    misfit = size != published and cfg.obs_type != "state" and any(words in str(error) for words in MISFITS)
    if cfg.get("agent_dir") and misfit:
        where = [f"{frame.filename}, line {frame.lineno}" for frame in agent_frames(error)[-1:]]
        written = f"If its encoder is written for {published}x{published} images, it cannot take {size}x{size}"
        return in_agent(error, *where, f"{written}: start with image_size={published}")
    fixed = f"then {resume_hint(work_dir)}" if files.has_snapshot(work_dir) else "and start again"
    return explain_agent(error, f"Fix it, {fixed}")


def explain_launcher(error: Exception, overrides: Sequence[str]) -> UserError | None:
    """Return the message for an error of the chosen launcher; None for other errors."""
    line = " ".join(str(error).split())[:200]
    if type(error).__module__.partition(".")[0] in ("joblib", "submitit", "ray"):
        advice = "Repeat the command with hydra.sweep.dir=THAT_DIRECTORY to resume every run of the sweep."
        lost = UserError(f"a job was lost: {line}\n{advice}")
        lost.code = 1
        return lost
    if isinstance(error, RuntimeError) and "srun" in line and "hydra/launcher=slurm" in overrides:
        return UserError(f"there is no Slurm here ({line})\nRun this on a machine from which your cluster takes jobs.")
    if isinstance(error, ConnectionError) and "hydra/launcher=ray" in overrides:
        return UserError(
            f"there is no Ray cluster here ({line[:100]})\n"
            "Start one with ray start --head, name one in RAY_ADDRESS, or set hydra.launcher.ray.init.address=null."
        )
    return None
