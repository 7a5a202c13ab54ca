"""A run in a process of its own that was never killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.harness import finish


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A shorter run of the harness in its plain mode; tests compare with it and leave it as it is."""
    run_dir = tmp_path_factory.mktemp("whole") / "run"
    finish(run_dir, "plain", shorter=True)
    return run_dir
