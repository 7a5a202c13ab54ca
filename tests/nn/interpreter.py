"""Triton's interpreter, which runs kernels without a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def interpret(code: str) -> None:
    """Run code in a process in which kernels are interpreted; torch for CPUs comes without Triton: see DRQV2_TRITON."""
    folder = os.environ.get("DRQV2_TRITON")
    if not folder and find_spec("triton") is None:
        pytest.skip("needs Triton, in a folder that DRQV2_TRITON names")
    places = os.pathsep.join([str(ROOT), *([folder] if folder else [])])
    settings = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": places}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, env=settings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
