"""Settings and fixtures that all tests share."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from absl import logging as absl_logging
from hypothesis import HealthCheck, settings

from drqv2 import envs
from drqv2.system import torch_settings

# No deadline: machines differ, and may be busy. In continuous integration the same examples each time.
_busy = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("default", _busy)
settings.register_profile("ci", _busy, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")

# Hydra closes every log handler that it finds, and absl's (dm_control's) closes its stream with it: that must not be
# the one in which pytest captures what a test prints.
absl_logging.get_absl_handler().python_handler.stream = sys.__stderr__

envs.choose_backend()  # before a test imports dm_control; the processes it starts inherit the choice


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start the tests first that wait for low-priority processes: otherwise all other workers would wait for them."""
    items.sort(key=lambda item: item.get_closest_marker("waits") is None)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what is marked `gpu` where there is none; else set what a run sets, whatever ran before."""
    if item.get_closest_marker("gpu"):
        if not torch.cuda.is_available():
            pytest.skip("needs a GPU")
        torch_settings.set_numerics()


@pytest.fixture(autouse=True)
def _sigterm() -> Iterator[None]:
    """Take back Ray's handler, which later tests' runs would take for a scheduler's."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="session")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run that was never interrupted; tests compare with it and leave it as it is."""
    from tests.short_run import run

    return run(tmp_path_factory.mktemp("straight") / "run")


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run of a rendered simulation with everything that a run can write, to be left as it is."""
    from tests.short_run import FULL, run

    return run(tmp_path_factory.mktemp("reference") / "run", *FULL)
