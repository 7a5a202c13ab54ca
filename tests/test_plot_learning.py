"""tools/plot_learning.py draws what `make gpu` has written."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest

ROOT = Path(__file__).parents[1]


def test_evaluations_over_the_published_range(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, out = tmp_path / "learning.csv", tmp_path / "curves.png"
    runs = ("cartpole_swingup_sparse_paper", "walker_walk_paper", "walker_walk_spq")
    kinds, frames = ("train", "eval"), (20000, 40000)
    rows = [f"{run},{kind},{frame},{frame / 100}" for run in runs for kind in kinds for frame in frames]
    table.write_text("\n".join(["run,kind,frame,episode_reward", *rows]))
    monkeypatch.setattr(sys, "argv", ["plot_learning.py", str(table), str(out)])
    plt.close("all")
    runpy.run_path(str(ROOT / "tools" / "plot_learning.py"), run_name="__main__")
    assert out.read_bytes().startswith(b"\x89PNG")
    sparse, walker = plt.gcf().axes
    assert (sparse.get_title("left"), walker.get_title("left")) == ("cartpole_swingup_sparse", "walker_walk")
    mean, *own = walker.get_lines()
    assert mean.get_label() == "DrQ-v2, published"
    assert np.asarray(mean.get_xdata()).tolist() == [0, 20_000, 40_000]
    assert np.asarray(mean.get_ydata())[2] == 64.7  # results/published
    assert [line.get_label() for line in own] == ["walker_walk_paper", "walker_walk_spq"]
    assert np.asarray(own[0].get_ydata()).tolist() == [200, 400]
