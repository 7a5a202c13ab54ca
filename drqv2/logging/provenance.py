"""Provenance of a run's results: commit, package versions, machine."""

from __future__ import annotations

import json
import logging
import os
import platform
import shutil
import socket
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import torch

from drqv2.programs import INSTALLED, ROOT
from drqv2.system import machine
from drqv2.system.files import Appender

_log = logging.getLogger(__name__)
_PACKAGES = ("torch", "numpy", "mujoco", "dm-control", "hydra-core")


def git_commit(folder: Path = ROOT) -> tuple[str | None, bool | None]:
    """Return the commit checked out in `folder` and whether tracked files are modified; without git (None, None)."""
    if INSTALLED and folder == ROOT:  # a repository around a wheel is not this project's
        return None, None
    git = shutil.which("git") or "git"
    try:
        commit, changes = (
            subprocess.run([git, "-C", str(folder), *words], capture_output=True, text=True, check=True).stdout.strip()
            for words in (["rev-parse", "HEAD"], ["status", "--porcelain", "--untracked-files=no"])
        )
    except (OSError, subprocess.CalledProcessError):
        return None, None
    return commit, bool(changes)


def record_start(run_dir: Path, frame: int, device: torch.device) -> None:
    """Append code, command and machine of this process to `run_dir/starts.jsonl`. A failure is only a warning.

    Args:
        run_dir: the run's directory.
        frame: environment frame at which the process starts or resumes.
        device: the learner's device.
    """
    commit, dirty = git_commit()
    start = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "frame": frame,
        "commit": commit,
        "dirty": dirty,
        "command": sys.argv,
        "host": socket.gethostname(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "processor": machine.processor()[0],
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "versions": {"python": platform.python_version()} | {name: version(name) for name in _PACKAGES},
    }
    try:
        with closing(Appender(run_dir / "starts.jsonl")) as file:
            file.append((json.dumps(start) + "\n").encode())
    except OSError as e:
        _log.warning("starts.jsonl cannot be written (%s); the run continues.", e.strerror)
