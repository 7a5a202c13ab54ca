"""tools/plot_run.py: seeds in titles, the shape of frames. Its commands are run in test_documented_commands.py."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

PATH = Path(__file__).parents[1] / "tools" / "plot_run.py"


@pytest.fixture(scope="module")
def plot_run() -> Any:
    spec = importlib.util.spec_from_file_location("plot_run", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_title_names_the_seeds_that_are_drawn(plot_run: Any, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("task_name: walker_walk\nseed: 3\nbatch_size: 64\nagent: {}\n")
    assert plot_run.settings(tmp_path, ["evaluation"])[1].endswith("batch 64  ·  seed 3")
    assert plot_run.settings(tmp_path, ["seed 3", "seed 1", "seed 2"])[1].endswith("seeds 1, 2, 3")
    assert plot_run.settings(tmp_path, ["fp32", "bf16, seed 5"])[1].endswith("seeds 3, 5")


@pytest.mark.parametrize(("shape", "size"), [((256, 256), (200, 200)), ((128, 256), (200, 100)), ((64, 16), (50, 200))])
def test_frames_keep_their_proportions(plot_run: Any, shape: tuple[int, int], size: tuple[int, int]) -> None:
    assert plot_run.tile_size(np.zeros((*shape, 3), np.uint8)) == size
